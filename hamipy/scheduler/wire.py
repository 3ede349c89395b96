"""The bodies that kube-scheduler and its extenders exchange (`k8s.io/kube-scheduler/extender/v1`).

The Go types carry no JSON tags, so keys are capitalised. Only wanted fields are decoded; lists of names and node
objects stay as they came where they are only handed back.
"""

from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from hamipy.kube.objects import ObjectMeta, Pod

MAX_BODY = 16 * 1024 * 1024
"""Longest accepted body in bytes; 15,000 node names with a large pod are under 1 MiB."""

_NULL = b"null"


class BadBody(Exception):
    """A body that cannot be read; the text is one sentence."""


class Reply(NamedTuple):
    """HTTP status and JSON body."""

    status: int
    body: bytes


class ExtenderArgs(Struct, frozen=True, rename="pascal"):
    """Body of /filter and /prioritize: `node_names` with nodeCacheCapable, else `nodes` (a NodeList)."""

    pod: Pod
    node_names: Raw = Raw(_NULL)
    nodes: Raw = Raw(_NULL)


class FilterResult(Struct, frozen=True, rename="pascal"):
    """Answer of /filter."""

    node_names: Raw = Raw(_NULL)
    nodes: Raw = Raw(_NULL)
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class BindingArgs(Struct, frozen=True, rename="pascal"):
    """Body of /bind."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class BindingResult(Struct, frozen=True, rename="pascal"):
    """Answer of /bind."""

    error: str = ""


class MetaPod(Struct, frozen=True):
    """A victim by uid."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(Struct, frozen=True):
    """Victims on one node."""

    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _Victims(Struct, frozen=True):
    pods: list[Pod] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(Struct, frozen=True, rename="pascal"):
    """Body of /preempt."""

    pod: Pod
    node_name_to_victims: dict[str, _Victims] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims] | None = None

    def candidates(self) -> dict[str, MetaVictims]:
        """Victims by node, whichever form was given."""
        if self.node_name_to_meta_victims is not None:
            return self.node_name_to_meta_victims
        return {
            node: MetaVictims([MetaPod(p.metadata.uid) for p in victims.pods or ()], victims.violations)
            for node, victims in (self.node_name_to_victims or {}).items()
        }


class PreemptionResult(Struct, frozen=True, rename="pascal"):
    """Answer of /preempt."""

    node_name_to_meta_victims: dict[str, MetaVictims]


class _NamedNode(Struct, frozen=True):
    metadata: ObjectMeta


class _NodeList(Struct, frozen=True):
    items: list[Raw] | None = None


class Names(NamedTuple):
    """The nodes asked about: names in their order, and their objects where the caller sent objects."""

    names: list[str]
    objects: list[Raw] | None


_filter_args = msgspec.json.Decoder(ExtenderArgs)
_binding_args = msgspec.json.Decoder(BindingArgs)
_preemption_args = msgspec.json.Decoder(PreemptionArgs)
_names = msgspec.json.Decoder(list[str])
_node_list = msgspec.json.Decoder(_NodeList)
_named_node = msgspec.json.Decoder(_NamedNode)
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def read_args(body: bytes) -> ExtenderArgs:
    """Body of /filter and /prioritize. Raises BadBody."""
    _check_size(body)
    try:
        return _filter_args.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad("ExtenderArgs", body, error) from error


def read_binding(body: bytes) -> BindingArgs:
    """Body of /bind. Raises BadBody."""
    _check_size(body)
    try:
        args = _binding_args.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad("ExtenderBindingArgs", body, error) from error
    for field in ("pod_name", "pod_namespace", "pod_uid", "node"):
        if not getattr(args, field):
            raise BadBody(
                f"ExtenderBindingArgs: {field} is empty; all of PodName, PodNamespace, PodUID, Node are needed"
            )
    return args


def read_preemption(body: bytes) -> PreemptionArgs:
    """Body of /preempt. Raises BadBody."""
    _check_size(body)
    try:
        return _preemption_args.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad("ExtenderPreemptionArgs", body, error) from error


def read_names(args: ExtenderArgs) -> Names:
    """The nodes asked about. Raises BadBody."""
    try:
        if bytes(args.node_names) != _NULL:
            return Names(_names.decode(args.node_names), None)
        if bytes(args.nodes) != _NULL:
            objects = _node_list.decode(args.nodes).items or []
            return Names([_named_node.decode(o).metadata.name for o in objects], objects)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"ExtenderArgs: NodeNames or Nodes cannot be read: {error}") from error
    raise BadBody("ExtenderArgs: neither NodeNames nor Nodes is given; set nodeCacheCapable and send NodeNames")


def _check_size(body: bytes) -> None:
    if len(body) > MAX_BODY:
        raise BadBody(f"body of {len(body)} bytes: at most {MAX_BODY} are accepted")


def _bad(kind: str, body: bytes, error: Exception) -> BadBody:
    shown = body[:60].decode("utf-8", "replace")
    return BadBody(f"{kind}: body {shown!r} cannot be read: {error}")
