"""What is free, cluster-wide: NumPy columns over all devices, changed by events and never rebuilt for a request.

Columns are (K, N): K device positions, N nodes, so that one filter over every node is a handful of vector operations.
Events are inventories, node states, pods bound and pods gone. One thread uses a ledger; nothing here waits.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hamipy.core.fit import DeviceRoom, Use, peak_use
from hamipy.core.model import Allocation, ContainerKind, Device, Inventory, Limit, PodRequest

Columns = NDArray[np.int64]
Mask = NDArray[np.bool_]

_AMOUNTS = ("memory_total", "memory_free", "cores_total", "cores_free", "slots_total", "slots_free")


class Kind(NamedTuple):
    """What constraints look at, the same for many devices."""

    vendor: str
    model: str
    isolation: tuple[str, ...]

    @classmethod
    def of(cls, device: Device) -> "Kind":
        """The kind of a device."""
        return cls(device.vendor, device.model, device.isolation)


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod that holds, or is about to hold, shares on a node.

    Attributes:
        allocation: its shares; None for a pod that uses our names without one (unknown): it may sit on any device,
            so it is counted against every device of its node.
        kinds: kind of each of its device containers, in pod order.
        request: what it asked for, where known.
    """

    uid: str
    namespace: str
    name: str
    node: str
    kinds: dict[str, ContainerKind]
    allocation: Allocation | None
    request: PodRequest | None = None


@dataclass(slots=True)
class NodeEntry:
    """One node: its column, what it published, and who is on it."""

    name: str
    column: int
    inventory: Inventory | None = None
    position: dict[str, int] = field(default_factory=dict)
    pods: dict[str, PlacedPod] = field(default_factory=dict)
    uses: dict[str, dict[str, Use]] = field(default_factory=dict)
    attached: bool = False
    kubelet_resource: bool = False
    schedulable: bool = True

    @property
    def closed_by(self) -> Limit | None:
        """Why nothing is bound here at present, or None."""
        if self.inventory is None or not self.attached:
            return Limit.NODE
        if not self.inventory.serving or not self.kubelet_resource:
            return Limit.SERVING
        return None


class Ledger:
    """The cluster's devices and what is left of them.

    Attributes:
        nodes: by name.
        generation: grows with every change of the set of devices or of what they are (not of what is free).
        freed: names of nodes on which something may fit that did not before; the reader clears it.
        memory_total, memory_free, cores_total, cores_free, slots_total, slots_free: (K, N) bytes, percent, counts.
        kind: (K, N) code of the device's kind, -1 where there is none.
        present, healthy: (K, N) masks.
        is_open: (N,) whether anything is bound on the node at present.
        names: node name by column, empty where the column is spare.
    """

    memory_total: Columns
    memory_free: Columns
    cores_total: Columns
    cores_free: Columns
    slots_total: Columns
    slots_free: Columns
    kind: Columns
    present: Mask
    healthy: Mask

    def __init__(self) -> None:
        self.nodes: dict[str, NodeEntry] = {}
        self.names: list[str] = []
        self.generation = 0
        self.freed: set[str] = set()
        self._spare: list[int] = []
        self._where: dict[str, str] = {}
        self._kinds: dict[Kind, int] = {}
        self.is_open: Mask = np.zeros(0, np.bool_)
        self._resize(4, 64)

    # -- columns ---------------------------------------------------------------------------------------------------

    def _resize(self, positions: int, nodes: int) -> None:
        """Give the columns room for this many positions and nodes, keeping what they hold."""
        shapes = dict.fromkeys(_AMOUNTS, (np.int64, 0)) | {
            "kind": (np.int64, -1),
            "present": (np.bool_, 0),
            "healthy": (np.bool_, 0),
        }
        for name, (dtype, empty) in shapes.items():
            new: NDArray[Any] = np.full((positions, nodes), empty, dtype)
            old = getattr(self, name, new[:0, :0])
            new[: old.shape[0], : old.shape[1]] = old
            setattr(self, name, new)
        is_open = np.zeros(nodes, np.bool_)
        is_open[: len(self.is_open)] = self.is_open
        self.is_open = is_open

    @property
    def width(self) -> int:
        """Number of node columns in use or spare; valid columns are below it."""
        return len(self.names)

    def _entry(self, name: str) -> NodeEntry:
        entry = self.nodes.get(name)
        if entry is None:
            if self._spare:
                column = self._spare.pop()
                self.names[column] = name
            else:
                column = len(self.names)
                self.names.append(name)
                if column >= self.is_open.shape[0]:
                    self._resize(self.present.shape[0], 2 * self.is_open.shape[0])
            entry = self.nodes[name] = NodeEntry(name, column)
        return entry

    def _discard_if_empty(self, entry: NodeEntry) -> None:
        if entry.inventory is None and not entry.attached and not entry.pods:
            self._clear(entry.column)
            del self.nodes[entry.name]
            self.names[entry.column] = ""
            self._spare.append(entry.column)

    def _clear(self, column: int) -> None:
        for name in _AMOUNTS:
            getattr(self, name)[:, column] = 0
        self.kind[:, column] = -1
        self.present[:, column] = self.healthy[:, column] = False
        self.is_open[column] = False

    @property
    def kinds(self) -> Mapping[Kind, int]:
        """Code of every device kind seen; constraints are matched once for each kind."""
        return self._kinds

    # -- events ----------------------------------------------------------------------------------------------------

    def set_inventory(self, inventory: Inventory) -> None:
        """A node published (or changed) its inventory; its pods keep what they hold."""
        entry = self._entry(inventory.node)
        if entry.inventory == inventory:
            return
        entry.inventory = inventory
        self.generation += 1
        self._recount(entry)

    def remove_inventory(self, node: str) -> None:
        """A node's inventory is gone; its pods are remembered for when it comes back."""
        entry = self.nodes.get(node)
        if entry is None or entry.inventory is None:
            return
        entry.inventory = None
        self.generation += 1
        self._recount(entry)
        self._discard_if_empty(entry)

    def set_node(self, node: str, *, kubelet_resource: bool, schedulable: bool = True) -> None:
        """The Node object says whether the kubelet offers our resource now and whether the node is cordoned."""
        entry = self._entry(node)
        if entry.attached and (entry.kubelet_resource, entry.schedulable) == (kubelet_resource, schedulable):
            return
        better = not entry.attached or (kubelet_resource, schedulable) > (entry.kubelet_resource, entry.schedulable)
        entry.attached, entry.kubelet_resource, entry.schedulable = True, kubelet_resource, schedulable
        self._reopen(entry)
        if better or schedulable:
            self.freed.add(node)

    def remove_node(self, node: str) -> None:
        """The Node object is gone; nothing is bound there until it is back."""
        entry = self.nodes.get(node)
        if entry is None:
            return
        entry.attached = entry.kubelet_resource = False
        self._reopen(entry)
        self._discard_if_empty(entry)

    def put(self, pod: PlacedPod) -> None:
        """A pod holds shares (assumed or confirmed); replaces what was known of the same uid."""
        before = self.find(pod.uid)
        if before == pod:
            return
        if before is not None:
            self.drop(pod.uid)
        entry = self._entry(pod.node)
        entry.pods[pod.uid] = pod
        self._where[pod.uid] = pod.node
        self._charge(entry, pod, sign=1)

    def drop(self, uid: str) -> None:
        """A pod is gone, finished or was never bound: what it held is free."""
        node = self._where.pop(uid, None)
        if node is None:
            return
        entry = self.nodes[node]
        self._charge(entry, entry.pods.pop(uid), sign=-1)
        self.freed.add(node)
        self._discard_if_empty(entry)

    def find(self, uid: str) -> PlacedPod | None:
        """The pod of this uid, if it holds anything."""
        node = self._where.get(uid)
        return None if node is None else self.nodes[node].pods[uid]

    # -- bookkeeping -----------------------------------------------------------------------------------------------

    def _reopen(self, entry: NodeEntry) -> None:
        before = bool(self.is_open[entry.column])
        self.is_open[entry.column] = now = entry.closed_by is None
        if now and not before:
            self.freed.add(entry.name)

    def _recount(self, entry: NodeEntry) -> None:
        """Set one node's column from its inventory and its pods."""
        devices = entry.inventory.devices if entry.inventory else ()
        if len(devices) > self.present.shape[0]:
            self._resize(max(len(devices), 2 * self.present.shape[0]), self.is_open.shape[0])
        column = entry.column
        self._clear(column)
        entry.position = {}
        for position, device in enumerate(sorted(devices, key=lambda d: (d.index, d.id))):
            entry.position[device.id] = position
            self.memory_total[position, column] = self.memory_free[position, column] = device.memory
            self.cores_total[position, column] = self.cores_free[position, column] = device.cores
            self.slots_total[position, column] = self.slots_free[position, column] = device.slots
            self.kind[position, column] = self._kinds.setdefault(Kind.of(device), len(self._kinds))
            self.present[position, column] = True
            self.healthy[position, column] = device.healthy
        entry.uses.clear()
        for pod in entry.pods.values():
            self._charge(entry, pod, sign=1)
        self._reopen(entry)
        self.freed.add(entry.name)

    def _charge(self, entry: NodeEntry, pod: PlacedPod, *, sign: int) -> None:
        if sign < 0:
            uses = entry.uses.pop(pod.uid, {})
        else:
            uses = entry.uses[pod.uid] = self.uses_of(entry, pod)
        for device, use in uses.items():
            position = entry.position.get(device)
            if position is not None:
                at = (position, entry.column)
                self.memory_free[at] -= sign * use.memory
                self.cores_free[at] -= sign * use.cores
                self.slots_free[at] -= sign * use.slots

    def uses_of(self, entry: NodeEntry, pod: PlacedPod) -> dict[str, Use]:
        """What a pod uses of each device of its node.

        An unknown pod may sit on any of them: what it asks for is counted against each, and where that cannot be read
        either, nothing is left.
        """

        def slots_of(device: str) -> int:
            position = entry.position.get(device)
            return 1 if position is None else int(self.slots_total[position, entry.column])

        if pod.allocation is not None:
            return peak_use(pod.allocation, pod.kinds, slots_of)
        uses = {}
        for device, position in entry.position.items():
            total, slots = int(self.memory_total[position, entry.column]), slots_of(device)
            if pod.request is None:
                uses[device] = Use(total, int(self.cores_total[position, entry.column]), slots)
                continue
            asked = pod.request.containers
            uses[device] = Use(
                sum(c.memory_on(total) for c in asked),
                sum(c.cores for c in asked),
                sum(slots if c.exclusive else 1 for c in asked),
            )
        return uses

    # -- one node --------------------------------------------------------------------------------------------------

    def rooms(self, entry: NodeEntry, eligible: Mask, *, without: Collection[str] = ()) -> list[DeviceRoom]:
        """The devices of one node as the search sees them, in index order.

        Args:
            entry: the node.
            eligible: (K,) mask of the positions that may be used.
            without: uids of pods whose shares count as free.
        """
        back: dict[str, list[int]] = {}
        for uid in without:
            for device, use in entry.uses.get(uid, {}).items():
                sums = back.setdefault(device, [0, 0, 0])
                for dimension, amount in enumerate(use):
                    sums[dimension] += amount
        column = entry.column
        rooms = []
        for device, position in entry.position.items():
            if eligible[position]:
                memory, cores, slots = back.get(device, (0, 0, 0))
                rooms.append(
                    DeviceRoom(
                        device,
                        int(self.memory_total[position, column]),
                        int(self.cores_total[position, column]),
                        int(self.slots_total[position, column]),
                        int(self.memory_free[position, column]) + memory,
                        int(self.cores_free[position, column]) + cores,
                        int(self.slots_free[position, column]) + slots,
                    )
                )
        return rooms
