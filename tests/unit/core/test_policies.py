"""binpack and spread for nodes and devices, and the scenario of the demo."""

import pytest

from hamipy.core.explain import sentence
from hamipy.core.ledger import Ledger, PlacedPod
from hamipy.core.model import (
    Allocation,
    ContainerKind,
    ContainerRequest,
    Device,
    Inventory,
    Limit,
    PodRequest,
    Unfit,
)
from hamipy.core.placement import Placement
from hamipy.core.policies import SCORE_MAX

Gi = 2**30


def cluster(nodes: int, devices: int, memory: int = 14 * Gi) -> Ledger:
    ledger = Ledger()
    for node in range(nodes):
        cards = tuple(Device(f"n{node}-{at}", at, "mock", "T4", memory, 10) for at in range(devices))
        ledger.set_inventory(Inventory(node=f"n{node}", devices=cards))
        ledger.set_node(f"n{node}", kubelet_resource=True)
    return ledger


def pod(uid: str, memory: int, cores: int = 0, count: int = 1, **policies: str) -> PodRequest:
    container = ContainerRequest("main", ContainerKind.APP, count, memory, None, cores)
    return PodRequest(uid, "default", f"pod-{uid}", (container,), **policies)  # type: ignore[arg-type]


def scores(placement: Placement, asked: PodRequest) -> dict[str, int]:
    sweep = placement.sweep(asked)
    return {
        name: int(sweep.score[entry.column])
        for name, entry in placement.ledger.nodes.items()
        if sweep.fits[entry.column]
    }


def bind(placement: Placement, asked: PodRequest, node: str | None = None) -> tuple[str, list[str]]:
    """Bind to the node of the best score (first by name among equals), or to `node`."""
    if node is None:
        by_score = scores(placement, asked)
        node = min(by_score, key=lambda name: (-by_score[name], name))
    allocation = placement.decide(asked, node)
    assert isinstance(allocation, Allocation)
    kinds = {"main": ContainerKind.APP}
    placement.ledger.put(PlacedPod(asked.uid, "default", asked.name, node, kinds, allocation, asked))
    return node, [share.device for share in allocation.containers["main"]]


def used(ledger: Ledger) -> dict[str, int]:
    return {
        name: int((ledger.memory_total[:, e.column] - ledger.memory_free[:, e.column]).sum()) // Gi
        for name, e in ledger.nodes.items()
    }


def test_the_scenario_of_the_demo_ends_at_13_and_12_of_14_and_says_why_3_more_do_not_fit() -> None:
    placement = Placement(cluster(2, 1))
    for uid, memory in enumerate((2, 8, 8, 2, 5)):
        bind(placement, pod(str(uid), memory * Gi))
    assert sorted(used(placement.ledger).values()) == [12, 13]
    sweep = placement.sweep(pod("last", 3 * Gi))
    reasons = sweep.unfit([entry.column for entry in placement.ledger.nodes.values()])
    assert not sweep.fits.any()
    assert list(reasons) == [Limit.MEMORY]
    assert reasons[Limit.MEMORY].nodes == 2
    assert sentence(reasons[Limit.MEMORY]) == "node(s) without 3Gi free memory on one device (most free 2Gi)"


def test_binpack_fills_a_node_and_spread_takes_the_emptiest() -> None:
    for policy, expected in (("binpack", ["n0", "n0", "n0"]), ("spread", ["n0", "n1", "n2"])):
        placement = Placement(cluster(3, 1), node_policy=policy)
        assert [bind(placement, pod(str(at), 2 * Gi))[0] for at in range(3)] == expected


def test_binpack_fills_a_device_and_spread_takes_the_emptiest() -> None:
    for policy, expected in (("binpack", ["n0-0", "n0-0", "n0-0"]), ("spread", ["n0-0", "n0-1", "n0-2"])):
        placement = Placement(cluster(1, 3), device_policy=policy)
        assert [bind(placement, pod(str(at), 2 * Gi))[1] for at in range(3)] == [[d] for d in expected]


def test_a_policy_of_the_pod_wins_over_the_cluster() -> None:
    placement = Placement(cluster(2, 2))
    bind(placement, pod("first", 2 * Gi), "n0")
    assert bind(placement, pod("same", 2 * Gi)) == ("n0", ["n0-0"])
    assert bind(placement, pod("other-device", 2 * Gi, device_policy="spread"), "n0") == ("n0", ["n0-1"])
    assert bind(placement, pod("other-node", 2 * Gi, node_policy="spread"))[0] == "n1"


def test_several_devices_are_taken_and_listed_in_index_order() -> None:
    placement = Placement(cluster(1, 4))
    assert bind(placement, pod("a", 2 * Gi, count=2)) == ("n0", ["n0-0", "n0-1"])
    assert bind(placement, pod("b", 2 * Gi, count=3)) == ("n0", ["n0-0", "n0-1", "n0-2"])


def test_compute_counts_as_much_as_memory_for_how_full_a_device_is() -> None:
    placement = Placement(cluster(1, 2, memory=10 * Gi))
    bind(placement, pod("memory", 4 * Gi), "n0")
    bind(placement, pod("compute", 1 * Gi, 80, device_policy="spread"), "n0")
    assert bind(placement, pod("next", 1 * Gi)) == ("n0", ["n0-1"])


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_scores_stay_in_their_range_on_empty_full_and_bare_nodes(policy: str) -> None:
    ledger = cluster(2, 1)
    ledger.set_inventory(Inventory(node="bare", devices=(Device("b-0", 0, "mock", "T4", 0, 1, cores=0),)))
    ledger.set_node("bare", kubelet_resource=True)
    placement = Placement(ledger, node_policy=policy)
    for asked in (pod("a", 1), pod("b", 14 * Gi, 100), pod("c", 2**50, 100, 1024)):
        assert placement.sweep(asked).score.min() >= 0
        assert placement.sweep(asked).score.max() <= SCORE_MAX


def test_a_percentage_is_taken_of_whichever_device_is_chosen() -> None:
    ledger = Ledger()
    cards = (Device("small", 0, "mock", "T4", 10 * Gi + 1, 10), Device("large", 1, "mock", "A100", 80 * Gi, 10))
    ledger.set_inventory(Inventory(node="n0", devices=cards))
    ledger.set_node("n0", kubelet_resource=True)
    placement = Placement(ledger)
    container = ContainerRequest("main", ContainerKind.APP, 2, None, 50, 0)
    asked = PodRequest("u", "default", "p", (container,))
    decision = placement.decide(asked, "n0")
    assert isinstance(decision, Allocation)
    assert [(s.device, s.memory) for s in decision.containers["main"]] == [("small", 5 * Gi), ("large", 40 * Gi)]
    bind(placement, asked)
    half = (ContainerRequest("main", ContainerKind.APP, 1, None, 50, 0),)
    assert bind(placement, PodRequest("v", "default", "q", half))[1] == ["large"]
    assert bind(placement, PodRequest("w", "default", "r", half))[1] == ["small"]
    refused = placement.decide(PodRequest("x", "default", "s", half), "n0")
    assert isinstance(refused, Unfit)
    assert (refused.limit, refused.wanted, refused.best) == (Limit.MEMORY, 0, 1)
