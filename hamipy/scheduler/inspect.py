"""The scheduler's own ledger as one document: nodes, devices, and the pods on each, as `GET /inspect` answers it.

`snapshot` is pure: whoever feeds a `ClusterState` from lists of the API server gets the same document.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable

import msgspec
from msgspec import Struct

from hamipy.core.explain import summary
from hamipy.core.ledger import NodeEntry, PlacedPod
from hamipy.core.model import PodRequest, Share
from hamipy.kube.client import KubeClient
from hamipy.scheduler.holds import is_hold
from hamipy.scheduler.state import ClusterState


class Amount(Struct, frozen=True):
    """Of one dimension of a device; `allocated` is above `total` where a device shrank under its pods."""

    total: int
    allocated: int


class Holder(Struct, frozen=True, rename="camel"):
    """A pod and what it holds of one device.

    Attributes:
        uid, namespace, name: of the pod.
        memory, cores, slots: bytes, percent and slots counted for it: the peak over its life.
        containers: the share of each container; empty for an unknown pod.
    """

    uid: str
    namespace: str
    name: str
    memory: int
    cores: int
    slots: int
    containers: dict[str, Share] = {}


class DeviceShot(Struct, frozen=True, rename="camel"):
    """One device: what it is, how much of it is given away and to whom."""

    id: str
    index: int
    vendor: str
    model: str
    healthy: bool
    reason: str
    memory: Amount
    cores: Amount
    slots: Amount
    pods: tuple[Holder, ...]


class PodShot(Struct, frozen=True, rename="camel"):
    """A pod and one sentence about it."""

    uid: str
    namespace: str
    name: str
    reason: str


class NodeShot(Struct, frozen=True, rename="camel"):
    """One node.

    Attributes:
        name: of the node.
        closed: why nothing is bound there now, or empty.
        schedulable: whether it is not cordoned.
        problem: why its inventory cannot be read, or empty.
        vendor_problems: vendor -> why it is switched off or failing there.
        capacity: our names in `status.capacity`.
        devices: in index order.
        unknown: pods of which it is not known what they hold; they count against every device.
        holds: pods that are expected at `/bind` in this moment.
    """

    name: str
    closed: str
    schedulable: bool
    problem: str
    vendor_problems: dict[str, str]
    capacity: dict[str, str]
    devices: tuple[DeviceShot, ...]
    unknown: tuple[PodShot, ...]
    holds: tuple[PodShot, ...]


class Snapshot(Struct, frozen=True, rename="camel"):
    """Everything, in a fixed order.

    Attributes:
        ready: whether everything has been listed once.
        stale: whether the API server has been silent for too long.
        leader: whether this scheduler leads; None where that is not known.
        nodes: by name.
        pending: pods that are not bound, with where they stand now.
    """

    ready: bool
    stale: bool
    leader: bool | None
    nodes: tuple[NodeShot, ...]
    pending: tuple[PodShot, ...]


async def look(client: KubeClient) -> Snapshot:
    """What a scheduler would know, from one look at the API server.

    Raises:
        KubeError: the API server cannot be asked, or says no.
    """
    state = ClusterState(client)
    for reflector in state.reflectors:
        await reflector.list_once()
    return snapshot(state)


def snapshot(state: ClusterState, *, leader: bool | None = None) -> Snapshot:
    """What the ledger knows now.

    Args:
        state: the cluster as last seen.
        leader: whether this scheduler leads.
    """
    nodes = tuple(shot for name in _names(state) if (shot := _node(state, name)) is not None)
    return Snapshot(state.ready, state.stale, leader, nodes, _pending(state))


async def stream(state: ClusterState, *, leader: bool | None = None) -> AsyncIterator[bytes]:
    """`snapshot` as JSON, piece by piece, so that no filter waits for thousands of nodes; a node is exact in itself."""
    head = Snapshot(state.ready, state.stale, leader, (), _pending(state))
    before, after = msgspec.json.encode(head).split(b'"nodes":[]', 1)
    yield before + b'"nodes":['
    comma = b""
    for name in _names(state):
        shot = _node(state, name)
        if shot is not None:
            yield comma + msgspec.json.encode(shot)
            comma = b","
        await asyncio.sleep(0)
    yield b"]" + after


def _names(state: ClusterState) -> list[str]:
    return sorted({*state.ledger.nodes, *state.nodes, *state.inventories, *state.inventory_problems})


def _pending(state: ClusterState) -> tuple[PodShot, ...]:
    waiting = [p for p in state.pods.values() if not p.node and not p.finished and (p.ours or p.problem)]
    known: dict[object, str] = {}
    shots = []
    for pod in waiting:
        reason = pod.problem
        if pod.request is not None:
            if pod.request.shape not in known:
                known[pod.request.shape] = _why(state, pod.request)
            reason = known[pod.request.shape]
        shots.append(PodShot(pod.uid, pod.namespace, pod.name, reason))
    return tuple(sorted(shots, key=lambda p: (p.namespace, p.name)))


def _why(state: ClusterState, request: PodRequest) -> str:
    """One sentence on where a request stands now."""
    sweep = state.placement.sweep(request)
    columns = [e.column for e in state.ledger.nodes.values() if e.inventory is not None]
    fitting = sum(bool(sweep.fits[column]) for column in columns)
    if fitting:
        return f"fits on {fitting} of {len(columns)} nodes with devices; waits for kube-scheduler"
    return summary(sweep.unfit(columns).values() if columns else ())


def _node(state: ClusterState, name: str) -> NodeShot | None:
    """One node; None where there is nothing of ours."""
    entry, view = state.ledger.nodes.get(name), state.nodes.get(name)
    problem = state.inventory_problems.get(name, "")
    pods = list(entry.pods.values()) if entry is not None else []
    inventory = entry.inventory if entry is not None else None
    if inventory is None and not problem and not pods:
        return None
    closed = entry.closed_by if entry is not None else None
    return NodeShot(
        name=name,
        closed=closed.value if closed is not None else "",
        schedulable=view is not None and not view.unschedulable,
        problem=problem,
        vendor_problems=dict(sorted(inventory.problems.items())) if inventory is not None else {},
        capacity=dict(sorted(view.capacity.items())) if view is not None else {},
        devices=_devices(state, entry) if entry is not None else (),
        unknown=_titles(state, (p for p in pods if p.allocation is None)),
        holds=_titles(state, (p for p in pods if is_hold(p.uid))),
    )


def _titles(state: ClusterState, pods: Iterable[PlacedPod]) -> tuple[PodShot, ...]:
    shots = [PodShot(p.uid, p.namespace, p.name, state.unknown.get(p.uid, "")) for p in pods]
    return tuple(sorted(shots, key=lambda p: (p.namespace, p.name, p.uid)))


def _devices(state: ClusterState, entry: NodeEntry) -> tuple[DeviceShot, ...]:
    if entry.inventory is None:
        return ()
    ledger, shots = state.ledger, []
    pods = sorted(entry.pods.values(), key=lambda p: (p.namespace, p.name, p.uid))
    for device in sorted(entry.inventory.devices, key=lambda d: (d.index, d.id)):
        at = (entry.position[device.id], entry.column)

        def amount(dimension: str, at: tuple[int, int] = at) -> Amount:
            total = int(getattr(ledger, f"{dimension}_total")[at])
            return Amount(total, total - int(getattr(ledger, f"{dimension}_free")[at]))

        holders = []
        for pod in pods:
            use = entry.uses.get(pod.uid, {}).get(device.id)
            if use is not None:
                given = pod.allocation.containers if pod.allocation is not None else {}
                shares = {c: s for c, all_ in sorted(given.items()) for s in all_ if s.device == device.id}
                holders.append(Holder(pod.uid, pod.namespace, pod.name, use.memory, use.cores, use.slots, shares))
        shots.append(
            DeviceShot(
                id=device.id,
                index=device.index,
                vendor=device.vendor,
                model=device.model,
                healthy=device.healthy,
                reason=device.reason,
                memory=amount("memory"),
                cores=amount("cores"),
                slots=amount("slots"),
                pods=tuple(holders),
            )
        )
    return tuple(shots)
