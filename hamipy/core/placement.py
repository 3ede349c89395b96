"""Questions to the ledger: which nodes fit a pod and how well, why the others do not, and which devices it gets.

`sweep` looks at every node at once and changes nothing; `decide` chooses devices on one node. Both use the predicates
of `core.fit`; where a pod has several device containers and neither bound settles a node, `sweep` asks `fit.place`.
"""

from collections import OrderedDict
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hamipy.core.fit import SearchExhausted, has_room, need_of, place, steps_of
from hamipy.core.ledger import Columns, Kind, Ledger, Mask, NodeEntry
from hamipy.core.model import Allocation, Constraints, ContainerRequest, Limit, PodRequest, Unfit
from hamipy.core.policies import DEFAULT_POLICY, DEVICE_POLICIES, NODE_POLICIES, SCORE_MAX, utilisation

_LIMITS = tuple(Limit)
_CODE = {limit: code for code, limit in enumerate(_LIMITS)}
_CURABLE = {Limit.SLOTS, Limit.MEMORY, Limit.CORES}
_GIVE_UP_AFTER = 4
"""Searches without an answer after which one sweep calls the nodes left unfit (docs/decisions/0003)."""


class Sweep:
    """The answer for all nodes to one request, at one moment.

    Attributes:
        fits: (N,) mask by column.
        score: (N,) preference 0..SCORE_MAX by the node policy, valid where `fits`.
    """

    def __init__(self, placement: "Placement", request: PodRequest, fits: Mask, checks: "list[_Check]") -> None:
        self.request, self.fits = request, fits
        self._placement, self._checks = placement, checks
        self._score: NDArray[np.int64] | None = None
        self._limits: NDArray[np.int8] | None = None

    @property
    def score(self) -> NDArray[np.int64]:
        """Preference of every node, computed when first asked for."""
        if self._score is None:
            self._score = self._placement.scores(self.request, self._checks)
        return self._score

    def limits(self) -> NDArray[np.int8]:
        """(N,) code of the first limit that fails, by column; meaningless where the node fits."""
        if self._limits is None:
            self._limits = self._placement.first_limits(self._checks)
        return self._limits

    def limit_of(self, column: int) -> Limit:
        """The first limit that fails on the node of this column."""
        return _LIMITS[int(self.limits()[column])]

    def unfit(self, columns: Collection[int]) -> dict[Limit, Unfit]:
        """Why the nodes of these columns do not fit: one reason for each limit, with the best over its nodes."""
        at = np.fromiter(columns, np.int64, len(columns))
        codes = self.limits()[at]
        return {
            _LIMITS[int(code)]: self._placement.reason(
                self.request, self._checks, _LIMITS[int(code)], at[codes == code]
            )
            for code in np.unique(codes)
        }


class _Check:
    """One container's masks, stage by stage, as (K, N) columns."""

    __slots__ = ("container", "enough", "match", "need", "ok")

    def __init__(self, container: ContainerRequest, match: Mask, need: tuple[Any, int, Any], ok: Mask) -> None:
        self.container, self.match, self.need, self.ok = container, match, need, ok
        self.enough = enough(ok, container.count)


def enough(ok: Mask, count: int) -> Mask:
    """(N,) whether at least `count` positions of each column are true."""
    if count == 1:
        return np.asarray(ok.any(axis=0))
    return np.asarray(ok.sum(axis=0, dtype=np.int16) >= count)


class Placement:
    """Answers for one ledger; keeps the masks of recent constraints until the devices change.

    Args:
        ledger: what is free.
        node_policy, device_policy: the cluster's defaults.
    """

    def __init__(
        self, ledger: Ledger, *, node_policy: str = DEFAULT_POLICY, device_policy: str = DEFAULT_POLICY
    ) -> None:
        self.ledger, self.node_policy, self.device_policy = ledger, node_policy, device_policy
        self._masks: OrderedDict[Constraints, tuple[int, Mask]] = OrderedDict()

    # -- all nodes -------------------------------------------------------------------------------------------------

    def sweep(self, request: PodRequest) -> Sweep:
        """Look at every node."""
        match = self._match(request.constraints)
        checks = [self._check(container, match) for container in request.containers]
        fits = self.ledger.is_open.copy()
        for check in checks:
            fits &= check.enough
        if len(checks) > 1 and fits.any():
            self._settle(request, match, fits)
        return Sweep(self, request, fits, checks)

    def _check(self, container: ContainerRequest, match: Mask) -> _Check:
        ledger = self.ledger
        need = need_of(container, ledger.memory_total, ledger.slots_total)
        ok = match & ledger.healthy & has_room(ledger.memory_free, ledger.cores_free, ledger.slots_free, need)
        return _Check(container, match, need, ok)

    def _settle(self, request: PodRequest, match: Mask, fits: Mask) -> None:
        """Several containers: keep in `fits` the nodes on which all of them fit together.

        If the whole pod's peak fits on each of as many devices as its widest container wants, it fits; the nodes that
        this does not settle are searched, once for each different state.
        """
        ledger = self.ledger
        spans, steps = steps_of([c.kind for c in request.containers])
        needs = [need_of(c, ledger.memory_total, ledger.slots_total) for c in request.containers]
        together = match & ledger.healthy
        for step in range(steps):
            running = [need for need, span in zip(needs, spans, strict=True) if step in span]
            total = [sum(need[dimension] for need in running) for dimension in range(3)]
            together &= has_room(ledger.memory_free, ledger.cores_free, ledger.slots_free, total)
        unsettled = fits & ~enough(together, max(c.count for c in request.containers))
        known: dict[tuple[object, ...], bool] = {}
        exhausted = 0
        for column in np.flatnonzero(unsettled):
            entry = ledger.nodes[ledger.names[column]]
            rooms = ledger.rooms(entry, self._eligible(entry, match))
            state = tuple(room[1:] for room in rooms)
            if state not in known:
                try:
                    known[state] = exhausted < _GIVE_UP_AFTER and place(rooms, request, lambda _: 0.0) is not None
                except SearchExhausted:
                    known[state] = False
                    exhausted += 1
            fits[column] = known[state]

    def _match(self, constraints: Constraints) -> Mask:
        """(K, N) devices that satisfy the constraints, healthy or not; kept until the devices change."""
        ledger = self.ledger
        kept = self._masks.get(constraints)
        if kept is not None and kept[0] == ledger.generation and kept[1].shape == ledger.present.shape:
            self._masks.move_to_end(constraints)
            return kept[1]
        mask = ledger.present.copy()
        if constraints != Constraints():
            good = [code for kind, code in ledger.kinds.items() if _kind_matches(constraints, kind)]
            mask &= np.isin(ledger.kind, good)
            if constraints.uuid or constraints.uuid_exclude:
                mask &= self._uuid_mask(constraints)
        self._masks[constraints] = (ledger.generation, mask)
        if len(self._masks) > 64:
            self._masks.popitem(last=False)
        return mask

    def _uuid_mask(self, constraints: Constraints) -> Mask:
        mask = np.full(self.ledger.present.shape, not constraints.uuid, np.bool_)
        for entry in self.ledger.nodes.values():
            for device, position in entry.position.items():
                if constraints.uuid:
                    mask[position, entry.column] = _listed(device, constraints.uuid)
                if _listed(device, constraints.uuid_exclude):
                    mask[position, entry.column] = False
        return mask

    def scores(self, request: PodRequest, checks: list[_Check]) -> NDArray[np.int64]:
        """(N,) preference of every node by the pod's node policy: how full it would be afterwards."""
        ledger = self.ledger
        policy = NODE_POLICIES[request.node_policy or self.node_policy]
        memory_total, cores_total = ledger.memory_total.sum(axis=0), ledger.cores_total.sum(axis=0)
        memory_used = memory_total - ledger.memory_free.sum(axis=0)
        cores_used = cores_total - ledger.cores_free.sum(axis=0)
        devices = np.maximum(ledger.present.sum(axis=0), 1)
        for check in checks:
            memory = check.need[0]
            if not isinstance(memory, int):
                memory = memory.sum(axis=0) // devices
            memory_used = memory_used + memory * check.container.count
            cores_used = cores_used + check.container.cores * check.container.count
        after = utilisation(memory_used, np.maximum(memory_total, 1), cores_used, np.maximum(cores_total, 1))
        score: NDArray[np.int64] = np.clip(np.rint(policy(after) * SCORE_MAX), 0, SCORE_MAX).astype(np.int64)
        return score

    # -- reasons ---------------------------------------------------------------------------------------------------

    def first_limits(self, checks: list[_Check]) -> NDArray[np.int8]:
        """(N,) code of the first limit that fails for the first container that fails."""
        ledger = self.ledger
        codes = np.full(ledger.is_open.shape[0], _CODE[Limit.COMBINATION], np.int8)
        for check in reversed(checks):
            for limit, mask in reversed(self._stages(check)):
                codes[~enough(mask, check.container.count)] = _CODE[limit]
        for column in np.flatnonzero(~ledger.is_open):
            name = ledger.names[column] if column < ledger.width else ""
            entry = ledger.nodes.get(name)
            codes[column] = _CODE[(entry.closed_by if entry else None) or Limit.NODE]
        return codes

    def _stages(self, check: _Check) -> list[tuple[Limit, Mask]]:
        ledger, (memory, cores, slots) = self.ledger, check.need
        large = check.match & has_room(ledger.memory_total, ledger.cores_total, ledger.slots_total, check.need)
        healthy = large & ledger.healthy
        slot = healthy & (ledger.slots_free >= slots)
        room = slot & (ledger.memory_free >= memory)
        return [
            (Limit.MATCH, check.match),
            (Limit.CAPACITY, large),
            (Limit.HEALTH, healthy),
            (Limit.SLOTS, slot),
            (Limit.MEMORY, room),
            (Limit.CORES, room & (ledger.cores_free >= cores)),
        ]

    def reason(self, request: PodRequest, checks: list[_Check], limit: Limit, columns: Columns) -> Unfit:
        """One reason for the nodes of `columns`, which all fail by `limit`: what was wanted, the best over them."""
        nodes = len(columns)
        if limit in (Limit.NODE, Limit.SERVING, Limit.ALLOCATION_VERSION):
            return Unfit(limit, nodes=nodes)
        if limit is Limit.COMBINATION:
            return Unfit(limit, wanted=len(request.containers), nodes=nodes, curable=self._fits_empty(request, columns))
        check = next(c for c in checks if not self._stage_ok(c, limit)[columns].all())
        ledger, count = self.ledger, check.container.count
        stages = dict(self._stages(check))
        if limit in (Limit.MATCH, Limit.HEALTH, Limit.SLOTS):
            best = int(stages[limit][:, columns].sum(axis=0).max(initial=0))
            wanted = count
        else:
            before = {Limit.CAPACITY: Limit.MATCH, Limit.MEMORY: Limit.SLOTS, Limit.CORES: Limit.MEMORY}[limit]
            amounts = {
                Limit.CAPACITY: ledger.memory_total,
                Limit.MEMORY: ledger.memory_free,
                Limit.CORES: ledger.cores_free,
            }[limit]
            of_stage = np.where(stages[before][:, columns], amounts[:, columns], 0)
            nth = (
                np.sort(of_stage, axis=0)[::-1][count - 1] if count <= of_stage.shape[0] else np.zeros(nodes, np.int64)
            )
            best = int(max(nth.max(initial=0), 0))
            memory = check.need[0]
            wanted = check.container.cores if limit is Limit.CORES else memory if isinstance(memory, int) else 0
        return Unfit(limit, wanted, best, count, check.container.name, nodes, limit in _CURABLE)

    def _stage_ok(self, check: _Check, limit: Limit) -> Mask:
        return enough(dict(self._stages(check))[limit], check.container.count)

    def _fits_empty(self, request: PodRequest, columns: Columns) -> bool:
        return any(
            not isinstance(self.decide(request, name, without=set(self.ledger.nodes[name].pods)), Unfit)
            for name in (self.ledger.names[c] for c in columns[:16])
        )

    # -- one node --------------------------------------------------------------------------------------------------

    def decide(self, request: PodRequest, node: str, *, without: Collection[str] = ()) -> Allocation | Unfit:
        """Choose devices for a pod on one node; changes nothing.

        Args:
            request: the pod.
            node: name of the node.
            without: uids of pods whose shares count as free (victims of a preemption).
        """
        entry = self.ledger.nodes.get(node)
        closed = Limit.NODE if entry is None else entry.closed_by
        if entry is None or closed is not None:
            return Unfit(closed or Limit.NODE)
        rooms = self.ledger.rooms(entry, self._eligible(entry, self._match(request.constraints)), without=without)
        order = DEVICE_POLICIES[request.device_policy or self.device_policy]
        try:
            allocation = place(rooms, request, order)
        except SearchExhausted:
            allocation = None
        if allocation is not None:
            return allocation
        return next(iter(self.sweep(request).unfit([entry.column]).values()))

    def _eligible(self, entry: NodeEntry, match: Mask) -> Mask:
        return np.asarray(match[:, entry.column] & self.ledger.healthy[:, entry.column])


def _kind_matches(constraints: Constraints, kind: Kind) -> bool:
    return (
        (not constraints.vendor or _listed(kind.vendor, constraints.vendor))
        and (not constraints.model or _listed(kind.model, constraints.model))
        and not _listed(kind.model, constraints.model_exclude)
        and (not constraints.isolation or any(_listed(i, constraints.isolation) for i in kind.isolation))
    )


def _listed(value: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(value.lower(), glob.lower()) for glob in globs)
