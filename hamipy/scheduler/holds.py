"""Soft holds: a filtered pod keeps its best node's devices for a moment, until its bind comes.

Without them a burst of pods would be sent to the same best node and collide at `/bind`. A hold stands in the ledger
like a pod, so the next filter's sweep already sees it; it is dropped when nothing else fits, and it never refuses a
bind. kube-scheduler is free to bind elsewhere: then the hold just ends.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable

from hamipy.core.ledger import PlacedPod
from hamipy.core.model import Allocation, PodRequest, Unfit
from hamipy.core.placement import Placement
from hamipy.scheduler.stats import Stats

HOLD_SECONDS = 0.1
"""How long a filtered pod is expected at `/bind`; at 100 pods/s some ten holds stand at once."""

_PREFIX = "hold/"

NOMINATED = "nominated/"
"""Prefix of the uids of reservations in the ledger, see `nominations`."""


class Holds:
    """The soft holds of one ledger.

    Args:
        placement: questions to the ledger.
        stats: counts them.
        seconds: how long one lasts.
    """

    def __init__(self, placement: Placement, stats: Stats, *, seconds: float = HOLD_SECONDS) -> None:
        self._placement, self._ledger, self._stats = placement, placement.ledger, stats
        self.seconds = seconds
        self._nodes: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._expired: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def on_expire(self, callback: Callable[[str], None]) -> None:
        """Call back with the node's name when a hold ends without a bind."""
        self._expired.append(callback)

    @property
    def nodes(self) -> set[str]:
        """Names of the nodes with a hold."""
        return set(self._nodes.values())

    def node_of(self, uid: str) -> str | None:
        """Where the pod of this uid has a hold."""
        return self._nodes.get(uid)

    def place(self, request: PodRequest, node: str, *, seconds: float | None = None) -> bool:
        """Hold devices for a pod on a node; False when it does not fit beside the other holds."""
        self.drop(request.uid)
        allocation = self._placement.decide(request, node)
        if isinstance(allocation, Unfit):
            return False
        self._put(request, node, allocation)
        loop = asyncio.get_running_loop()
        self._timers[request.uid] = loop.call_later(
            self.seconds if seconds is None else seconds, self._expire, request.uid
        )
        self._stats.holds["placed"] += 1
        return True

    def drop(self, uid: str) -> None:
        """End a pod's hold, if it has one."""
        node = self._nodes.pop(uid, None)
        if node is None:
            return
        self._timers.pop(uid).cancel()
        self._lift(uid, node)

    def redeem(self, request: PodRequest, node: str, *, without: Collection[str] = ()) -> Allocation | Unfit:
        """End a pod's hold and choose its devices: the held ones where they are still there and nobody else's."""
        held = self._still_held(request, node)
        self.drop(request.uid)
        return held or self.decide(request, node, without=without)

    def _still_held(self, request: PodRequest, node: str) -> Allocation | None:
        """What the pod's hold on this node gives it; None when that has to be decided again."""
        ledger, uid = self._ledger, _PREFIX + request.uid
        entry, pod = ledger.nodes.get(node), ledger.find(uid)
        if entry is None or pod is None or (pod.node, pod.request) != (node, request):
            return None
        if entry.closed_by is not None or self._generations[request.uid] != ledger.generation:
            return None
        for device in entry.uses[uid]:  # the hold is counted there: below zero, somebody took its place
            at = entry.position[device], entry.column
            if min(ledger.memory_free[at], ledger.cores_free[at], ledger.slots_free[at]) < 0:
                return None
        return pod.allocation

    def decide(self, request: PodRequest, node: str, *, without: Collection[str] = ()) -> Allocation | Unfit:
        """Choose devices on a node beside the holds if that is possible, else in spite of them."""
        allocation = self._placement.decide(request, node, without=without)
        if isinstance(allocation, Unfit) and (held := self.on(node)):
            self._stats.holds["ignored"] += 1
            return self._placement.decide(request, node, without=[*held, *without])
        return allocation

    def fitting(self, request: PodRequest, nodes: Iterable[str]) -> list[str]:
        """Those of the held nodes among `nodes` that fit when the holds are ignored."""
        return [
            node
            for node in self.nodes.intersection(nodes)
            if not isinstance(self._placement.decide(request, node, without=self.on(node)), Unfit)
        ]

    def on(self, node: str) -> list[str]:
        """Uids under which the holds of a node stand in the ledger."""
        return [_PREFIX + uid for uid, at in self._nodes.items() if at == node]

    def _put(self, request: PodRequest, node: str, allocation: Allocation) -> None:
        self._nodes[request.uid] = node
        self._generations[request.uid] = self._ledger.generation
        kinds = {c.name: c.kind for c in request.containers}
        self._ledger.put(
            PlacedPod(_PREFIX + request.uid, request.namespace, request.name, node, kinds, allocation, request)
        )

    def _expire(self, uid: str) -> None:
        del self._timers[uid]
        self._stats.holds["expired"] += 1
        node = self._nodes.pop(uid)
        self._lift(uid, node)
        for callback in self._expired:
            callback(node)

    def _lift(self, uid: str, node: str) -> None:
        """Out of the ledger; no /filter or /bind refused because of a hold, so it is no change of the ledger."""
        known = node in self._ledger.freed
        self._generations.pop(uid, None)
        self._ledger.drop(_PREFIX + uid)
        if not known:
            self._ledger.freed.discard(node)


def is_hold(uid: str) -> bool:
    """Whether a uid in the ledger is no pod but a place kept for one, by a soft hold or a nomination."""
    return uid.startswith((_PREFIX, NOMINATED))
