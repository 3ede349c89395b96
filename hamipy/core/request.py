"""From what a pod's author wrote to what the ledger computes with; every refusal of design §4 is here.

The webhook and the scheduler read pods through `read_pod` alone, so they cannot disagree; the node daemon reads the
allocation that came of it.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from msgspec import Struct

from hamipy.core.errors import InvalidRequest
from hamipy.core.family import Families, Family, Meaning, Resource
from hamipy.core.model import CORES_PER_DEVICE, MEMORY_MAX, Constraints, ContainerKind, ContainerRequest, PodRequest
from hamipy.core.names import ALLOCATION, CONSTRAINTS_PREFIX, RESERVED_ANNOTATIONS, RETRY
from hamipy.core.policies import DEVICE_POLICIES, NODE_POLICIES
from hamipy.core.quantity import format_bytes, parse_int

_LISTS = {
    "vendor": "vendor",
    "model": "model",
    "model-exclude": "model_exclude",
    "uuid": "uuid",
    "uuid-exclude": "uuid_exclude",
    "isolation": "isolation",
}
_LATER = ("numa", "topology", "rdma", "partition")
"""Constraints of the vocabulary that this build cannot honour yet: refused, never ignored."""

CONSTRAINTS = (*_LISTS, "node-policy", "device-policy", *_LATER)
"""Constraint annotations, without the domain."""


class ContainerResources(Struct, frozen=True, gc=False):
    """What one container of a pod says about resources, as Kubernetes carries it."""

    name: str
    kind: ContainerKind
    limits: Mapping[str, str]
    requests: Mapping[str, str]


def read_pod(
    *,
    uid: str,
    namespace: str,
    name: str,
    containers: Iterable[ContainerResources],
    annotations: Mapping[str, str],
    families: Families,
    priority: int = 0,
) -> PodRequest | None:
    """What a pod asks for; None when it mentions none of our resources.

    Args:
        containers: init containers in their order, then app containers.

    Raises:
        InvalidRequest: names field, value and fix.
    """
    asked = [r for c in containers if (r := read_container(c, families)) is not None]
    if not asked:
        return None
    constraints, node_policy, device_policy = _read_constraints(annotations)
    return PodRequest(uid, namespace, name, tuple(asked), constraints, node_policy, device_policy, priority)


def read_container(container: ContainerResources, families: Families) -> ContainerRequest | None:
    """What one container asks for, defaults filled in; None when it mentions none of our resources.

    Raises:
        InvalidRequest: names field, value and fix.
    """
    ours = {k: str(v) for k, v in container.limits.items() if families.ours(k)}
    for key, value in container.requests.items():
        if not families.ours(key):
            continue
        where = f"container {container.name} resources.requests[{key}]"
        if key not in ours:
            raise InvalidRequest(where, value, "write it under resources.limits, where device resources belong")
        if _whole(where, value) != _whole(where.replace("requests", "limits"), ours[key]):
            raise InvalidRequest(where, value, f"must equal resources.limits ({ours[key]}), or be left out")
    if not ours:
        return None
    return _read(container.name, container.kind, tuple(sorted(ours.items())), families)


@lru_cache(maxsize=8192)
def _read(
    container: str, kind: ContainerKind, limits: tuple[tuple[str, str], ...], families: Families
) -> ContainerRequest:
    where = f"container {container} resources.limits"
    amounts: dict[Meaning, int] = {}
    families_seen: dict[str, Family] = {}
    for key, text in limits:
        known = families.by_resource.get(key)
        if known is None:
            domain = key.partition("/")[0] + "/"  # left out of the comparison: it would make any two names alike
            names = [n.removeprefix(domain) for n in families.by_resource if n.startswith(domain)]
            near = difflib.get_close_matches(key.removeprefix(domain), names, n=1)
            hint = f"did you mean {domain}{near[0]}?" if near else f"known are {', '.join(families.by_resource)}"
            raise InvalidRequest(f"{where}[{key}]", text, f"is not a resource of ours; {hint}")
        family, resource = known
        families_seen[family.name] = family
        amounts[resource.meaning] = _amount(f"{where}[{key}]", text, resource)
    if len(families_seen) > 1:
        raise InvalidRequest(where, [k for k, _ in limits], "mixes families; ask for one device in one family's names")
    family = next(iter(families_seen.values()))
    return _combine(container, kind, amounts, family, where)


def _combine(
    container: str, kind: ContainerKind, amounts: dict[Meaning, int], family: Family, where: str
) -> ContainerRequest:
    def named(meaning: Meaning) -> str:
        resource = family.named(meaning)
        return f"{where}[{resource.name if resource else meaning}]"

    count = amounts.get(Meaning.COUNT, 1)
    memory, percentage = amounts.get(Meaning.MEMORY), amounts.get(Meaning.MEMORY_PERCENTAGE)
    cores = amounts.get(Meaning.CORES)
    if memory is not None and percentage is not None:
        raise InvalidRequest(
            named(Meaning.MEMORY_PERCENTAGE), percentage, f"says the same as {named(Meaning.MEMORY)}; keep one of them"
        )
    total = amounts.get(Meaning.MEMORY_TOTAL)
    if total is not None and total != (memory or 0) * count:
        raise InvalidRequest(
            named(Meaning.MEMORY_TOTAL), total, "is filled in for quotas (devices x memory); leave it out"
        )
    if memory is None and percentage is None:
        if cores is None:
            return ContainerRequest(container, kind, count, None, 100, CORES_PER_DEVICE)
        percentage = cores
    return ContainerRequest(container, kind, count, memory, percentage, cores or 0)


def _whole(where: str, text: str) -> int:
    try:
        return parse_int(text)
    except ValueError as error:
        raise InvalidRequest(where, text, f"must be a whole Kubernetes quantity: {error}") from error


def _amount(where: str, text: str, resource: Resource) -> int:
    """The written number in base units (bytes, percent, devices), held to the resource's bounds."""
    written = _whole(where, text)
    if resource.meaning is Meaning.MEMORY and resource.unit == 1 and 0 < written < resource.minimum:
        raise InvalidRequest(where, text, f"is {written} bytes, less than 1Mi; did you mean {written}Mi?")
    shown: Callable[[int], str] = str
    maximum = resource.maximum
    if resource.meaning is Meaning.MEMORY:
        shown = format_bytes if resource.unit == 1 else str
        maximum = min(maximum or MEMORY_MAX, MEMORY_MAX // resource.unit)
    if written < resource.minimum or (maximum and written > maximum):
        most = f"..{shown(maximum)}" if maximum else " or more"
        raise InvalidRequest(where, text, f"must be {shown(resource.minimum)}{most}")
    return written * resource.unit


def completions(container: ContainerResources, families: Families) -> dict[str, str]:
    """What the webhook adds to a container's limits, so that the pod says in full what it gets.

    The number of devices where it is left out, the memory that compute alone stands for (its own percentage), the
    kubelet's count, and devices x memory for quotas. Empty when nothing is missing, so a second call adds nothing.

    Raises:
        InvalidRequest: the container's request is refused.
    """
    request = read_container(container, families)
    if request is None:
        return {}
    neutral = families.all[0]
    written = {families.by_resource[k][1].meaning for k in container.limits if k in families.by_resource}
    family = next(families.by_resource[k][0] for k in container.limits if k in families.by_resource)
    full = {(neutral, Meaning.COUNT): str(request.count)}
    if request.memory is not None:
        full[neutral, Meaning.MEMORY_TOTAL] = str(request.memory * request.count)
    elif Meaning.CORES in written and Meaning.MEMORY_PERCENTAGE not in written:
        full[family, Meaning.MEMORY_PERCENTAGE] = str(request.memory_percentage)
    named = {r.name: amount for (f, meaning), amount in full.items() if (r := f.named(meaning)) is not None}
    return {name: amount for name, amount in named.items() if name not in container.limits}


def _read_constraints(annotations: Mapping[str, str]) -> tuple[Constraints, str | None, str | None]:
    lists: dict[str, tuple[str, ...]] = {}
    policies: dict[str, str] = {}
    for key, value in annotations.items():
        if not key.startswith(CONSTRAINTS_PREFIX) or key in RESERVED_ANNOTATIONS:
            continue
        constraint, where = key.removeprefix(CONSTRAINTS_PREFIX), f"metadata.annotations[{key}]"
        if constraint in _LISTS:
            values = tuple(v for part in value.split(",") if (v := part.strip()))
            if not values:
                raise InvalidRequest(where, value, "must be a comma-separated list with at least one entry")
            lists[_LISTS[constraint]] = values
        elif constraint in ("node-policy", "device-policy"):
            known: Iterable[str] = NODE_POLICIES if constraint == "node-policy" else DEVICE_POLICIES
            if value not in known:
                raise InvalidRequest(where, value, f"must be one of {', '.join(known)}")
            policies[constraint] = value
        elif constraint in _LATER:
            raise InvalidRequest(where, value, "is not available in this version of hamipy; leave it out")
        else:
            near = difflib.get_close_matches(constraint, CONSTRAINTS, n=1)
            hint = f"did you mean {CONSTRAINTS_PREFIX}{near[0]}?" if near else f"known are {', '.join(CONSTRAINTS)}"
            raise InvalidRequest(where, value, f"is not an annotation of ours; {hint}")
    return Constraints(**lists), policies.get("node-policy"), policies.get("device-policy")


def refuse_reserved(annotations: Mapping[str, str]) -> None:
    """Refuse annotations that only the scheduler writes.

    Raises:
        InvalidRequest: one of them is there.
    """
    for key in (ALLOCATION, RETRY):
        if key in annotations:
            raise InvalidRequest(
                f"metadata.annotations[{key}]", annotations[key], "is written by the scheduler only; leave it out"
            )
