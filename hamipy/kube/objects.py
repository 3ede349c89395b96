"""Kubernetes objects, as far as we read them; everything else in them is skipped while decoding.

Frozen msgspec Structs (untracked by the garbage collector: they hold no cycles). Absent fields have their Go zero
value, except timestamps, which are None. Timestamps are RFC 3339 in UTC, so equal precision compares as text.
Quantities are text; a bare number, which people write and tools pass on, becomes text.
"""

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import force_setattr

from hamipy.core.model import ContainerKind

if TYPE_CHECKING:
    Quantities: TypeAlias = dict[str, str]
else:
    Quantities: TypeAlias = dict[str, str | int | float]

FINISHED = ("Succeeded", "Failed")
"""Phases of a pod whose containers have all ended for good."""


class _Object(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Wire names are camel case; what has its default is left out."""


def _texts(owner: Struct, *fields: str) -> None:
    """Turn bare numbers of quantity maps into text, in place of the map."""
    for field in fields:
        values = getattr(owner, field)
        for value in values.values():
            if type(value) is not str:
                force_setattr(owner, field, {k: v if type(v) is str else str(v) for k, v in values.items()})
                break


class OwnerReference(_Object, frozen=True):
    """Who owns an object; the garbage collector follows the uid."""

    uid: str = ""


class ObjectMeta(_Object, frozen=True):
    """Metadata of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: tuple[OwnerReference, ...] = ()


class Resources(_Object, frozen=True):
    """What a container asks for."""

    limits: Quantities = {}
    requests: Quantities = {}

    def __post_init__(self) -> None:
        _texts(self, "limits", "requests")


class EnvVar(_Object, frozen=True):
    """An environment variable; only its name is read."""

    name: str = ""


class Container(_Object, frozen=True):
    """A container of a pod; see `Pod.containers` for its kind."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""
    env: tuple[EnvVar, ...] = ()


class PodSpec(_Object, frozen=True):
    """What is asked of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class PodStatus(_Object, frozen=True):
    """How a pod is doing."""

    phase: str = ""
    reason: str = ""
    nominated_node_name: str = ""


class Pod(_Object, frozen=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def finished(self) -> bool:
        """Whether all its containers have ended for good; it holds nothing then."""
        return self.status.phase in FINISHED

    @property
    def containers(self) -> list[tuple[Container, ContainerKind]]:
        """Its containers with their kinds, init containers first."""
        init = [
            (c, ContainerKind.SIDECAR if c.restart_policy == "Always" else ContainerKind.INIT)
            for c in self.spec.init_containers
        ]
        return init + [(c, ContainerKind.APP) for c in self.spec.containers]


class NodeSpec(_Object, frozen=True):
    """What is asked of a node."""

    unschedulable: bool = False


class NodeStatus(_Object, frozen=True):
    """What a node has, by resource name, in Kubernetes quantities."""

    capacity: Quantities = {}
    allocatable: Quantities = {}

    def __post_init__(self) -> None:
        _texts(self, "capacity", "allocatable")


class Node(_Object, frozen=True):
    """A node: metadata, capacity and allocatable only."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(_Object, frozen=True):
    """Who holds a Lease, and since when (`coordination.k8s.io/v1`)."""

    holder_identity: str = ""
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(_Object, frozen=True):
    """A Lease, by which components elect a leader."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(_Object, frozen=True):
    """What an Event is about."""

    api_version: str
    kind: str
    name: str
    uid: str = ""
    namespace: str = ""
