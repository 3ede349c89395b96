"""The brute-force oracle: what fits, said a second time, in plain loops that share no code with `hamipy.core`.

Slow on purpose. It knows the rules from the design alone: a pod's life is a row of moments (each plain init container
alone with the sidecars started before it; at last all app containers with all sidecars); what counts against a card
is the largest use over the moments, for memory, compute and slots each by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

Triple = tuple[int, int, int]
"""Memory in bytes, compute in percent, slots."""


@dataclass
class Card:
    id: str
    index: int
    vendor: str
    model: str
    isolation: tuple[str, ...]
    memory: int
    cores: int
    slots: int
    healthy: bool = True


@dataclass(frozen=True)
class Ask:
    """One container: `kind` is init, sidecar or app; exactly one of `memory` and `percent` is set."""

    name: str
    kind: str
    count: int
    memory: int | None
    percent: int | None
    cores: int


@dataclass(frozen=True)
class Rules:
    vendor: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    model_exclude: tuple[str, ...] = ()
    uuid: tuple[str, ...] = ()
    uuid_exclude: tuple[str, ...] = ()
    isolation: tuple[str, ...] = ()


@dataclass
class Job:
    """One pod; `given` is container -> [(card id, memory, cores)], None when it sits there without saying where."""

    uid: str
    asks: tuple[Ask, ...]
    rules: Rules
    given: dict[str, list[tuple[str, int, int]]] | None = None


@dataclass
class Host:
    name: str
    cards: list[Card] = field(default_factory=list)
    known: bool = False
    """Has an inventory."""
    attached: bool = False
    """Has a Node object."""
    served: bool = False
    """The kubelet offers the resource."""
    serving: bool = True
    """The daemon says that it serves."""
    jobs: dict[str, Job] = field(default_factory=dict)

    def closed(self) -> str:
        if not self.known or not self.attached:
            return "node"
        if not self.serving or not self.served:
            return "serving"
        return ""


def glob(pattern: str, text: str) -> bool:
    """`*` and `?`, case-insensitive."""
    if pattern == "":
        return text == ""
    if pattern[0] == "*":
        return any(glob(pattern[1:], text[skip:]) for skip in range(len(text) + 1))
    return text != "" and pattern[0].lower() in ("?", text[0].lower()) and glob(pattern[1:], text[1:])


def listed(text: str, patterns: tuple[str, ...]) -> bool:
    return any(glob(pattern, text) for pattern in patterns)


def matches(card: Card, rules: Rules) -> bool:
    if rules.vendor and not listed(card.vendor, rules.vendor):
        return False
    if rules.model and not listed(card.model, rules.model):
        return False
    if rules.uuid and not listed(card.id, rules.uuid):
        return False
    if rules.isolation and not any(listed(name, rules.isolation) for name in card.isolation):
        return False
    return not listed(card.model, rules.model_exclude) and not listed(card.id, rules.uuid_exclude)


def moments(asks: tuple[Ask, ...]) -> Iterator[list[str]]:
    """Which containers run together, moment by moment."""
    sidecars: list[str] = []
    for ask in asks:
        if ask.kind == "init":
            yield [*sidecars, ask.name]
        elif ask.kind == "sidecar":
            sidecars.append(ask.name)
    yield sidecars + [ask.name for ask in asks if ask.kind == "app"]


def demand(ask: Ask, card: Card) -> Triple:
    memory = ask.memory
    if memory is None:
        assert ask.percent is not None
        memory = (card.memory * ask.percent - card.memory * ask.percent % 100) // 100
    return memory, ask.cores, card.slots if ask.cores == 100 else 1


def peak(job: Job, card: Card) -> Triple:
    """The most that a job uses of a card at any moment, each dimension by itself."""
    if job.given is None:
        parts = [demand(ask, card) for ask in job.asks]
        return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)
    most = [0, 0, 0]
    for running in moments(job.asks):
        now = [0, 0, 0]
        for name in running:
            for where, memory, cores in job.given.get(name, []):
                if where == card.id:
                    now[0] += memory
                    now[1] += cores
                    now[2] += card.slots if cores == 100 else 1
        most = [max(a, b) for a, b in zip(most, now, strict=True)]
    return most[0], most[1], most[2]


def left(host: Host, card: Card, without: frozenset[str] = frozenset()) -> Triple:
    """What is left of a card when every job is at its worst moment; negative where more was given than there is."""
    memory, cores, slots = card.memory, card.cores, card.slots
    for uid, job in host.jobs.items():
        if uid not in without:
            use = peak(job, card)
            memory, cores, slots = memory - use[0], cores - use[1], slots - use[2]
    return memory, cores, slots


def covers(have: Triple, want: Triple) -> bool:
    return have[0] >= want[0] and have[1] >= want[1] and have[2] >= want[2]


def usable(host: Host, rules: Rules) -> list[Card]:
    return [card for card in host.cards if card.healthy and matches(card, rules)]


def everyone(host: Host) -> frozenset[str]:
    return frozenset(host.jobs)


def possible(host: Host, job: Job, without: frozenset[str] = frozenset()) -> bool:
    """Whether there is any way at all to give the job its cards on this host: all combinations are tried."""
    if host.closed():
        return False
    cards = usable(host, job.rules)
    room = {card.id: left(host, card, without) for card in cards}
    together = list(moments(job.asks))

    def legal(chosen: dict[str, tuple[Card, ...]]) -> bool:
        for running in together:
            for card in cards:
                parts = [demand(a, card) for a in job.asks if a.name in running and card in chosen.get(a.name, ())]
                total = (sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts))
                if parts and not covers(room[card.id], total):
                    return False
        return True

    def choose(at: int, chosen: dict[str, tuple[Card, ...]]) -> bool:
        if at == len(job.asks):
            return True
        for some in combinations(cards, job.asks[at].count):
            more = {**chosen, job.asks[at].name: some}
            if legal(more) and choose(at + 1, more):
                return True
        return False

    return choose(0, {})


def complaint(host: Host, job: Job) -> tuple[str, int, int, str]:
    """Why a job does not fit on a host: (limit, wanted, best, container); only asked where it does not fit.

    The limits are tried in their order, each for all containers, and cards drop out limit by limit.
    """
    if host.closed():
        return host.closed(), 0, 0, ""
    fine = {ask.name: [card for card in host.cards if matches(card, job.rules)] for ask in job.asks}
    for limit in ("match", "capacity", "health", "slots", "memory", "cores"):
        failing: Ask | None = None
        before = {name: list(cards) for name, cards in fine.items()}
        for ask in job.asks:
            if limit != "match":
                fine[ask.name] = [card for card in fine[ask.name] if passes(host, card, ask, limit)]
            if len(fine[ask.name]) < ask.count and failing is None:
                failing = ask
        if failing is None:
            continue
        if limit in ("match", "health", "slots"):
            return limit, failing.count, len(fine[failing.name]), failing.name
        cards = before[failing.name]
        if limit == "cores":
            amounts, wanted = [left(host, card)[1] for card in cards], failing.cores
        elif limit == "memory":
            amounts, wanted = [left(host, card)[0] for card in cards], failing.memory or 0
        else:
            amounts, wanted = [card.memory for card in cards], failing.memory or 0
        best = max(sorted(amounts)[-failing.count], 0)
        return limit, 0 if limit == "capacity" and best >= wanted else wanted, best, failing.name
    return "combination", len(job.asks), 0, ""


def passes(host: Host, card: Card, ask: Ask, limit: str) -> bool:
    want = demand(ask, card)
    match limit:
        case "capacity":
            return covers((card.memory, card.cores, card.slots), want)
        case "health":
            return card.healthy
        case "slots":
            return left(host, card)[2] >= want[2]
        case "memory":
            return left(host, card)[0] >= want[0]
        case _:
            return left(host, card)[1] >= want[1]
