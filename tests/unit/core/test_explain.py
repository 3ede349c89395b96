"""Reasons as sentences: equal for equal reasons, never with a node's name, and true in their numbers."""

import pytest

from hamipy.core.explain import sentence, summary
from hamipy.core.ledger import Ledger, PlacedPod
from hamipy.core.model import (
    Allocation,
    Constraints,
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

Gi, Mi = 2**30, 2**20
APP = ContainerKind.APP


@pytest.mark.parametrize(
    ("unfit", "said"),
    [
        (Unfit(Limit.NODE), "node(s) without a device inventory"),
        (Unfit(Limit.SERVING), "node(s) whose device daemon is not serving"),
        (Unfit(Limit.MATCH, 1, 0), "node(s) without 1 matching device (at most 0)"),
        (Unfit(Limit.MATCH, 4, 2, 4), "node(s) without 4 matching devices (at most 2)"),
        (
            Unfit(Limit.CAPACITY, 80 * Gi, 14 * Gi),
            "node(s) without 80Gi memory on one device even when empty (largest has 14Gi)",
        ),
        (Unfit(Limit.CAPACITY, 0, 14 * Gi), "node(s) too small for what is wanted on one device"),
        (Unfit(Limit.HEALTH, 2, 1, 2), "node(s) without 2 healthy devices (at most 1)"),
        (Unfit(Limit.SLOTS, 1, 0), "node(s) without 1 device with a share left (at most 0)"),
        (Unfit(Limit.MEMORY, 3 * Gi, 2 * Gi), "node(s) without 3Gi free memory on one device (most free 2Gi)"),
        (
            Unfit(Limit.MEMORY, 3 * Gi, 2 * Gi, 2),
            "node(s) without 3Gi free memory on each of 2 devices (most free 2Gi)",
        ),
        (
            Unfit(Limit.MEMORY, 0, 2 * Gi),
            "node(s) without that percentage of free memory on one device (most free 2Gi)",
        ),
        (Unfit(Limit.MEMORY, 2 * Gi, 2 * Gi - 1), "node(s) without 2Gi free memory on one device (most free 1.99Gi)"),
        (
            Unfit(Limit.MEMORY, 2 * Gi + Mi, 2 * Gi),
            "node(s) without 2049Mi free memory on one device (most free 2Gi)",
        ),
        (Unfit(Limit.CORES, 50, 30), "node(s) without 50 percent free compute on one device (most free 30 percent)"),
        (Unfit(Limit.COMBINATION, 3), "node(s) that do not fit the pod's 3 device containers together"),
    ],
)
def test_every_limit_has_its_sentence(unfit: Unfit, said: str) -> None:
    assert sentence(unfit) == said
    assert "%" not in said, "kube-scheduler would take it for a directive in a format string"


def test_equal_reasons_give_equal_sentences_on_any_number_of_nodes() -> None:
    one = Unfit(Limit.MEMORY, 3 * Gi, 2 * Gi, 1, "main", 1, True)
    assert sentence(one) == sentence(Unfit(Limit.MEMORY, 3 * Gi, 2 * Gi, 1, "other", 900, False))


def test_the_summary_names_the_most_frequent_reason_first() -> None:
    reasons = [Unfit(Limit.NODE, nodes=1), Unfit(Limit.MEMORY, 3 * Gi, 2 * Gi, nodes=7)]
    assert summary(reasons) == (
        "no node fits: 7 node(s) without 3Gi free memory on one device (most free 2Gi); "
        "1 node(s) without a device inventory"
    )
    assert summary([]) == "there is no node with devices"


# -- reasons that the placement finds ----------------------------------------------------------------------------------


def cluster(**cards: tuple[Device, ...]) -> Placement:
    ledger = Ledger()
    for node, devices in cards.items():
        ledger.set_inventory(Inventory(node=node, devices=devices))
        ledger.set_node(node, kubelet_resource=True)
    return Placement(ledger)


def card(name: str, memory: int = 14 * Gi, cores: int = 100, model: str = "T4", healthy: bool = True) -> Device:
    return Device(name, 0, "mock", model, memory, 10, cores, healthy=healthy)


def asked(*containers: ContainerRequest, model: tuple[str, ...] = ()) -> PodRequest:
    return PodRequest("u", "default", "p", containers, Constraints(model=model))


def one(memory: int, cores: int = 0, count: int = 1, name: str = "main") -> ContainerRequest:
    return ContainerRequest(name, APP, count, memory, None, cores)


def reasons(placement: Placement, request: PodRequest) -> dict[Limit, Unfit]:
    sweep = placement.sweep(request)
    assert not sweep.fits.any()
    return sweep.unfit([entry.column for entry in placement.ledger.nodes.values()])


def hold(placement: Placement, node: str, device: str, memory: int, cores: int = 0, uid: str = "held") -> None:
    allocation = Allocation({"c": (Share(device, memory, cores),)})
    placement.ledger.put(PlacedPod(uid, "default", uid, node, {"c": APP}, allocation))


def test_too_little_compute_to_share_out_is_not_told_as_too_little_memory() -> None:
    placement = cluster(n=(card("d", cores=50),))
    assert reasons(placement, asked(one(Gi, 60)))[Limit.CAPACITY].wanted == 0


def test_the_number_of_the_best_node_is_given() -> None:
    placement = cluster(a=(card("a0"),), b=(card("b0"),), c=(card("c0", 80 * Gi),))
    for node, device, memory in (("a", "a0", 10 * Gi), ("b", "b0", 5 * Gi), ("c", "c0", 79 * Gi)):
        hold(placement, node, device, memory, uid=node)
    found = reasons(placement, asked(one(12 * Gi)))
    assert found == {Limit.MEMORY: Unfit(Limit.MEMORY, 12 * Gi, 9 * Gi, 1, "main", 3, True)}


def test_where_different_containers_fail_the_best_is_that_of_the_named_one() -> None:
    placement = cluster(a=(card("a0"), card("a1", model="A100")), b=(card("b0"), card("b1")))
    for node, device, memory in (("a", "a0", 13 * Gi), ("a", "a1", 13 * Gi), ("b", "b0", 9 * Gi), ("b", "b1", 9 * Gi)):
        hold(placement, node, device, memory, uid=device)
    found = reasons(placement, asked(one(4 * Gi, name="first"), one(6 * Gi, name="second")))
    assert found == {Limit.MEMORY: Unfit(Limit.MEMORY, 4 * Gi, Gi, 1, "first", 2, True)}


def test_what_no_eviction_can_cure_is_told_before_what_one_can() -> None:
    placement = cluster(n=(card("d0"),))
    hold(placement, "n", "d0", 14 * Gi)
    found = reasons(placement, asked(one(Gi, name="first"), one(Gi, count=2, name="second")))
    assert found == {Limit.MATCH: Unfit(Limit.MATCH, 2, 1, 2, "second", 1, False)}


def test_containers_that_would_not_fit_together_on_an_empty_node_are_not_curable() -> None:
    placement = cluster(n=(card("d0"),))
    hold(placement, "n", "d0", 14 * Gi)
    assert not reasons(placement, asked(one(8 * Gi), one(8 * Gi, name="b")))[Limit.MEMORY].curable
    assert reasons(placement, asked(one(8 * Gi), one(6 * Gi, name="b")))[Limit.MEMORY].curable


def test_a_cure_on_any_of_many_nodes_counts() -> None:
    small = {f"n{at:02}": (card(f"d{at}"),) for at in range(30)}
    placement = cluster(**small, last=(card("large", 16 * Gi),))
    hold(placement, "last", "large", 6 * Gi)
    found = reasons(placement, asked(one(8 * Gi), one(8 * Gi, name="b")))
    assert (found[Limit.COMBINATION].nodes, found[Limit.COMBINATION].curable) == (31, True)


def test_the_reason_after_an_eviction_is_told_as_the_node_would_then_be() -> None:
    placement = cluster(n=(card("d0"),))
    hold(placement, "n", "d0", 8 * Gi, uid="victim")
    hold(placement, "n", "d0", 4 * Gi, uid="stays")
    decision = placement.decide(asked(one(12 * Gi)), "n", without=["victim"])
    assert decision == Unfit(Limit.MEMORY, 12 * Gi, 10 * Gi, 1, "main", 1, True)
    assert isinstance(placement.decide(asked(one(12 * Gi)), "n", without=["victim", "stays"]), Allocation)
    assert placement.decide(asked(one(12 * Gi)), "n") == Unfit(Limit.MEMORY, 12 * Gi, 2 * Gi, 1, "main", 1, True)


def test_a_node_that_is_unknown_or_away_is_told_as_such() -> None:
    placement = cluster(n=(card("d0"),))
    assert placement.decide(asked(one(Gi)), "elsewhere") == Unfit(Limit.NODE)
    placement.ledger.set_node("n", kubelet_resource=False)
    assert placement.decide(asked(one(Gi)), "n") == Unfit(Limit.SERVING)
    assert reasons(placement, asked(one(Gi))) == {Limit.SERVING: Unfit(Limit.SERVING)}


def test_no_sentence_has_the_name_of_a_node_or_device() -> None:
    placement = cluster(secretnode=(card("secretcard", model="T4"),))
    hold(placement, "secretnode", "secretcard", 13 * Gi, 90)
    for request in (
        asked(one(2 * Gi)),
        asked(one(Gi, 20)),
        asked(one(Gi, 100)),
        asked(one(Gi, count=2)),
        asked(one(20 * Gi)),
        asked(one(Gi), model=("A100",)),
        asked(one(600 * Mi), one(600 * Mi, name="b")),
    ):
        (unfit,) = reasons(placement, request).values()
        assert "secret" not in sentence(unfit)
