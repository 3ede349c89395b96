"""A cluster kept twice: in the ledger under test and in the oracle; every step is told to both and compared."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from random import Random

import numpy as np

from hamipy.core.ledger import Ledger, PlacedPod
from hamipy.core.model import (
    Allocation,
    Constraints,
    ContainerKind,
    ContainerRequest,
    Device,
    Inventory,
    PodRequest,
    Share,
    Unfit,
)
from hamipy.core.placement import Placement
from tests.unit.core import oracle
from tests.unit.core.oracle import Ask, Card, Host, Job, Rules

HOSTS = ("north", "east", "south", "west")
VENDORS = {"mock": ("T4", "A100-80G"), "acme": ("X1", "X1-mini")}
ISOLATIONS = ((), ("hami-core",), ("mig", "hami-core"))


# -- chance --------------------------------------------------------------------------------------------------------


def some_card(random: Random, name: str, index: int) -> Card:
    vendor = random.choice(sorted(VENDORS))
    return Card(
        id=name,
        index=index,
        vendor=vendor,
        model=random.choice(VENDORS[vendor]),
        isolation=random.choice(ISOLATIONS),
        memory=random.choice((0, 7, 8, 8, 12, 12, 16, 16, 24)),
        cores=random.choice((100, 100, 100, 100, 60, 0)),
        slots=random.choice((1, 2, 3, 4, 10, 10)),
        healthy=random.random() < 0.9,
    )


def some_cards(random: Random, host: str) -> list[Card]:
    alike = random.random() < 0.4
    cards = [some_card(random, f"{host}-{at}", at) for at in range(random.choice((0, 1, 2, 2, 3, 3, 4, 4)))]
    if alike and cards:
        cards = [replace(cards[0], id=card.id, index=card.index, healthy=card.healthy) for card in cards]
    random.shuffle(cards)
    return cards


def some_ask(random: Random, name: str, kind: str) -> Ask:
    count_ = random.choice((1, 1, 1, 1, 1, 2, 2, 3)) if random.random() < 0.95 else 5
    match random.randrange(8):
        case 0:
            return Ask(name, kind, count_, None, 100, 100)
        case 1 | 2:
            percent = random.choice((1, 25, 33, 50, 100))
            return Ask(name, kind, count_, None, percent, random.choice((0, percent, percent, 100)))
        case _:
            return Ask(name, kind, count_, random.randint(1, 9), None, random.choice((0, 0, 10, 10, 30, 30, 50, 60)))


def some_rules(random: Random) -> Rules:
    if random.random() < 0.85:
        return Rules()
    card = f"{random.choice(HOSTS)}-{random.randrange(4)}"
    return Rules(
        vendor=random.choice(((), (), ("mock",), ("ACME", "other"))),
        model=random.choice(((), (), ("a100*",), ("*1*",), ("?4", "X1"))),
        model_exclude=random.choice(((), (), ("x1",), ("*-*",))),
        uuid=random.choice(((), (), ("*-0", "*-2"), (card, f"{HOSTS[0]}-1"))),
        uuid_exclude=random.choice(((), (), (card,), ("*-3",))),
        isolation=random.choice(((), (), ("mig",), ("hami*",))),
    )


def some_asks(random: Random, most: int = 4) -> tuple[Ask, ...]:
    total = min(random.choice((1, 1, 2, 2, 3, 3, 4)), most)
    first = random.randint(0, total)
    kinds = [random.choice(("init", "sidecar")) for _ in range(first)] + ["app"] * (total - first)
    return tuple(some_ask(random, f"c{at}", kind) for at, kind in enumerate(kinds))


# -- from the oracle's words to ours ---------------------------------------------------------------------------------


def device(card: Card) -> Device:
    return Device(
        id=card.id,
        index=card.index,
        vendor=card.vendor,
        model=card.model,
        memory=card.memory,
        slots=card.slots,
        cores=card.cores,
        healthy=card.healthy,
        isolation=card.isolation,
    )


def inventory(host: Host) -> Inventory:
    return Inventory(node=host.name, devices=tuple(map(device, host.cards)), serving=host.serving)


def request(job: Job, node_policy: str | None = None, device_policy: str | None = None) -> PodRequest:
    rules = job.rules
    return PodRequest(
        uid=job.uid,
        namespace="default",
        name=f"pod-{job.uid}",
        containers=tuple(
            ContainerRequest(a.name, ContainerKind(a.kind), a.count, a.memory, a.percent, a.cores) for a in job.asks
        ),
        constraints=Constraints(
            rules.vendor, rules.model, rules.model_exclude, rules.uuid, rules.uuid_exclude, rules.isolation
        ),
        node_policy=node_policy,
        device_policy=device_policy,
    )


def placed(job: Job, node: str) -> PlacedPod:
    allocation = None
    if job.given is not None:
        allocation = Allocation({c: tuple(Share(*share) for share in shares) for c, shares in job.given.items()})
    kinds = {ask.name: ContainerKind(ask.kind) for ask in job.asks}
    return PlacedPod(job.uid, "default", f"pod-{job.uid}", node, kinds, allocation, request(job))


class World:
    """Both sides; every method is one event, told to both."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ledger = Ledger()
        self.placement = Placement(self.ledger)
        self.hosts = {name: Host(name) for name in HOSTS}
        self.uids = map(str, count(1))
        self.probes = [
            request(Job("probe", asks, Rules()))
            for asks in (
                (Ask("a", "app", 1, 1, None, 0),),
                (Ask("a", "app", 1, None, 100, 100),),
                (Ask("a", "app", 2, 4, None, 30),),
                (Ask("i", "init", 1, 8, None, 0), Ask("a", "app", 1, 3, None, 60), Ask("b", "app", 1, 3, None, 60)),
            )
        ]

    # -- events ----------------------------------------------------------------------------------------------------

    @contextmanager
    def event(self) -> Iterator[None]:
        """Whatever fits after the event and did not before must be marked, or a pending pod would not be woken."""
        self.ledger.freed.clear()
        before = self._fitting()
        yield
        newly = {name for _, name in self._fitting() - before}
        assert newly <= self.ledger.freed, f"{newly} were freed, marked are {self.ledger.freed}"

    def _fitting(self) -> set[tuple[int, str]]:
        return {
            (at, self.ledger.names[column])
            for at, probe in enumerate(self.probes)
            for column in np.flatnonzero(self.placement.sweep(probe).fits)
        }

    def publish(self, name: str, cards: list[Card], *, serving: bool = True) -> None:
        host = self.hosts[name]
        with self.event():
            host.cards, host.known, host.serving = cards, True, serving
            self.ledger.set_inventory(inventory(host))

    def withdraw(self, name: str) -> None:
        host = self.hosts[name]
        with self.event():
            host.cards, host.known = [], False
            self.ledger.remove_inventory(name)

    def attach(self, name: str, *, served: bool, schedulable: bool = True) -> None:
        host = self.hosts[name]
        with self.event():
            host.attached, host.served = True, served
            self.ledger.set_node(name, kubelet_resource=served, schedulable=schedulable)

    def detach(self, name: str) -> None:
        host = self.hosts[name]
        with self.event():
            host.attached = host.served = False
            self.ledger.remove_node(name)

    def put(self, job: Job, name: str) -> None:
        with self.event():
            for host in self.hosts.values():
                host.jobs.pop(job.uid, None)
            self.hosts[name].jobs[job.uid] = job
            self.ledger.put(placed(job, name))

    def drop(self, uid: str) -> None:
        with self.event():
            for host in self.hosts.values():
                host.jobs.pop(uid, None)
            self.ledger.drop(uid)

    # -- what may happen -------------------------------------------------------------------------------------------

    def build(self) -> None:
        for name in self.random.sample(HOSTS, self.random.choice((1, 2, 3, 4, 4))):
            self.publish(name, some_cards(self.random, name))
            self.attach(name, served=True)

    def some_job(self, most: int = 4) -> Job:
        return Job(next(self.uids), some_asks(self.random, most), some_rules(self.random))

    def schedule(self, job: Job) -> None:
        """As kube-scheduler and the extender do: look at all nodes, bind to one that fits; compare every answer."""
        fitting = self.compare_sweep(job)
        if fitting:
            node = self.random.choice(fitting)
            allocation = self.compare_decision(job, node)
            assert allocation is not None
            self.put(replace(job, given=given(allocation)), node)
            self.no_overcommit_on(node, allocation)

    def foreign(self) -> None:
        """A pod that did not come through us: without an allocation, or with one that may exceed or miss devices."""
        job, name = self.some_job(), self.random.choice(HOSTS)
        ids = [card.id for card in self.hosts[name].cards] + ["gone-0"]
        if self.random.random() < 0.5:
            job.given = {
                ask.name: [(self.random.choice(ids), ask.memory or 3, ask.cores)]
                for ask in job.asks
                if self.random.random() < 0.8
            }
        self.put(job, name)

    def change_card(self) -> None:
        """A device turns sick or well, is resized, removed or added."""
        name = self.random.choice(HOSTS)
        host = self.hosts[name]
        cards = list(host.cards)
        what = self.random.randrange(5)
        if not cards or what == 4:
            taken = {card.id for card in cards}
            free = [at for at in range(4) if f"{name}-{at}" not in taken]
            if free:
                cards.append(some_card(self.random, f"{name}-{free[0]}", free[0]))
        else:
            at = self.random.randrange(len(cards))
            new = some_card(self.random, cards[at].id, cards[at].index)
            if what <= 1:
                cards[at] = replace(cards[at], healthy=not cards[at].healthy)
            elif what == 2:
                cards[at] = new
            else:
                del cards[at]
        self.publish(name, cards)

    def uids_there(self) -> list[str]:
        return [uid for host in self.hosts.values() for uid in host.jobs]

    # -- comparisons -----------------------------------------------------------------------------------------------

    def column(self, name: str) -> int | None:
        entry = self.ledger.nodes.get(name)
        return None if entry is None else entry.column

    def compare_sweep(self, job: Job) -> list[str]:
        """All nodes' answers and reasons against the oracle's; returns the nodes that fit."""
        sweep = self.placement.sweep(request(job))
        used = {entry.column for entry in self.ledger.nodes.values()}
        spare = set(np.flatnonzero(sweep.fits).tolist()) - used
        assert not spare, f"columns {spare} are spare and said to fit"
        fitting = []
        groups: dict[str, list[tuple[Host, tuple[str, int, int, str], bool]]] = {}
        unfit_columns = []
        for name, host in self.hosts.items():
            column = self.column(name)
            fits = oracle.possible(host, job)
            assert (column is not None and bool(sweep.fits[column])) == fits, f"{name}: {job}, {host}"
            if fits:
                fitting.append(name)
                assert column is not None
                assert 0 <= sweep.score[column] <= 1000
            elif column is not None:
                expected = oracle.complaint(host, job)
                curable = oracle.possible(host, job, oracle.everyone(host))
                reason = sweep.unfit([column])
                assert list(reason) == [sweep.limit_of(column)]
                self._compare_reason(reason[sweep.limit_of(column)], job, [(host, expected, curable)])
                groups.setdefault(expected[0], []).append((host, expected, curable))
                unfit_columns.append(column)
        reasons = sweep.unfit(unfit_columns)
        assert {limit.value for limit in reasons} == set(groups)
        for limit, reason_of_all in reasons.items():
            self._compare_reason(reason_of_all, job, groups[limit.value])
        return fitting

    def _compare_reason(
        self, unfit: Unfit, job: Job, nodes: list[tuple[Host, tuple[str, int, int, str], bool]]
    ) -> None:
        assert unfit.nodes == len(nodes)
        complaints = [expected for _, expected, _ in nodes]
        first = next((a for a in job.asks if any(a.name == name for _, _, _, name in complaints)), None)
        if first is not None:
            assert unfit.count == first.count
            complaints = [c for c in complaints if c[3] == first.name]
        wanted = max(c[1] for c in complaints)
        complaints = [c for c in complaints if c[1] == wanted]
        limit, _, _, container = complaints[0]
        best = max(c[2] for c in complaints)
        assert (unfit.limit.value, unfit.wanted, unfit.best, unfit.container) == (limit, wanted, best, container), nodes
        assert unfit.curable == any(curable for _, _, curable in nodes), nodes

    def compare_decision(self, job: Job, node: str, without: frozenset[str] = frozenset()) -> Allocation | None:
        """One node's decision against the oracle's; an allocation must be legal."""
        host = self.hosts[node]
        asked = request(job, device_policy=self.random.choice((None, "binpack", "spread")))
        decision = self.placement.decide(asked, node, without=without)
        assert isinstance(decision, Allocation) == oracle.possible(host, job, without), f"{job}, {host}: {decision}"
        if isinstance(decision, Unfit):
            rest = replace(host, jobs={uid: j for uid, j in host.jobs.items() if uid not in without})
            expected = oracle.complaint(rest, job)
            curable = oracle.possible(host, job, oracle.everyone(host))
            self._compare_reason(decision, job, [(rest, expected, curable)])
            return None
        legal(host, job, decision, without)
        assert decision == self.placement.decide(asked, node, without=without)
        return decision

    def no_overcommit_on(self, node: str, allocation: Allocation) -> None:
        host = self.hosts[node]
        touched = {share.device for shares in allocation.containers.values() for share in shares}
        for card in host.cards:
            if card.id in touched:
                assert min(oracle.left(host, card)) >= 0, f"{card} is over-committed on {host}"

    def compare_columns(self) -> None:
        """What the ledger says is free is, to the byte, what the oracle says."""
        ledger, seen = self.ledger, 0
        for name, host in self.hosts.items():
            column = self.column(name)
            if column is None:
                assert not host.known
                assert not host.attached
                assert not host.jobs
                continue
            assert ledger.names[column] == name
            assert bool(ledger.is_open[column]) == (host.closed() == "")
            assert int(ledger.present[:, column].sum()) == len(host.cards)
            entry = ledger.nodes[name]
            assert set(entry.pods) == set(host.jobs)
            seen += len(host.cards)
            for card in host.cards:
                at = (entry.position[card.id], column)
                free = (int(ledger.memory_free[at]), int(ledger.cores_free[at]), int(ledger.slots_free[at]))
                assert free == oracle.left(host, card), f"{card} on {host}"
                total = (int(ledger.memory_total[at]), int(ledger.cores_total[at]), int(ledger.slots_total[at]))
                assert total == (card.memory, card.cores, card.slots)
                assert bool(ledger.healthy[at]) == card.healthy
        assert int(ledger.present.sum()) == seen


def given(allocation: Allocation) -> dict[str, list[tuple[str, int, int]]]:
    return {c: [(s.device, s.memory, s.cores) for s in shares] for c, shares in allocation.containers.items()}


def legal(host: Host, job: Job, allocation: Allocation, without: frozenset[str]) -> None:
    """Every container has its number of distinct, usable devices with exactly what it asked, and it fits over time."""
    cards = {card.id: card for card in oracle.usable(host, job.rules)}
    assert set(allocation.containers) == {ask.name for ask in job.asks}
    for ask in job.asks:
        shares = allocation.containers[ask.name]
        assert len({s.device for s in shares}) == len(shares) == ask.count
        for share in shares:
            assert (share.memory, share.cores) == oracle.demand(ask, cards[share.device])[:2]
            assert share.partition is None
    mine = replace(job, given=given(allocation))
    for card in cards.values():
        if any(card.id == s.device for shares in allocation.containers.values() for s in shares):
            assert oracle.covers(oracle.left(host, card, without), oracle.peak(mine, card))


def image(ledger: Ledger) -> dict[str, bytes]:
    """Every node's column, byte for byte."""
    arrays = (
        ledger.memory_total,
        ledger.memory_free,
        ledger.cores_total,
        ledger.cores_free,
        ledger.slots_total,
        ledger.slots_free,
        ledger.present,
        ledger.healthy,
    )
    return {
        name: b"".join(array[:, entry.column].tobytes() for array in arrays) for name, entry in ledger.nodes.items()
    }
