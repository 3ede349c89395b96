"""Questions to the ledger: which nodes fit a pod and how well, why the others do not, and which devices it gets.

`sweep` looks at every node at once and changes nothing; `decide` chooses devices on one node. Both use the predicates
of `core.fit`; where a pod has several device containers and neither proof of `core.joint` settles a node, `sweep`
searches it.
"""

import re
from collections import OrderedDict
from collections.abc import Collection
from fnmatch import translate
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from hamipy.core.fit import DeviceRoom, Packing, SearchExhausted, fits_together, has_room, need_of, place
from hamipy.core.joint import Joint
from hamipy.core.ledger import Columns, Kind, Ledger, Mask, NodeEntry
from hamipy.core.model import Allocation, Constraints, ContainerRequest, Limit, PodRequest, Unfit
from hamipy.core.policies import DEFAULT_POLICY, DEVICE_POLICIES, NODE_POLICIES, SCORE_MAX, utilisation

_LIMITS = tuple(Limit)
_CODE = {limit: code for code, limit in enumerate(_LIMITS)}
_PER_CONTAINER = (Limit.MATCH, Limit.CAPACITY, Limit.HEALTH, Limit.SLOTS, Limit.MEMORY, Limit.CORES)
_CURABLE = {Limit.SLOTS, Limit.MEMORY, Limit.CORES, Limit.COMBINATION}
"""Limits that eviction may cure; for a pod of several containers it is looked into."""
_BUDGET, _COST_OF_NODE = 4_000, 8
"""Choices that one sweep may try in all, a searched node counting as some more; nodes left over count as unfit until
the next sweep for a pod of that shape goes on with them (docs/decisions/0003)."""
_SHAPES, _ANSWERS = 8, 10_000
"""Pod shapes whose searched nodes are remembered, and how many nodes of each."""


class Sweep:
    """The answer for all nodes to one request, at one moment.

    Scores and reasons are computed when first asked for: ask before the ledger changes.

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

    def unfit(self, columns: Collection[int] | NDArray[np.int64]) -> dict[Limit, Unfit]:
        """Why the nodes of these columns do not fit: one reason for each limit, with the best over its nodes."""
        at = np.asarray(columns if isinstance(columns, np.ndarray) else list(columns), np.int64)
        codes = self.limits()[at]
        return {
            _LIMITS[code]: self._placement.reason(self.request, self._checks, _LIMITS[code], at[codes == code])
            for code in np.flatnonzero(np.bincount(codes)).tolist()
        }


class _Check:
    """One container's masks, stage by stage, as (K, N) columns."""

    def __init__(self, ledger: Ledger, container: ContainerRequest, match: Mask) -> None:
        self.container, self.match, self.ledger = container, match, ledger
        self.need = need_of(container, ledger.memory_total, ledger.slots_total)

    def fits(self) -> Mask:
        """(N,) nodes with enough devices for this container alone."""
        ledger = self.ledger
        free = has_room(ledger.memory_free, ledger.cores_free, ledger.slots_free, self.need)
        return enough(self.match & ledger.healthy & free, self.container.count)

    @cached_property
    def stages(self) -> dict[Limit, Mask]:
        """Devices that pass each limit and all before it, in the order of the limits."""
        ledger, (memory, cores, slots) = self.ledger, self.need
        large = self.match & has_room(ledger.memory_total, ledger.cores_total, ledger.slots_total, self.need)
        healthy = large & ledger.healthy
        slot = healthy & (ledger.slots_free >= slots)
        room = slot & (ledger.memory_free >= memory)
        return {
            Limit.MATCH: self.match,
            Limit.CAPACITY: large,
            Limit.HEALTH: healthy,
            Limit.SLOTS: slot,
            Limit.MEMORY: room,
            Limit.CORES: room & (ledger.cores_free >= cores),
        }

    @cached_property
    def enough(self) -> dict[Limit, Mask]:
        """(N,) nodes with enough devices that pass each limit."""
        return {limit: enough(mask, self.container.count) for limit, mask in self.stages.items()}


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
        self._searched: OrderedDict[tuple[object, ...], dict[bytes, bool]] = OrderedDict()

    # -- all nodes -------------------------------------------------------------------------------------------------

    def sweep(self, request: PodRequest) -> Sweep:
        """Look at every node."""
        match = self._match(request.constraints)
        checks = [_Check(self.ledger, container, match) for container in request.containers]
        fits = self.ledger.is_open.copy()
        for check in checks:
            fits &= check.fits()
        if len(checks) > 1:
            at = np.flatnonzero(fits)
            fits[at] = self._together(request, match, at, empty=False)
        return Sweep(self, request, fits, checks)

    def _together(self, request: PodRequest, match: Mask, at: Columns, *, empty: bool) -> Mask:
        """On which of the nodes at these columns all containers fit together, with what is free or when `empty`."""
        ledger = self.ledger
        if not len(at):
            return np.zeros(0, np.bool_)
        eligible = (match & ledger.healthy)[:, at]
        total = (ledger.memory_total[:, at], ledger.cores_total[:, at], ledger.slots_total[:, at])
        free = total if empty else (ledger.memory_free[:, at], ledger.cores_free[:, at], ledger.slots_free[:, at])
        joint = Joint(request.containers, eligible, total, free)
        fits = joint.ample()
        unsettled = np.flatnonzero(~fits)
        for packing in Packing:
            if len(unsettled):
                fits[unsettled] = joint.of(unsettled).certain(packing)
                unsettled = np.flatnonzero(~fits)
        unsettled = unsettled[~joint.of(unsettled).impossible()]
        budget = _BUDGET if not fits.any() else _BUDGET // 4
        known = self._answers(request)
        states = np.stack([*total, *free], axis=-1)[:, unsettled].transpose(1, 0, 2)
        for column, state, usable in zip(unsettled, states, eligible[:, unsettled].T, strict=True):
            rooms = state[usable]
            key = blake2b(rooms.tobytes(), digest_size=16).digest()
            answer = known.get(key)
            if answer is None:
                if budget <= 0:
                    continue
                answer, tried = fits_together([DeviceRoom("", *room) for room in rooms.tolist()], request)
                budget -= tried + _COST_OF_NODE
                if len(known) >= _ANSWERS:
                    known.clear()
                known[key] = answer
            fits[column] = answer
        return fits

    def _answers(self, request: PodRequest) -> dict[bytes, bool]:
        """What searches for pods of this shape found, by the state of the node."""
        shape = tuple((c.kind, c.count, c.memory, c.memory_percentage, c.cores) for c in request.containers)
        known = self._searched.setdefault(shape, {})
        self._searched.move_to_end(shape)
        if len(self._searched) > _SHAPES:
            self._searched.popitem(last=False)
        return known

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
            if not isinstance(memory, int):  # a percentage: of the node's average device
                memory = memory.sum(axis=0) // devices
            memory_used = memory_used + memory * check.container.count
            cores_used = cores_used + check.container.cores * check.container.count
        after = utilisation(memory_used, np.maximum(memory_total, 1), cores_used, np.maximum(cores_total, 1))
        score: NDArray[np.int64] = np.clip(np.rint(policy(after) * SCORE_MAX), 0, SCORE_MAX).astype(np.int64)
        return score

    # -- reasons ---------------------------------------------------------------------------------------------------

    def first_limits(self, checks: list[_Check]) -> NDArray[np.int8]:
        """(N,) code of the first limit by which any container fails."""
        ledger = self.ledger
        codes = np.full(ledger.is_open.shape[0], _CODE[Limit.COMBINATION], np.int8)
        for limit in reversed(_PER_CONTAINER):
            for check in checks:
                codes[~check.enough[limit]] = _CODE[limit]
        for column in np.flatnonzero(~ledger.is_open[: ledger.width]):
            entry = ledger.nodes.get(ledger.names[column])
            codes[column] = _CODE[(entry.closed_by if entry else None) or Limit.NODE]
        return codes

    def reason(self, request: PodRequest, checks: list[_Check], limit: Limit, columns: Columns) -> Unfit:
        """One reason for the nodes of `columns`, which all fail by `limit`: what was wanted, the best over them.

        Where different containers fail on different nodes, the first of them in the pod speaks for all.
        """
        nodes = len(columns)
        if limit not in _PER_CONTAINER and limit is not Limit.COMBINATION:
            return Unfit(limit, nodes=nodes)
        curable = limit in _CURABLE
        if curable and len(checks) > 1:
            curable = self._fits_empty(request, columns)
        if limit is Limit.COMBINATION:
            return Unfit(limit, wanted=len(checks), nodes=nodes, curable=curable)
        check = next(c for c in checks if not c.enough[limit][columns].all())
        wanted, best = self._wanted_and_best(check, limit, columns[~check.enough[limit][columns]])
        return Unfit(limit, wanted, best, check.container.count, check.container.name, nodes, curable)

    def _wanted_and_best(self, check: _Check, limit: Limit, columns: Columns) -> tuple[int, int]:
        """Of a container that fails by `limit` on all of `columns`; `wanted` 0 where one number cannot say it."""
        ledger, container = self.ledger, check.container
        if limit in (Limit.MATCH, Limit.HEALTH, Limit.SLOTS):
            return container.count, int(check.stages[limit][:, columns].sum(axis=0).max(initial=0))
        before, amounts = {
            Limit.CAPACITY: (Limit.MATCH, ledger.memory_total),
            Limit.MEMORY: (Limit.SLOTS, ledger.memory_free),
            Limit.CORES: (Limit.MEMORY, ledger.cores_free),
        }[limit]
        # The stage before has at least `count` devices on each of these nodes: the best is the count-th largest.
        of_stage = np.where(check.stages[before][:, columns], amounts[:, columns], 0)
        nth = of_stage.max(axis=0) if container.count == 1 else np.sort(of_stage, axis=0)[-container.count]
        wanted = container.cores if limit is Limit.CORES else container.memory or 0
        if limit is Limit.CAPACITY and (nth < wanted).any():
            nth = nth[nth < wanted]
        elif limit is Limit.CAPACITY:
            wanted = 0  # the memory would do: the device has too little compute to share out
        return wanted, int(nth.max(initial=0))

    def _fits_empty(self, request: PodRequest, columns: Columns) -> bool:
        """Whether all containers fit together on any of these nodes once no pod is left there."""
        return bool(self._together(request, self._match(request.constraints), columns, empty=True).any())

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
        return self._why_not(request, entry, without)

    def _why_not(self, request: PodRequest, entry: NodeEntry, without: Collection[str]) -> Unfit:
        """The reason on one open node, asked of a ledger that knows this node alone, without the pods `without`."""
        alone = Ledger()
        if entry.inventory is not None:
            alone.set_inventory(entry.inventory)
        alone.set_node(entry.name, kubelet_resource=True)
        for uid, pod in entry.pods.items():
            if uid not in without:
                alone.put(pod)
        column = alone.nodes[entry.name].column
        return next(iter(Placement(alone).sweep(request).unfit([column]).values()))

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
    return bool(globs) and _pattern(globs).match(value.lower()) is not None


@lru_cache(maxsize=256)
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(glob.lower()) for glob in globs))
