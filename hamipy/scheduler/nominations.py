"""Nominated pods: what kube-scheduler evicted for is reserved for the pod it evicted for.

A pod with `status.nominatedNodeName` stands in the ledger like a pod, so pods of lower priority do not see its devices
as free; as in kube-scheduler, pods of higher priority look through it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from hamipy.core.ledger import PlacedPod
from hamipy.core.model import PodRequest, Unfit
from hamipy.scheduler.holds import NOMINATED, Holds
from hamipy.scheduler.pods import PodView, placed
from hamipy.scheduler.state import ClusterState


class Nominations:
    """The reservations of nominated pods.

    Args:
        state: the ledger and the pods.
        holds: soft holds, which a reservation does not respect.
    """

    def __init__(self, state: ClusterState, holds: Holds) -> None:
        self._state, self._holds = state, holds
        self._wanted: dict[str, PodView] = {}
        self._placed: dict[str, PlacedPod] = {}
        state.on_pod(self._pod_changed)
        state.on_change(self._nodes_changed)

    def __len__(self) -> int:
        return len(self._placed)

    def ignored_by(self, request: PodRequest) -> list[str]:
        """Uids under which reservations stand in the ledger that do not bind this pod: its own, and lower ones."""
        return [held.uid for uid, held in self._placed.items() if _yields(uid, held, request)]

    @contextmanager
    def lifted_for(self, request: PodRequest) -> Iterator[None]:
        """Take the reservations that do not bind this pod out of the ledger for a moment (no await inside)."""
        ledger = self._state.ledger
        lifted = [self._placed[uid] for uid, held in self._placed.items() if _yields(uid, held, request)]
        if not lifted:
            yield
            return
        freed = set(ledger.freed)
        for held in lifted:
            ledger.drop(held.uid)
        try:
            yield
        finally:
            for held in lifted:
                ledger.put(held)
            ledger.freed = freed

    def drop(self, uid: str) -> None:
        """End a pod's reservation until something changes on its node: it is being bound."""
        held = self._placed.pop(uid, None)
        if held is not None:
            self._state.ledger.drop(held.uid)
            self._state.touch(held.node)

    def _pod_changed(self, uid: str, view: PodView | None) -> None:
        before = self._wanted.pop(uid, None)
        if view is not None and view.nominated and not (view.node or view.terminating or view.finished):
            self._wanted[uid] = view
            if before is None or before.nominated != view.nominated or uid not in self._placed:
                self.drop(uid)
                self._place(view)
        elif before is not None:
            self.drop(uid)

    def _nodes_changed(self, nodes: set[str]) -> None:
        for uid, view in self._wanted.items():
            if uid not in self._placed and view.nominated in nodes:
                self._place(view)

    def _place(self, view: PodView) -> None:
        """Reserve devices as if the pods that are on their way out were gone; without room, wait for a change."""
        request, node, ledger = view.request, view.nominated, self._state.ledger
        if request is None or ledger.find(view.uid) is not None:
            return
        without = [*self._state.terminating_on(node), *self._holds.on(node), *self.ignored_by(request)]
        allocation = self._state.placement.decide(request, node, without=without)
        if not isinstance(allocation, Unfit):
            whole = placed(view, allocation, node)
            held = PlacedPod(
                NOMINATED + view.uid, whole.namespace, whole.name, node, whole.kinds, allocation, whole.request
            )
            self._placed[view.uid] = held
            ledger.put(held)


def _yields(uid: str, held: PlacedPod, request: PodRequest) -> bool:
    return uid == request.uid or held.request is None or held.request.priority < request.priority
