"""Wake-ups: a refused pod that fits now is requeued by changing one annotation on it.

kube-scheduler retries a refused pod on events of its own watch only. That watch may be ahead of ours, so the retry
may have come before our ledger knew of the room; and it sees nothing of a device that is well again. So refusals are
remembered, and when a change of the ledger makes one fit, the active scheduler patches `hamipy.io/retry`.

What keeps this from becoming a storm: a pod is woken at most once for one change of one node; only as many pods are
woken as would fit, in order of priority and age, each with a hold on its place; a pod that was woken in vain several
times waits longer and longer; and patches have a bounded rate. Nothing of that loses a wake-up, it only comes later.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hamipy.core.model import PodRequest
from hamipy.core.names import RETRY
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import ApiError, Conflict, Invalid, KubeError, NotFound, ServerError, TooManyRequests
from hamipy.scheduler.holds import Holds
from hamipy.scheduler.leadership import Leadership
from hamipy.scheduler.nominations import Nominations
from hamipy.scheduler.pods import PodView
from hamipy.scheduler.state import ClusterState
from hamipy.scheduler.stats import Stats

logger = logging.getLogger(__name__)

DEBOUNCE = 0.01
"""Seconds from a change to the look at the refused pods: one deletion is often the first of many."""

RATE, BURST = 100.0, 100
"""Patches a second on average, and at once: about what kube-scheduler schedules."""

WOKEN_HOLD = 1.0
"""Seconds for which a woken pod's place is held: from the patch to its /filter it takes 10 ms, more under load."""

PATIENCE = 3
"""Wake-ups in vain after which the next one is delayed, by 1 s at first and doubled up to MAX_DELAY."""

MAX_DELAY = 60.0

NOT_LEADING = 1.0
"""Seconds after which a process that does not lead looks again: it may be the leader whose Lease is late. (After a
real take-over the other kube-scheduler tries every pending pod anew.)"""

SAMPLE = 100
"""kube-scheduler never stops filtering before it has this many nodes (minFeasibleNodesToFind): fewer names are all."""

_MAX_REFUSED = 50_000
_TRIES = 4
_SLICE = 0.004
_NO_SCORES: NDArray[np.int64] = np.zeros(0, np.int64)


class _Refusal(Struct):
    """One refused pod.

    Attributes:
        view: the pod.
        woken_for: node name -> its change for which the pod was woken.
        shown: bit mask of the columns that kube-scheduler has offered, while it shows samples.
        wakes: in vain, so far.
        not_before: monotonic time before which it is not woken.
    """

    view: PodView
    woken_for: dict[str, int] = {}
    shown: int = 0
    wakes: int = 0
    not_before: float = 0.0


class Wakeups:
    """Remembers refused pods and wakes them.

    Args:
        client: the API server.
        state: the ledger, whose `freed` is read and cleared here.
        leadership: only the leader wakes.
        holds: places of woken pods.
        nominations: reservations.
        stats: counters.
        debounce: see DEBOUNCE.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        leadership: Leadership,
        holds: Holds,
        nominations: Nominations,
        stats: Stats,
        *,
        debounce: float = DEBOUNCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._state, self._leadership = client, state, leadership
        self._holds, self._nominations, self._stats = holds, nominations, stats
        self.debounce, self._clock = debounce, clock
        self._refused: OrderedDict[str, _Refusal] = OrderedDict()
        self._change: dict[str, int] = {}
        self._changes = 0
        self._nodes: set[str] = set()
        self._wanted = asyncio.Event()
        self._tokens, self._filled = float(BURST), clock()
        self._patches: set[asyncio.Task[None]] = set()
        state.on_change(self._nodes_changed)
        state.on_pod(self._pod_changed)
        holds.on_expire(self._look_at)

    def __len__(self) -> int:
        """How many pods are refused at present."""
        return len(self._refused)

    # -- what happens ------------------------------------------------------------------------------------------------

    def remember(
        self, view: PodView, fits: NDArray[np.bool_] | None = None, shown: NDArray[np.int64] | None = None
    ) -> None:
        """A pod was refused, at /filter (with the nodes that would fit and the columns offered) or at /bind."""
        if view.uid in self._state.deleted or view.request is None:
            return
        refusal = self._refused.get(view.uid)
        if refusal is None:
            refusal = self._refused[view.uid] = _Refusal(view, woken_for={})
            if len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)
        refusal.view = view
        if fits is not None and shown is not None and len(shown) >= SAMPLE and fits.any():
            self._outside_sample(refusal, fits, shown)

    def forget(self, uid: str) -> None:
        """A pod fits again, is bound or gone."""
        self._refused.pop(uid, None)

    def _outside_sample(self, refusal: _Refusal, fits: NDArray[np.bool_], shown: NDArray[np.int64]) -> None:
        """Wake at once a pod that fits on a node which kube-scheduler did not offer, while it offers new ones.

        The next attempt goes on where this one stopped. Nodes that are never offered (tainted, without CPU) end it,
        for then nothing new is shown.
        """
        mask = np.zeros(len(fits), np.bool_)
        mask[shown[shown >= 0]] = True
        offered = int.from_bytes(np.packbits(mask).tobytes(), "big")
        fresh = offered & ~refusal.shown
        refusal.shown |= offered
        if fresh:
            refusal.wakes, refusal.not_before = 0, 0.0
            ledger = self._state.ledger
            outside = [ledger.names[c] for c in np.flatnonzero(fits & ~mask).tolist()]
            for node in outside:
                refusal.woken_for.pop(node, None)
                self._look_at(node)

    def _pod_changed(self, uid: str, view: PodView | None) -> None:
        refusal = self._refused.get(uid)
        if refusal is None:
            return
        if view is None or view.node or view.terminating or view.finished or view.request is None:
            del self._refused[uid]
        else:
            refusal.view = view

    def _nodes_changed(self, _: set[str]) -> None:
        ledger = self._state.ledger
        if not ledger.freed:
            return
        freed, ledger.freed = ledger.freed, set()
        if self._refused:
            self._changes += 1
            for node in freed:
                self._change[node] = self._changes
                self._look_at(node)

    def _look_at(self, node: str) -> None:
        """Look at this node again soon; its number of changes says for whom that is news."""
        if self._refused:
            self._nodes.add(node)
            self._wanted.set()

    # -- looking -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Wake pods until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                await asyncio.sleep(self.debounce)
                self._wanted.clear()
                nodes, self._nodes = self._nodes, set()
                wait = 0.0
                if self._refused and nodes:
                    self._stats.wakeup_rounds += 1
                    wait = await self._look(nodes) if self._leadership.is_leader else NOT_LEADING
                if wait > 0:
                    self._nodes |= nodes
                    asyncio.get_running_loop().call_later(wait, self._wanted.set)
                if not self._refused:
                    self._change.clear()
        finally:
            for patch in self._patches:
                patch.cancel()

    async def _look(self, nodes: set[str]) -> float:
        """Wake who fits on these nodes; returns seconds after which to look again, 0 if nobody had to wait."""
        order = sorted(self._refused.values(), key=lambda r: (-r.view.priority, r.view.created, r.view.uid))
        places: dict[tuple[object, ...], list[str]] = {}
        began, wait = time.perf_counter(), 0.0
        for refusal in order:
            request = refusal.view.request
            if request is None or self._refused.get(request.uid) is not refusal:
                continue
            if self._holds.node_of(request.uid) is not None:  # woken a moment ago, on its way
                wait = min(wait or WOKEN_HOLD, WOKEN_HOLD)
                continue
            late = refusal.not_before - self._clock()
            if late > 0:
                wait = min(wait or late, late)
                continue
            with self._nominations.lifted_for(request):
                node = self._place(refusal, request, nodes, places)
            if node is not None:
                if self._tokens_left() < 1:
                    self._holds.drop(request.uid)
                    return 1 / RATE
                self._wake(refusal, node)
            if time.perf_counter() - began > _SLICE:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return wait

    def _place(
        self, refusal: _Refusal, request: PodRequest, nodes: set[str], places: dict[tuple[object, ...], list[str]]
    ) -> str | None:
        """Hold a place for a pod on one of these nodes whose last change is news for it."""
        shape = (*request.shape, request.priority if len(self._nominations) else 0)
        left = places.get(shape)
        if left is None:
            left = places[shape] = self._candidates(request, nodes)
        full = []
        found = None
        for node in left:
            if refusal.woken_for.get(node, -1) >= self._change.get(node, 0):
                continue
            if self._holds.place(request, node, seconds=WOKEN_HOLD):
                found = node
                break
            full.append(node)
        for node in full:
            left.remove(node)
        return found

    def _candidates(self, request: PodRequest, nodes: set[str]) -> list[str]:
        """The nodes that may take pods of this shape, best first."""
        ledger = self._state.ledger
        entries = [e for n in nodes if (e := ledger.nodes.get(n)) and e.schedulable and e.closed_by is None]
        if len(entries) > 1:
            sweep = self._state.placement.sweep(request)
            entries = [e for e in entries if sweep.fits[e.column]]
            scores = sweep.score if entries else _NO_SCORES
            entries.sort(key=lambda e: (-int(scores[e.column]), e.column))
        return [e.name for e in entries]

    def _tokens_left(self) -> float:
        now = self._clock()
        self._tokens, self._filled = min(BURST, self._tokens + (now - self._filled) * RATE), now
        return self._tokens

    # -- waking ------------------------------------------------------------------------------------------------------

    def _wake(self, refusal: _Refusal, node: str) -> None:
        self._tokens -= 1
        refusal.woken_for[node] = self._change.get(node, 0)
        refusal.wakes += 1
        if refusal.wakes >= PATIENCE:
            refusal.not_before = self._clock() + min(2.0 ** (refusal.wakes - PATIENCE), MAX_DELAY)
        patch = asyncio.create_task(
            self._patch(refusal, node), name=f"wake {refusal.view.namespace}/{refusal.view.name}"
        )
        self._patches.add(patch)
        patch.add_done_callback(self._patches.discard)

    async def _patch(self, refusal: _Refusal, node: str) -> None:
        view = refusal.view
        path = f"/api/v1/namespaces/{view.namespace}/pods/{view.name}"
        body = {"metadata": {"uid": view.uid, "annotations": {RETRY: str(time.time_ns())}}}
        for attempt in range(_TRIES):
            if self._refused.get(view.uid) is not refusal or not self._leadership.is_leader:
                return  # bound, gone or on its way already
            try:
                await self._client.merge_patch(path, body, timeout=self._leadership.bind_deadline)
            except (NotFound, Conflict, Invalid) as error:  # 422: the name belongs to another uid now
                logger.info("%s/%s is not woken: %s", view.namespace, view.name, error)
                self._stats.wakeups["gone"] += 1
                self.forget(view.uid)
                self._holds.drop(view.uid)
                return
            except KubeError as error:
                logger.info("cannot wake %s/%s: %s", view.namespace, view.name, error)
                if isinstance(error, ApiError) and not isinstance(error, ServerError | TooManyRequests):
                    break
                await asyncio.sleep(self.debounce * 10 * 2**attempt)
            else:
                self._stats.wakeups["sent"] += 1
                logger.debug("woke %s/%s: fits on %s", view.namespace, view.name, node)
                return
        self._stats.wakeups["failed"] += 1
        refusal.woken_for.pop(node, None)
