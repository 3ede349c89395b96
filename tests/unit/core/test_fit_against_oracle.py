"""Ledger, placement and fit held to the brute-force oracle: no over-commit, no fit missed, the peak rule exact."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hamipy.core.codec import encode_allocation
from hamipy.core.ledger import Ledger
from hamipy.core.model import Allocation
from hamipy.core.placement import Placement
from tests.unit.core.budget import THOROUGH, examples
from tests.unit.core.world import HOSTS, World, image, inventory, placed, request, some_card, some_cards

seeds = st.integers(0, 2**32 - 1)


class ClusterLife(RuleBasedStateMachine):
    """Any order of events; after each the ledger's columns equal the oracle's books."""

    @initialize(seed=seeds)
    def begin(self, seed: int) -> None:
        self.world = World(Random(seed))
        self.world.build()

    @rule(seed=seeds)
    def a_pod_is_scheduled(self, seed: int) -> None:
        self.world.random.seed(seed)
        self.world.schedule(self.world.some_job())

    @rule(seed=seeds)
    def a_small_pod_is_scheduled(self, seed: int) -> None:
        self.world.random.seed(seed)
        self.world.schedule(self.world.some_job(most=2))

    @rule(seed=seeds, name=st.sampled_from(HOSTS))
    def a_pod_is_tried_on_one_node_without_some_victims(self, seed: int, name: str) -> None:
        self.world.random.seed(seed)
        there = sorted(self.world.hosts[name].jobs)
        victims = self.world.random.sample(there, self.world.random.randint(0, len(there)))
        self.world.compare_decision(self.world.some_job(), name, frozenset(victims))

    @rule(seed=seeds)
    def a_foreign_pod_appears(self, seed: int) -> None:
        self.world.random.seed(seed)
        self.world.foreign()

    @precondition(lambda self: self.world.uids_there())
    @rule(data=st.data())
    def a_pod_goes(self, data: st.DataObject) -> None:
        self.world.drop(data.draw(st.sampled_from(self.world.uids_there())))

    @rule(seed=seeds)
    def a_device_changes(self, seed: int) -> None:
        self.world.random.seed(seed)
        self.world.change_card()

    @rule(seed=seeds, name=st.sampled_from(HOSTS), serving=st.sampled_from((True, True, True, False)))
    def a_node_publishes(self, seed: int, name: str, serving: bool) -> None:
        self.world.publish(name, some_cards(Random(seed), name), serving=serving)

    @rule(name=st.sampled_from(HOSTS))
    def an_inventory_goes(self, name: str) -> None:
        self.world.withdraw(name)

    @rule(name=st.sampled_from(HOSTS), served=st.booleans(), schedulable=st.booleans())
    def a_node_object_changes(self, name: str, served: bool, schedulable: bool) -> None:
        self.world.attach(name, served=served, schedulable=schedulable)

    @rule(name=st.sampled_from(HOSTS))
    def a_node_object_goes(self, name: str) -> None:
        self.world.detach(name)

    @rule(seed=seeds, name=st.sampled_from(HOSTS))
    def putting_and_dropping_leaves_every_byte(self, seed: int, name: str) -> None:
        self.world.random.seed(seed)
        ledger, job = self.world.ledger, self.world.some_job()
        before, nodes = image(ledger), set(ledger.nodes)
        ledger.put(placed(job, name))
        ledger.drop(job.uid)
        assert image(ledger) == before
        assert set(ledger.nodes) == nodes

    @invariant()
    def the_columns_are_the_books(self) -> None:
        self.world.compare_columns()


def test_ledger_and_oracle_agree_through_any_order_of_events() -> None:
    run_state_machine_as_test(ClusterLife, settings=examples(120, steps=30))


@pytest.mark.parametrize("chunk", range(20 if THOROUGH else 6))
def test_random_clusters_never_overcommit_and_miss_no_fit(chunk: int) -> None:
    """Plain chance beside Hypothesis: hundreds of clusters a chunk, each filled until little is left."""
    for seed in range(chunk * 100, chunk * 100 + 100):
        world = World(Random(seed))
        world.build()
        for _ in range(14):
            chance = world.random.random()
            there = world.uids_there()
            if chance < 0.15 and there:
                world.drop(world.random.choice(there))
            elif chance < 0.25:
                world.change_card()
            else:
                world.schedule(world.some_job())
            world.compare_columns()


@examples(150)
@given(seeds)
def test_the_same_cluster_gives_the_same_bytes_whatever_order_it_was_learned_in(seed: int) -> None:
    random = Random(seed)
    world = World(random)
    world.build()
    for _ in range(6):
        world.schedule(world.some_job())
    world.foreign()
    events: list[Callable[[], None]] = []
    again = Ledger()
    for name, host in world.hosts.items():
        if host.known:
            random.shuffle(host.cards)
            events.append(partial(again.set_inventory, inventory(host)))
        if host.attached:
            events.append(partial(again.set_node, name, kubelet_resource=host.served))
        events.extend(partial(again.put, placed(job, name)) for job in host.jobs.values())
    random.shuffle(events)
    noise = replace(some_card(random, "noise-0", 0), id="noise-0")
    for at, event in enumerate(events):
        if at == len(events) // 2:
            other = replace(next(iter(world.hosts.values())), name="noise", cards=[noise], known=True)
            again.set_inventory(inventory(other))
        event()
    again.remove_inventory("noise")
    one, two = world.placement, Placement(again)
    assert image(world.ledger) == image(again)
    for _ in range(4):
        asked = request(world.some_job(), random.choice((None, "spread")), random.choice((None, "spread")))
        first, second = one.sweep(asked), two.sweep(asked)
        columns = [(world.ledger.nodes[name].column, again.nodes[name].column) for name in world.ledger.nodes]
        unfit = [(a, b) for a, b in columns if not first.fits[a]]
        assert [first.fits[a] for a, _ in columns] == [second.fits[b] for _, b in columns]
        assert [first.score[a] for a, _ in columns] == [second.score[b] for _, b in columns]
        assert first.unfit([a for a, _ in unfit]) == second.unfit([b for _, b in unfit])
        for name in world.ledger.nodes:
            ours, theirs = one.decide(asked, name), two.decide(asked, name)
            if isinstance(ours, Allocation) and isinstance(theirs, Allocation):
                assert encode_allocation(ours) == encode_allocation(theirs)
            else:
                assert ours == theirs
