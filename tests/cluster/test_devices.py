"""Several devices on a node, several containers in a pod, devices that turn sick and well."""

from collections.abc import Iterator

import pytest

from hamipy.core.quantity import parse_int

from .api import JSON
from .books import allocation, disagreements
from .cluster import Cluster
from .daemons import wait_until
from .devices import GIB, devices_of, only, set_health, with_profile
from .node import Node
from .workloads import Space, container, pod, runs

MEMORY, CORES, DEVICE = "hamipy.io/memory", "hamipy.io/cores", "hamipy.io/device"


@pytest.fixture(scope="module")
def node_with_two_cards(cluster: Cluster) -> Iterator[Node]:
    with with_profile(cluster, list(cluster.nodes.values())[-1], "t4x2", 2) as node:
        yield node


@pytest.fixture
def two_cards(cluster: Cluster, node_with_two_cards: Node) -> Iterator[Node]:
    """A node with two 14 GiB cards, both well at first; ask for it before `space`."""
    yield node_with_two_cards
    set_health(cluster, node_with_two_cards, {})


def _life(found: JSON) -> list[tuple[str, int]]:
    return [(s["containerID"], s["restartCount"]) for s in found["status"]["containerStatuses"]]


def _refused(space: Space, name: str, text: str) -> None:
    told = lambda: [e for e in space.events(name, "FailedScheduling") if text in e]  # noqa: E731
    wait_until(told, 20, lambda: f"a FailedScheduling event with {text!r}, not {space.events(name)}")
    assert "nodeName" not in space.pod(name)["spec"]


def test_two_containers_of_a_pod_get_the_different_shares_that_each_asked_for(space: Space) -> None:
    space.create(
        pod("two", container("small", {MEMORY: "1Gi", CORES: 10}), container("big", {MEMORY: "9Gi", CORES: 60}))
    )
    (found,) = space.wait_running(1)
    assert disagreements(space, found) == []
    shares = {}
    for name in ("small", "big"):
        limits, _ = space.sees("two", name)
        assert limits
        (device,) = limits["devices"]
        shares[name] = (device["memory"], device["cores"])
    assert shares == {"small": (1 * GIB, 10), "big": (9 * GIB, 60)}


def test_init_containers_sidecar_and_two_devices_per_container_on_a_node_with_two_cards(
    two_cards: Node, space: Space
) -> None:
    # init takes both cards nearly whole and ends; the sidecar starts after it and stays beside the app containers
    space.create(
        pod(
            "all",
            container("pair", {DEVICE: 2, MEMORY: "6Gi", CORES: 30}),
            container("rest", {MEMORY: "3Gi"}),
            init=[
                container("first", {DEVICE: 2, MEMORY: "13Gi"}, ends=True),
                container("side", {MEMORY: "1Gi"}, restartPolicy="Always"),
                container("second", {MEMORY: "12Gi", CORES: 100}, ends=True),
            ],
        )
    )
    (found,) = space.wait_running(1)
    assert found["spec"]["nodeName"] == two_cards.name  # the only one with two cards
    assert disagreements(space, found) == []
    decided = allocation(found)
    ids = devices_of(space.cluster, two_cards.name)
    for name in ("first", "pair"):
        assert sorted(s["device"] for s in decided[name]) == ids
    # what the finished init containers held is not free for others: the pod's peak counts, not what runs now
    space.create(pod("beside", container(limits={DEVICE: 2, MEMORY: "1Gi"}), **only(two_cards.name)))
    space.create(pod("more", container(limits={DEVICE: 2, MEMORY: "2Gi"}), **only(two_cards.name)))
    _refused(space, "more", "2 devices")
    space.create(pod("three", container(limits={DEVICE: 3, MEMORY: "1Gi"})))
    _refused(space, "three", "node(s) without 3 matching devices (at most 2)")


def test_a_full_sick_card_keeps_its_pod_and_the_healthy_one_beside_it_stays_usable(
    two_cards: Node, space: Space
) -> None:
    cluster = space.cluster
    space.create(pod("full", container(limits={MEMORY: "14Gi"}), **only(two_cards.name)))
    (first,) = space.wait_running(1)
    (used,) = (s["device"] for s in allocation(first)["main"])
    ids = devices_of(cluster, two_cards.name)
    index = ids.index(used)
    set_health(cluster, two_cards, {index: "fell off the bus"})

    space.create(pod("beside", container(limits={MEMORY: "14Gi"}), **only(two_cards.name)))
    space.wait_running(2)
    assert [s["device"] for s in allocation(space.pod("beside"))["main"]] == [ids[1 - index]]
    assert disagreements(space, space.pod("beside")) == []
    assert _life(space.pod("full")) == _life(first)
    assert space.sees("full")[1] == [used]
    # the sums that the kubelet holds running pods to when it restarts did not shrink
    published = cluster.api.get("nodes", None, two_cards.name)["status"]["allocatable"]
    assert parse_int(published[MEMORY]) == 28 * GIB


def test_a_sick_card_in_no_use_gets_no_pod_until_it_is_well(two_cards: Node, space: Space) -> None:
    cluster = space.cluster
    set_health(cluster, two_cards, {0: "fell off the bus"})
    ids = devices_of(cluster, two_cards.name)

    def free_ids() -> int:
        return parse_int(cluster.api.get("nodes", None, two_cards.name)["status"]["allocatable"][DEVICE])

    for name in ("one", "two"):  # binpack would take the first card first
        space.create(pod(name, container(limits={MEMORY: "7Gi"}), **only(two_cards.name)))
    space.wait_running(2)
    assert {s["device"] for n in ("one", "two") for s in allocation(space.pod(n))["main"]} == {ids[1]}
    space.create(pod("both", container(limits={DEVICE: 2, CORES: 10}), **only(two_cards.name)))
    _refused(space, "both", "node(s) without 2 healthy devices (at most 1)")
    space.create(pod("waits", container(limits={MEMORY: "8Gi"}), **only(two_cards.name)))
    _refused(space, "waits", "node(s) without 8Gi free memory on one device (most free 0)")
    wait_until(lambda: free_ids() == 16, 20, lambda: f"16 of 32 ids to be allocatable, not {free_ids()}")

    set_health(cluster, two_cards, {})
    wait_until(lambda: runs(space.pod("waits")), 60, "the waiting pod to run on the card that is well again")
    assert [s["device"] for s in allocation(space.pod("waits"))["main"]] == [ids[0]]
