"""The one fit: what a share needs of a device, what a pod uses of each over its life, and where its containers go.

The predicates take numbers or NumPy columns alike, so the ledger's sweep over all nodes, `/bind`, the simulator and
the node daemon's room check decide by the same code.

A pod's life is a row of steps: each plain init container runs in a step of its own, with the sidecars started before
it; in the last step all app containers run with all sidecars. What counts against a device is the peak over the
steps, in each dimension; so a device that a finished init container leaves is used again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from hamipy.core.model import CORES_PER_DEVICE, Allocation, ContainerKind, ContainerRequest, Device, PodRequest, Share
from hamipy.core.policies import utilisation

SEARCH_LIMIT = 1_000
"""Choices tried for one pod on one node in one order before a search gives up; a pod of one container needs one."""


NOMINAL = 64 * 2**30
"""Bytes of the device on which percentages and bytes are compared where no device is known yet."""


class Use(NamedTuple):
    """What is used of one device: bytes, percent, slots."""

    memory: int
    cores: int
    slots: int


class DeviceRoom(NamedTuple):
    """One device as the search sees it: its totals, and what other pods leave of it."""

    id: str
    memory_total: int
    cores_total: int
    slots_total: int
    memory: int
    cores: int
    slots: int


class SearchExhausted(Exception):
    """The search gave up at SEARCH_LIMIT without an answer."""


def has_room(memory_free: Any, cores_free: Any, slots_free: Any, need: Any) -> Any:
    """Whether a device with this much free takes `need` (memory, cores, slots); numbers or columns."""
    memory, cores, slots = need
    return (memory_free >= memory) & (cores_free >= cores) & (slots_free >= slots)


def need_of(container: ContainerRequest, memory_total: Any, slots_total: Any) -> tuple[Any, int, Any]:
    """What one device must have free for this container: (memory, cores, slots); numbers or columns.

    An exclusive share takes every slot, so it needs an empty device and leaves no room beside it.
    """
    slots = slots_total if container.exclusive else 1
    return container.memory_on(memory_total), container.cores, slots


def steps_of(kinds: Sequence[ContainerKind]) -> tuple[list[range], int]:
    """The steps in which each container runs, and how many steps there are.

    Args:
        kinds: of the pod's containers, init containers in their order, then app containers.
    """
    last = sum(kind is ContainerKind.INIT for kind in kinds)
    spans, at = [], 0
    for kind in kinds:
        if kind is ContainerKind.INIT:
            spans.append(range(at, at + 1))
            at += 1
        elif kind is ContainerKind.SIDECAR:
            spans.append(range(at, last + 1))
        else:
            spans.append(range(last, last + 1))
    return spans, last + 1


def peak_use(
    allocation: Allocation, kinds: Mapping[str, ContainerKind], slots_of: Callable[[str], int]
) -> dict[str, Use]:
    """What a pod uses of each device: the peak over its steps.

    Args:
        allocation: the pod's shares.
        kinds: kind of each container in pod order; a container that is not named is taken for an app container.
        slots_of: slots of a device, by id; an exclusive share takes them all.
    """
    order = [c for c in kinds if c in allocation.containers] + [c for c in allocation.containers if c not in kinds]
    spans, count = steps_of([kinds.get(c, ContainerKind.APP) for c in order])
    steps: dict[str, list[list[int]]] = {}
    for container, span in zip(order, spans, strict=True):
        for share in allocation.containers[container]:
            slots = slots_of(share.device) if share.cores == CORES_PER_DEVICE else 1
            of_device = steps.setdefault(share.device, [[0, 0, 0] for _ in range(count)])
            for step in span:
                of_device[step][0] += share.memory
                of_device[step][1] += share.cores
                of_device[step][2] += slots
    return {device: Use(*map(max, zip(*by_step, strict=True))) for device, by_step in steps.items()}


def overcommitted(devices: Iterable[Device], uses: Iterable[Mapping[str, Use]]) -> list[str]:
    """Ids of the devices on which the pods' uses are more than there is; devices that are not listed count as none.

    Args:
        devices: the node's devices.
        uses: `peak_use` of each pod.
    """
    total: dict[str, list[int]] = {}
    for use in uses:
        for device, amounts in use.items():
            sums = total.setdefault(device, [0, 0, 0])
            for dimension, amount in enumerate(amounts):
                sums[dimension] += amount
    have = {d.id: d for d in devices}
    return sorted(
        device
        for device, used in total.items()
        if (d := have.get(device)) is None or not has_room(d.memory, d.cores, d.slots, used)
    )


class Packing(IntEnum):
    """How to pick devices where only finding a way counts; no single one finds all."""

    TIGHTEST = 1
    """The least memory free first: keeps room for a large container."""
    ROOMIEST = -1
    """The most memory free first: keeps many devices usable for a container that wants several."""


def largest_first(containers: Sequence[ContainerRequest]) -> list[int]:
    """Positions of the containers, the hardest to place first: by memory (on a device of NOMINAL bytes), compute."""

    def size(at: int) -> tuple[int, int, int]:
        return -containers[at].memory_on(NOMINAL), -containers[at].cores, at

    return sorted(range(len(containers)), key=size)


class _Search:
    """Depth-first over the containers; each tries sets of devices in order, equal devices and equal states once.

    Args:
        order: device policy, for containers in pod order; or a way to pack, for the largest container first
            (`core.joint` goes the same first way on all nodes at once).
    """

    def __init__(
        self, devices: Sequence[DeviceRoom], request: PodRequest, order: "Callable[[float], float] | Packing"
    ) -> None:
        self.devices, self.containers, self.order = devices, request.containers, order
        packing = isinstance(order, Packing)
        self.sequence = largest_first(self.containers) if packing else list(range(len(self.containers)))
        self.spans, steps = steps_of([c.kind for c in request.containers])
        self.used = [[[0, 0, 0] for _ in range(steps)] for _ in devices]
        self.chosen: dict[int, tuple[int, ...]] = {}
        self.failed: set[tuple[object, ...]] = set()
        self.tried = 0
        self.found = False

    def run(self) -> bool:
        if len(self.chosen) == len(self.sequence):
            return True
        at = self.sequence[len(self.chosen)]
        container = self.containers[at]
        candidates = [d for d in range(len(self.devices)) if self._fits(d, at)]
        if len(candidates) < container.count:
            return False
        # What the rest of the pod can do depends on the devices' states alone, not on how they came to be.
        state: tuple[object, ...] = ()
        if len(self.sequence) > 1:
            state = (at, *sorted((self.devices[d][1:], self._used(d)) for d in range(len(self.devices))))
            if state in self.failed:
                return False
        candidates.sort(key=lambda d: self._preference(d, at))
        if self._pick(container, at, candidates, 0, []):
            return True
        self.failed.add(state)
        return False

    def _used(self, device: int) -> tuple[tuple[int, ...], ...]:
        return tuple(map(tuple, self.used[device]))

    def _pick(self, container: ContainerRequest, at: int, candidates: list[int], start: int, picked: list[int]) -> bool:
        if len(picked) == container.count:
            self.tried += 1
            if self.tried > SEARCH_LIMIT:
                raise SearchExhausted
            self._add(at, picked, 1)
            self.chosen[at] = tuple(picked)
            if self.run():
                return True
            del self.chosen[at]
            self._add(at, picked, -1)
            return False
        refused: set[tuple[object, ...]] = set()
        for position in range(start, len(candidates) - (container.count - len(picked)) + 1):
            device = candidates[position]
            alike = (self.devices[device][1:], self._used(device))
            if alike in refused:
                continue
            if self._pick(container, at, candidates, position + 1, [*picked, device]):
                return True
            refused.add(alike)
        return False

    def _need(self, device: int, at: int) -> tuple[int, int, int]:
        room = self.devices[device]
        return need_of(self.containers[at], room.memory_total, room.slots_total)

    def _fits(self, device: int, at: int) -> bool:
        room, need = self.devices[device], self._need(device, at)
        return all(
            has_room(room.memory - memory, room.cores - cores, room.slots - slots, need)
            for memory, cores, slots in (self.used[device][step] for step in self.spans[at])
        )

    def _preference(self, device: int, at: int) -> tuple[int, float, int]:
        """Most reuse of what the pod's other steps leave first, then the policy on what it would find, then index."""
        room, used = self.devices[device], self.used[device]
        if isinstance(self.order, Packing):
            return self.order * (room.memory - max(used[step][0] for step in self.spans[at])), 0, device
        need = self._need(device, at)[0]
        before = max(memory for memory, _, _ in used)
        during = max(used[step][0] for step in self.spans[at])
        fresh = max(before, during + need) - before - need
        busiest = [max(used[step][dimension] for step in self.spans[at]) for dimension in (0, 1)]
        full = utilisation(
            room.memory_total - room.memory + busiest[0],
            room.memory_total or 1,
            room.cores_total - room.cores + busiest[1],
            room.cores_total or 1,
        )
        return fresh, self.order(full), device

    def _add(self, at: int, picked: list[int], sign: int) -> None:
        for device in picked:
            need = self._need(device, at)
            for step in self.spans[at]:
                for dimension in range(3):
                    self.used[device][step][dimension] += sign * need[dimension]


def place(devices: Sequence[DeviceRoom], request: PodRequest, order: Callable[[float], float]) -> Allocation | None:
    """Choose devices for every container of a pod on one node; None when there is no way.

    Exact: if any assignment fits, one is found (up to SEARCH_LIMIT). The same input gives the same answer.

    Args:
        devices: the node's usable devices in index order, with what other pods leave of them.
        request: the pod.
        order: device policy, see `policies.DEVICE_POLICIES`.

    Raises:
        SearchExhausted: neither found nor ruled out within SEARCH_LIMIT.
    """
    # Any way is better than none, and whatever `fits_together` finds must be found here too.
    search = _first_answer(_Search(devices, request, by) for by in (order, *Packing))
    if not search.found:
        return None
    return Allocation(
        {
            container.name: tuple(
                Share(devices[d].id, container.memory_on(devices[d].memory_total), container.cores, container.partition)
                for d in sorted(search.chosen[at])
            )
            for at, container in enumerate(request.containers)
        }
    )


def fits_together(devices: Sequence[DeviceRoom], request: PodRequest) -> tuple[bool, int]:
    """Whether `place` finds devices for every container, and how many choices were tried to know.

    False as well when neither found nor ruled out within SEARCH_LIMIT.
    """
    searches = [_Search(devices, request, by) for by in Packing]
    try:
        found = _first_answer(searches).found
    except SearchExhausted:
        found = False
    return found, sum(search.tried for search in searches)


def _first_answer(searches: Iterable[_Search]) -> _Search:
    for search in searches:
        try:
            search.found = search.run()
        except SearchExhausted:
            continue
        return search
    raise SearchExhausted
