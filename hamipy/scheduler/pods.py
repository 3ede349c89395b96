"""Pods as the scheduler sees them: who they are, what they ask for, what they got.

Thousands of pods share a few shapes, so a shape is read once and what comes of it is shared.
"""

from collections.abc import Mapping
from sys import intern

from msgspec import Struct

from hamipy.core.codec import decode_allocation
from hamipy.core.errors import InvalidRequest, UnknownVersion
from hamipy.core.family import Families
from hamipy.core.fit import steps_of
from hamipy.core.ledger import PlacedPod
from hamipy.core.model import Allocation, ContainerKind, PodRequest
from hamipy.core.names import ALLOCATION, CONSTRAINTS_PREFIX, RESERVED_ANNOTATIONS
from hamipy.core.quantity import parse_int
from hamipy.core.request import ContainerResources, read_pod
from hamipy.kube.objects import FINISHED, Pod

_MAX_SHAPES = 8192


class PodView(Struct, frozen=True, gc=False):
    """One pod of our scheduler.

    Attributes:
        uid, namespace, name: who it is.
        node: where it is bound, empty while it is pending.
        phase: `status.phase`.
        terminating: whether its deletion was asked for; it holds its shares until it is gone.
        priority: `spec.priority`.
        created: creation timestamp (RFC 3339 text).
        nominated: node that kube-scheduler preempted for it, or empty.
        request: what it asks for; None when it uses none of our names or cannot be read.
        problem: why it cannot be read, or empty.
        requested: amounts by resource name of our families, as Kubernetes counts a pod.
        allocation: text of the allocation annotation, None when there is none.
        kinds: kind of each of its device containers.
    """

    uid: str
    namespace: str
    name: str
    node: str = ""
    phase: str = ""
    terminating: bool = False
    priority: int = 0
    created: str = ""
    nominated: str = ""
    request: PodRequest | None = None
    problem: str = ""
    requested: dict[str, int] = {}
    allocation: str | None = None
    kinds: dict[str, ContainerKind] = {}

    @property
    def finished(self) -> bool:
        """Whether all its containers have ended for good; it holds nothing then."""
        return self.phase in FINISHED

    @property
    def ours(self) -> bool:
        """Whether it uses a name of our families."""
        return bool(self.requested) or bool(self.kinds)


class _Shape(Struct, frozen=True, gc=False):
    """What pods of equal containers and constraints have in common."""

    request: PodRequest | None
    bare: PodRequest | None
    problem: str
    requested: dict[str, int]
    kinds: dict[str, ContainerKind]


class PodReader:
    """Turns API objects into views.

    Args:
        families: the loaded resource families.
    """

    def __init__(self, families: Families) -> None:
        self._families = families
        self._shapes: dict[object, _Shape] = {}

    def read(self, pod: Pod) -> PodView:
        """The view of a pod; never raises for what an author wrote: `problem` says it."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        shape = self._shape(pod)
        request = shape.request
        if request is not None:
            request = _owned(request, pod)
        return PodView(
            meta.uid,
            intern(meta.namespace),
            meta.name,
            intern(spec.node_name),
            intern(status.phase),
            meta.deletion_timestamp is not None,
            spec.priority,
            meta.creation_timestamp or "",
            status.nominated_node_name,
            request,
            shape.problem,
            shape.requested,
            meta.annotations.get(ALLOCATION),
            shape.kinds,
        )

    def placed(self, pod: Pod, view: PodView) -> tuple[PlacedPod | None, str]:
        """What a bound pod holds, and why that is not known exactly (empty when it is).

        None when it holds nothing of ours. An unknown pod is placed without allocation: the ledger counts it against
        every device of its node.
        """
        if not view.ours and view.allocation is None:
            return None, ""
        if view.allocation is None:
            return self._unknown(pod, view), f"metadata.annotations[{ALLOCATION}] is missing"
        try:
            allocation = decode_allocation(view.allocation)
            _check(allocation, view)
        except (InvalidRequest, UnknownVersion) as error:
            return self._unknown(pod, view), str(error)
        return placed(view, allocation), ""

    def _unknown(self, pod: Pod, view: PodView) -> PlacedPod:
        bare = self._shape(pod).bare
        request = view.request or (bare and _owned(bare, pod))
        return PlacedPod(view.uid, view.namespace, view.name, view.node, view.kinds, None, request)

    def _shape(self, pod: Pod) -> _Shape:
        containers = pod.containers
        constraints = {
            k: v
            for k, v in pod.metadata.annotations.items()
            if k.startswith(CONSTRAINTS_PREFIX) and k not in RESERVED_ANNOTATIONS
        }
        key = (
            tuple(
                (c.name, kind, tuple(c.resources.limits.items()), tuple(c.resources.requests.items()))
                for c, kind in containers
            ),
            tuple(constraints.items()),
        )
        shape = self._shapes.get(key)
        if shape is None:
            resources = [ContainerResources(c.name, k, c.resources.limits, c.resources.requests) for c, k in containers]
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = self._read_shape(resources, constraints)
        return shape

    def _read_shape(self, containers: list[ContainerResources], constraints: Mapping[str, str]) -> _Shape:
        bare, request, problem = None, None, ""
        try:
            bare = self._request(containers, {})
            request = self._request(containers, constraints)
        except InvalidRequest as error:
            problem = str(error)
        ours = self._families.ours
        kinds = {c.name: c.kind for c in containers if any(map(ours, c.limits))}
        return _Shape(request, bare, problem, self._requested(containers), kinds)

    def _request(self, containers: list[ContainerResources], constraints: Mapping[str, str]) -> PodRequest | None:
        return read_pod(
            uid="", namespace="", name="", containers=containers, annotations=constraints, families=self._families
        )

    def _requested(self, containers: list[ContainerResources]) -> dict[str, int]:
        """Per resource name the peak over the pod's steps, as kube-scheduler and the kubelet count it."""
        spans, steps = steps_of([c.kind for c in containers])
        sums: dict[str, list[int]] = {}
        for container, span in zip(containers, spans, strict=True):
            for name, text in {**container.limits, **container.requests}.items():
                if self._families.ours(name):
                    try:
                        amount = parse_int(text)
                    except ValueError:
                        continue  # `problem` says it; the API server lets no such pod in
                    by_step = sums.setdefault(intern(name), [0] * steps)
                    for step in span:
                        by_step[step] += amount
        return {name: max(by_step) for name, by_step in sums.items()}


def _owned(request: PodRequest, pod: Pod) -> PodRequest:
    meta = pod.metadata
    return PodRequest(
        meta.uid,
        intern(meta.namespace),
        meta.name,
        request.containers,
        request.constraints,
        request.node_policy,
        request.device_policy,
        pod.spec.priority,
    )


def placed(view: PodView, allocation: Allocation, node: str = "") -> PlacedPod:
    """A pod with its allocation, on its own node or on the one it is about to be bound to."""
    return PlacedPod(view.uid, view.namespace, view.name, node or view.node, view.kinds, allocation, view.request)


def _check(allocation: Allocation, view: PodView) -> None:
    """Refuse an allocation that is not this pod's.

    The devices are not looked up: a device may be gone from the inventory while a container still runs on it.
    """
    wanted = {c.name: c.count for c in view.request.containers} if view.request else dict.fromkeys(view.kinds)
    where = f"metadata.annotations[{ALLOCATION}].containers"
    if set(allocation.containers) != set(wanted):
        raise InvalidRequest(where, sorted(allocation.containers), f"is not this pod's: devices go to {sorted(wanted)}")
    for container, count in wanted.items():
        if count is not None and len(allocation.containers[container]) != count:
            raise InvalidRequest(
                f"{where}[{container}]", len(allocation.containers[container]), f"must be {count} shares"
            )
