"""The peak rule and the search for several containers: direct cases, the proofs in vectors, and the budgets."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hamipy.core import fit, placement
from hamipy.core.fit import DeviceRoom, Packing, fits_together, overcommitted, peak_use, place, steps_of
from hamipy.core.joint import Joint
from hamipy.core.ledger import Ledger, PlacedPod
from hamipy.core.model import (
    Allocation,
    ContainerKind,
    ContainerRequest,
    Device,
    Inventory,
    Limit,
    PodRequest,
    Share,
    Unfit,
)
from hamipy.core.placement import Placement
from hamipy.core.policies import DEVICE_POLICIES
from tests.unit.core import oracle
from tests.unit.core.budget import examples
from tests.unit.core.oracle import Ask, Host, Job, Rules
from tests.unit.core.world import World, device, placed, request, some_asks, some_cards

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
BINPACK, SPREAD = DEVICE_POLICIES["binpack"], DEVICE_POLICIES["spread"]
seeds = st.integers(0, 2**32 - 1)


def pod(*containers: tuple[str, ContainerKind, int, int, int]) -> PodRequest:
    """Containers as (name, kind, count, memory, cores)."""
    asked = tuple(
        ContainerRequest(name, kind, count, memory, None, cores) for name, kind, count, memory, cores in containers
    )
    return PodRequest("u", "default", "p", asked)


def empty(count: int, memory: int = 8) -> list[DeviceRoom]:
    return [DeviceRoom(f"d{at}", memory, 100, 10, memory, 100, 10) for at in range(count)]


def devices_of(allocation: Allocation | None) -> dict[str, list[str]]:
    assert allocation is not None
    return {name: [share.device for share in shares] for name, shares in allocation.containers.items()}


# -- the life of a pod -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kinds", "spans"),
    [
        ([APP], [[0]]),
        ([APP, APP], [[0], [0]]),
        ([INIT, APP], [[0], [1]]),
        ([INIT, INIT, APP], [[0], [1], [2]]),
        ([SIDECAR, APP], [[0], [0]]),
        ([SIDECAR, INIT, APP], [[0, 1], [0], [1]]),
        ([INIT, SIDECAR, APP], [[0], [1], [1]]),
        ([INIT, SIDECAR, INIT, APP, APP], [[0], [1, 2], [1], [2], [2]]),
        ([INIT], [[0]]),
    ],
)
def test_a_sidecar_runs_from_its_start_to_the_end_and_an_init_container_in_one_step(
    kinds: list[ContainerKind], spans: list[list[int]]
) -> None:
    assert [list(span) for span in steps_of(kinds)[0]] == spans


@pytest.mark.parametrize(
    ("containers", "memory"),
    [
        ([("i", INIT, 1, 8, 0), ("a", APP, 1, 8, 0)], 8),
        ([("i", INIT, 1, 8, 0), ("j", INIT, 1, 7, 0), ("a", APP, 1, 3, 0)], 8),
        ([("a", APP, 1, 4, 0), ("b", APP, 1, 4, 0)], 8),
        ([("s", SIDECAR, 1, 3, 0), ("i", INIT, 1, 5, 0), ("a", APP, 1, 5, 0)], 8),
        ([("i", INIT, 1, 8, 0), ("s", SIDECAR, 1, 3, 0), ("a", APP, 1, 5, 0)], 8),
        ([("s", SIDECAR, 1, 8, 0), ("a", APP, 1, 1, 0)], 9),
        ([("s", SIDECAR, 1, 8, 0), ("i", INIT, 1, 8, 0), ("a", APP, 1, 1, 0)], 16),
    ],
)
def test_one_device_needs_the_peak_over_the_steps_and_not_a_byte_more(
    containers: list[tuple[str, ContainerKind, int, int, int]], memory: int
) -> None:
    asked = pod(*containers)
    assert place(empty(1, memory - 1), asked, BINPACK) is None
    allocation = place(empty(1, memory), asked, BINPACK)
    assert allocation is not None
    kinds = {c.name: c.kind for c in asked.containers}
    assert peak_use(allocation, kinds, lambda _: 10)["d0"].memory == memory


def test_the_peak_is_taken_in_each_dimension_by_itself() -> None:
    asked = pod(("i", INIT, 1, 8, 10), ("a", APP, 1, 2, 60), ("b", APP, 1, 2, 30))
    allocation = place(empty(1), asked, BINPACK)
    assert allocation is not None
    assert peak_use(allocation, {"i": INIT, "a": APP, "b": APP}, lambda _: 10) == {"d0": (8, 90, 2)}


WHOLE = (("i1", INIT, 2), ("side", SIDECAR, 1), ("i2", INIT, 1), ("a", APP, 1), ("b", APP, 2))


def test_init_sidecar_and_two_apps_of_whole_devices_share_four_as_on_the_real_kubelet() -> None:
    asked = pod(*((name, kind, count, 8, 100) for name, kind, count in WHOLE))
    assert place(empty(3), asked, BINPACK) is None
    by_container = devices_of(place(empty(4), asked, BINPACK))
    assert {name: len(ids) for name, ids in by_container.items()} == {name: count for name, _, count in WHOLE}
    assert sorted(by_container["side"] + by_container["a"] + by_container["b"]) == ["d0", "d1", "d2", "d3"]
    assert set(by_container["side"]).isdisjoint(by_container["i2"])


def test_what_a_finished_init_container_leaves_is_used_again_before_anything_else() -> None:
    asked = pod(("i", INIT, 1, 4, 0), ("a", APP, 1, 4, 0))
    for policy in (BINPACK, SPREAD):
        by_container = devices_of(place(empty(3), asked, policy))
        assert by_container["i"] == by_container["a"]


def test_an_exclusive_container_shares_with_no_container_of_its_own_pod_that_runs_beside_it() -> None:
    together = pod(("a", APP, 1, 1, 100), ("b", APP, 1, 1, 0))
    after = pod(("i", INIT, 1, 1, 100), ("b", APP, 1, 1, 0))
    assert place(empty(1), together, BINPACK) is None
    assert place(empty(2), together, BINPACK) is not None
    assert place(empty(1), after, BINPACK) is not None


def test_a_first_choice_that_leaves_no_room_is_taken_back() -> None:
    rooms = [DeviceRoom("large", 9, 100, 10, 9, 100, 10), DeviceRoom("small", 4, 100, 10, 4, 100, 10)]
    asked = pod(("a", APP, 1, 4, 0), ("b", APP, 1, 9, 0))
    assert devices_of(place(rooms, asked, BINPACK)) == {"a": ["small"], "b": ["large"]}


# -- against the oracle ----------------------------------------------------------------------------------------------


@examples(400)
@given(seeds)
def test_peaks_and_overcommitment_are_what_the_oracle_counts(seed: int) -> None:
    random = Random(seed)
    host = Host("north", some_cards(random, "north"))
    ids = [card.id for card in host.cards]
    for uid in ("1", "2"):
        job = Job(uid, some_asks(random), Rules())
        job.given = {
            ask.name: [(i, random.randint(0, 9), ask.cores) for i in random.sample(ids, min(ask.count, len(ids)))]
            for ask in job.asks
        }
        host.jobs[uid] = job
    slots = {card.id: card.slots for card in host.cards}
    uses = []
    for job in host.jobs.values():
        pod_ = placed(job, "north")
        assert pod_.allocation is not None
        uses.append(peak_use(pod_.allocation, pod_.kinds, slots.__getitem__))
        for card in host.cards:
            assert uses[-1].get(card.id, (0, 0, 0)) == oracle.peak(job, card)
    over = [card.id for card in host.cards if min(oracle.left(host, card)) < 0]
    assert overcommitted([device(card) for card in host.cards], uses) == sorted(over)
    missing = [device(card) for card in host.cards[1:]]
    used_first = bool(ids) and any(ids[0] in use for use in uses)
    assert (ids[:1] if used_first else []) == [i for i in overcommitted(missing, uses) if i in ids[:1]]


def joint_of(ledger: Ledger, asked: PodRequest) -> Joint:
    return Joint(
        asked.containers,
        ledger.present & ledger.healthy,
        (ledger.memory_total, ledger.cores_total, ledger.slots_total),
        (ledger.memory_free, ledger.cores_free, ledger.slots_free),
    )


@examples(400)
@given(seeds)
def test_the_proofs_in_vectors_are_never_wrong_and_the_search_finds_what_they_prove(seed: int) -> None:
    world = World(Random(seed))
    world.build()
    for _ in range(4):
        world.schedule(world.some_job())
    job = Job("x", some_asks(world.random), Rules())
    joint = joint_of(world.ledger, request(job))
    proofs = [joint.ample(), *(joint.certain(packing) for packing in Packing)]
    never = joint.impossible()
    for name, host in world.hosts.items():
        column = world.column(name)
        if column is None or host.closed():
            continue
        fits = oracle.possible(host, job)
        for proof in proofs:
            assert not proof[column] or fits
        assert not never[column] or not fits
        entry = world.ledger.nodes[name]
        rooms = world.ledger.rooms(entry, world.ledger.healthy[:, column])
        assert fits_together(rooms, request(job))[0] == fits


@examples(150)
@given(seeds)
def test_with_hardly_any_budget_nothing_illegal_is_said_and_what_fits_can_be_bound(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "SEARCH_LIMIT", 4)  # as many as containers: the first way alone
        world = World(Random(seed))
        world.build()
        for _ in range(6):
            job = world.some_job()
            sweep = world.placement.sweep(request(job))
            for name, entry in list(world.ledger.nodes.items()):
                decision = world.placement.decide(request(job), name)
                possible = oracle.possible(world.hosts[name], job)
                if sweep.fits[entry.column]:
                    assert possible
                    assert isinstance(decision, Allocation)
                elif isinstance(decision, Unfit) and possible:
                    assert decision.limit is Limit.COMBINATION
                if isinstance(decision, Allocation):
                    assert possible
            fitting = [name for name, entry in world.ledger.nodes.items() if sweep.fits[entry.column]]
            if fitting:
                decision = world.placement.decide(request(job), fitting[0])
                assert isinstance(decision, Allocation)
                job.given = {
                    c: [(s.device, s.memory, s.cores) for s in shares] for c, shares in decision.containers.items()
                }
                world.put(job, fitting[0])
                world.no_overcommit_on(fitting[0], decision)


HARD = pod(("a", APP, 2, 2, 50), ("b", APP, 1, 5, 20), ("c", APP, 1, 3, 60))


def hard_cluster(nodes: int) -> Ledger:
    """Nodes in states of their own that no proof settles; the pod HARD fits on each."""
    ledger = Ledger()
    for at in range(nodes):
        name = f"n{at:03}"
        cards = tuple(Device(f"{name}-{d}", d, "mock", "T4", 8 + at * 3, 10) for d in range(3))
        ledger.set_inventory(Inventory(node=name, devices=cards))
        ledger.set_node(name, kubelet_resource=True)
        shares = tuple(Share(card.id, at * 3 + more, 0) for card, more in zip(cards, (0, 1, 3), strict=True))
        ledger.put(PlacedPod(f"u{at}", "default", "x", name, {"c": APP}, Allocation({"c": shares})))
    return ledger


def without_proofs(patch: pytest.MonkeyPatch) -> None:
    """Leave every node to the search."""

    def nothing(self: Joint, *_: Packing) -> NDArray[np.bool_]:
        return np.zeros(self.eligible.shape[1], np.bool_)

    for proof in ("ample", "certain", "impossible"):
        patch.setattr(Joint, proof, nothing)


@examples(60)
@given(seeds)
def test_what_is_remembered_of_one_pods_search_misleads_no_other_pod(seed: int) -> None:
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        without_proofs(patch)
        world = World(random)
        world.build()
        for _ in range(2):
            world.schedule(world.some_job())
        first = Ask("first", random.choice(("init", "sidecar")), 1, 6, None, 30)
        asks = [first, Ask("second", "app", random.choice((1, 2)), 6, None, 30)]
        for _ in range(8):
            at = random.randrange(2)
            match random.randrange(3):
                case 0:
                    asks[0] = replace(asks[0], kind=random.choice(("init", "sidecar")))
                case 1:
                    asks[at] = replace(asks[at], cores=random.choice((0, 30, 80)))
                case _:
                    asks[at] = replace(asks[at], memory=random.choice((1, 6)))
            world.compare_sweep(Job("x", tuple(asks), Rules()))


def test_a_sweep_that_runs_out_of_budget_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proofs(monkeypatch)
    exact = np.flatnonzero(Placement(hard_cluster(40)).sweep(HARD).fits)
    monkeypatch.setattr(placement, "_BUDGET", 100)
    few = Placement(hard_cluster(40))
    seen = [int(few.sweep(HARD).fits.sum()) for _ in range(20)]
    assert seen[0] < len(exact)
    assert seen == sorted(seen)
    assert seen[-1] == len(exact) == 40


def test_many_equal_containers_that_do_not_fit_are_ruled_out_without_trying_all_orders() -> None:
    asked = pod(*((f"c{at}", APP, 1, 3, 0) for at in range(9)))
    rooms = [DeviceRoom(f"d{at}", 8, 100, 10, 8 - at % 2, 100, 10) for at in range(4)]
    fits, tried = fits_together(rooms, asked)
    assert not fits
    assert tried < 100
