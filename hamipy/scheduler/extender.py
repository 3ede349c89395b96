"""kube-scheduler's extender: /filter, /prioritize, /preempt and /bind from raw body to raw answer.

A refusal that kube-scheduler should show is a 200 with `Error`; where the answer has no such field it is a 4xx or 503.
"""

import time
from collections import OrderedDict
from itertools import compress

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from hamipy.core.explain import sentence
from hamipy.core.model import Limit, PodRequest, Unfit
from hamipy.core.placement import Sweep
from hamipy.core.policies import SCORE_MAX
from hamipy.scheduler.binder import Binder
from hamipy.scheduler.holds import Holds
from hamipy.scheduler.nominations import Nominations
from hamipy.scheduler.pods import PodView
from hamipy.scheduler.preemption import veto
from hamipy.scheduler.state import ClusterState
from hamipy.scheduler.stats import Stats
from hamipy.scheduler.wakeups import Wakeups
from hamipy.scheduler.wire import (
    BadBody,
    BindingResult,
    ExtenderArgs,
    FilterResult,
    PreemptionResult,
    Reply,
    encode,
    read_args,
    read_binding,
    read_names,
    read_preemption,
)

BEST_BONUS = SCORE_MAX // 100
"""Added to the score of the held node, so that kube-scheduler picks it among equals: 100 of its own points at weight
1, more than its balancing plugins differ by, less than an author's preferred affinity (200)."""

_KEPT_SCORES = 32

_NOT_READY = "the ledger is not in step with the API server yet"

_UNKNOWN_NODE = sentence(Unfit(Limit.NODE))


class _Nodes:
    """The nodes asked about, as columns of the ledger; -1 where it does not know the name."""

    __slots__ = ("columns", "names", "objects", "raw")

    def __init__(self, args: ExtenderArgs, state: ClusterState) -> None:
        self.names, self.objects = read_names(args)
        self.raw = args
        nodes = state.ledger.nodes
        entries = map(nodes.get, self.names)
        self.columns: NDArray[np.int64] = np.array([-1 if e is None else e.column for e in entries], np.int64)

    def all(self) -> FilterResult:
        """An answer that lets every node pass."""
        if self.objects is None:
            return FilterResult(node_names=self.raw.node_names)
        return FilterResult(nodes=self.raw.nodes)

    def some(self, mask: list[bool], failed: dict[str, str], unresolvable: dict[str, str]) -> FilterResult:
        """An answer that lets some nodes pass."""
        if self.objects is None:
            names = Raw(encode(list(compress(self.names, mask))))
            return FilterResult(names, Raw(b"null"), failed, unresolvable)
        objects = Raw(encode({"items": list(compress(self.objects, mask))}))
        return FilterResult(Raw(b"null"), objects, failed, unresolvable)


class Extender:
    """Answers kube-scheduler.

    Args:
        state: the ledger.
        binder: binds.
        holds: soft holds.
        nominations: reservations of nominated pods.
        wakeups: remembers refused pods.
        stats: counters.
    """

    def __init__(
        self,
        state: ClusterState,
        binder: Binder,
        holds: Holds,
        nominations: Nominations,
        wakeups: Wakeups,
        stats: Stats,
    ) -> None:
        self._state, self._binder, self._holds, self._nominations = state, binder, holds, nominations
        self._wakeups, self._stats = wakeups, stats
        self._scores: OrderedDict[str, tuple[NDArray[np.int64], str]] = OrderedDict()

    @property
    def ready(self) -> bool:
        """Whether the ledger may be asked."""
        return self._state.ready and not self._state.stale

    def filter(self, body: bytes) -> Reply:
        """Which nodes fit, and why the others do not. Writes nothing."""
        began = time.perf_counter()
        try:
            result = self._filter(read_args(body)) if self.ready else FilterResult(error=_NOT_READY)
        except BadBody as error:
            self._stats.filters["error"] += 1
            result = FilterResult(error=str(error))
        reply = Reply(200, encode(result))
        self._stats.filter_seconds.observe(time.perf_counter() - began)
        return reply

    def _filter(self, args: ExtenderArgs) -> FilterResult:
        view = self._state.reader.read(args.pod)
        if view.problem:
            raise BadBody(view.problem)
        nodes = _Nodes(args, self._state)
        self._binder.saw(view)
        if view.request is None:
            self._stats.filters["foreign"] += 1
            return nodes.all()
        bound_to = self._binder.node_of(view.uid)
        if bound_to is not None:
            return self._only(nodes, bound_to)
        self._holds.drop(view.uid)
        with self._nominations.lifted_for(view.request):
            return self._look(view, view.request, nodes)

    def _look(self, view: PodView, request: PodRequest, nodes: _Nodes) -> FilterResult:
        sweep = self._state.placement.sweep(request)
        fits = self._fits(sweep, nodes)
        if not fits.any() and len(self._holds):
            for name in self._holds.fitting(request, nodes.names):
                fits |= nodes.columns == self._state.ledger.nodes[name].column
        if not fits.any():
            self._stats.filters["unfit"] += 1
            self._wakeups.remember(view, sweep.fits, nodes.columns)
        else:
            self._stats.filters["fits"] += 1
            self._wakeups.forget(view.uid)
            self._choose(request, sweep, nodes.columns[fits])
        if fits.all():
            return nodes.all()
        return nodes.some(fits.tolist(), *self._reasons(sweep, nodes, ~fits))

    @staticmethod
    def _fits(sweep: Sweep, nodes: _Nodes) -> NDArray[np.bool_]:
        fits = sweep.fits[nodes.columns]
        if len(nodes.columns) and nodes.columns.min() < 0:
            fits[nodes.columns < 0] = False
        return fits

    def _only(self, nodes: _Nodes, name: str) -> FilterResult:
        """The pod's bind to this node is not decided yet: no other node may be tried."""
        mask = [n == name for n in nodes.names]
        failed = dict.fromkeys((n for n in nodes.names if n != name), f"pod's binding to {name} is not decided yet")
        return nodes.some(mask, failed, {})

    def _choose(self, request: PodRequest, sweep: Sweep, columns: NDArray[np.int64]) -> None:
        """Hold the best node, and keep the scores for /prioritize."""
        scores = sweep.score
        of_these = scores[columns]
        best = self._state.ledger.names[int(columns[of_these == of_these.max()].min())]
        self._holds.place(request, best)
        self._scores[request.uid] = (scores, best)
        self._scores.move_to_end(request.uid)
        if len(self._scores) > _KEPT_SCORES:
            self._scores.popitem(last=False)

    def _reasons(self, sweep: Sweep, nodes: _Nodes, unfit: NDArray[np.bool_]) -> tuple[dict[str, str], dict[str, str]]:
        """Texts by node name: for nodes that an eviction could help, and for those that it could not."""
        names = list(compress(nodes.names, unfit.tolist()))
        columns = nodes.columns[unfit]
        known = columns >= 0
        reasons = sweep.unfit(columns[known])
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        if not known.all():
            unresolvable.update(dict.fromkeys(compress(names, (~known).tolist()), _UNKNOWN_NODE))
            names, columns = list(compress(names, known.tolist())), columns[known]
        if len(reasons) == 1:
            reason = next(iter(reasons.values()))
            (failed if reason.curable else unresolvable).update(dict.fromkeys(names, sentence(reason)))
            return failed, unresolvable
        codes = sweep.limits()[columns]
        for code in np.unique(codes).tolist():
            there = codes == code
            reason = reasons[sweep.limit_of(int(columns[there][0]))]
            target = failed if reason.curable else unresolvable
            target.update(dict.fromkeys(compress(names, there.tolist()), sentence(reason)))
        return failed, unresolvable

    def prioritize(self, body: bytes) -> Reply:
        """Scores 0..SCORE_MAX + BEST_BONUS by node; kube-scheduler enforces no range."""
        try:
            args = read_args(body)
            if not self.ready:
                return Reply(503, encode({"error": _NOT_READY}))
            nodes = _Nodes(args, self._state)
            scores = self._score(args, nodes)
        except BadBody as error:
            return Reply(400, encode({"error": str(error)}))
        return Reply(
            200, encode([{"Host": name, "Score": score} for name, score in zip(nodes.names, scores, strict=True)])
        )

    def _score(self, args: ExtenderArgs, nodes: _Nodes) -> list[int]:
        kept = self._scores.get(args.pod.metadata.uid)
        if kept is None:
            view = self._state.reader.read(args.pod)
            if view.request is None:
                return [0] * len(nodes.names)
            kept = (self._state.placement.sweep(view.request).score, "")
        scores, best = kept
        known = (nodes.columns >= 0) & (nodes.columns < len(scores))
        mine = np.where(known, scores[np.where(known, nodes.columns, 0)], 0)
        entry = self._state.ledger.nodes.get(best)
        if entry is not None:
            mine += BEST_BONUS * (nodes.columns == entry.column)
        answer: list[int] = mine.tolist()
        return answer

    def preempt(self, body: bytes) -> Reply:
        """Which candidates would really help."""
        try:
            args = read_preemption(body)
            if not self.ready:
                return Reply(503, encode({"error": _NOT_READY}))
            view = self._state.reader.read(args.pod)
        except BadBody as error:
            return Reply(400, encode({"error": str(error)}))
        candidates = args.candidates()
        if view.problem:
            candidates = {}
        elif view.request is not None:
            candidates = veto(self._state, self._holds, self._nominations, self._stats, view.request, candidates)
        return Reply(200, encode(PreemptionResult(candidates)))

    async def bind(self, body: bytes) -> Reply:
        """Bind one pod."""
        try:
            error = await self._binder.bind(read_binding(body))
        except BadBody as bad:
            error = str(bad)
        return Reply(200, encode(BindingResult(error)))
