"""The ledger's events one by one: columns grow and are used again, and whatever may have come free is marked."""

from collections.abc import Callable

import numpy as np
import pytest

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
from tests.unit.core.world import image

APP = ContainerKind.APP


def inventory(node: str, devices: int = 1, *, serving: bool = True, healthy: bool = True, memory: int = 8) -> Inventory:
    cards = tuple(Device(f"{node}-{at}", at, "mock", "T4", memory, 4, healthy=healthy) for at in range(devices))
    return Inventory(node=node, devices=cards, serving=serving)


def up(ledger: Ledger, node: str, devices: int = 1) -> None:
    ledger.set_inventory(inventory(node, devices))
    ledger.set_node(node, kubelet_resource=True)


def gone(ledger: Ledger, node: str) -> None:
    ledger.remove_inventory(node)
    ledger.remove_node(node)


def asked(memory: int = 1, cores: int = 0, count: int = 1, uuid: tuple[str, ...] = ()) -> PodRequest:
    container = ContainerRequest("c", APP, count, memory, None, cores)
    return PodRequest("q", "default", "q", (container,), Constraints(uuid=uuid))


def held(uid: str, node: str, device: str, memory: int, cores: int = 0) -> PlacedPod:
    return PlacedPod(uid, "default", uid, node, {"c": APP}, Allocation({"c": (Share(device, memory, cores),)}))


def fitting(placement: Placement, request: PodRequest) -> list[str]:
    return sorted(placement.ledger.names[column] for column in np.flatnonzero(placement.sweep(request).fits))


def free(ledger: Ledger, node: str) -> list[int]:
    entry = ledger.nodes[node]
    return [int(ledger.memory_free[position, entry.column]) for position in entry.position.values()]


def test_columns_grow_with_nodes_and_devices_and_keep_what_they_hold() -> None:
    ledger = Ledger()
    placement = Placement(ledger)
    up(ledger, "first")
    ledger.put(held("a", "first", "first-0", 5))
    for at in range(200):
        up(ledger, f"n{at}")
    up(ledger, "large", 17)
    assert ledger.width == 202
    assert free(ledger, "first") == [3]
    assert len(fitting(placement, asked())) == 202
    assert fitting(placement, asked(count=17)) == ["large"]


def test_a_column_used_again_has_nothing_of_the_node_before() -> None:
    ledger = Ledger()
    placement = Placement(ledger)
    up(ledger, "old", 3)
    column = ledger.nodes["old"].column
    only_old = asked(uuid=("old-*",))
    assert fitting(placement, only_old) == ["old"]
    gone(ledger, "old")
    assert fitting(placement, asked()) == []
    sweep = placement.sweep(asked())
    assert sweep.limit_of(column) is Limit.NODE
    up(ledger, "new")
    assert ledger.nodes["new"].column == column
    assert fitting(placement, only_old) == []
    assert fitting(placement, asked(count=2)) == []
    assert fitting(placement, asked()) == ["new"]


def test_a_node_whose_object_is_gone_takes_nothing_though_its_inventory_is_still_there() -> None:
    ledger = Ledger()
    up(ledger, "n")
    ledger.remove_node("n")
    assert fitting(Placement(ledger), asked()) == []
    assert Placement(ledger).decide(asked(), "n") == Unfit(Limit.NODE)


def test_pods_are_remembered_while_their_nodes_inventory_is_away() -> None:
    ledger = Ledger()
    up(ledger, "n")
    ledger.put(held("a", "n", "n-0", 5))
    gone(ledger, "n")
    assert ledger.find("a") is not None
    up(ledger, "n")
    assert free(ledger, "n") == [3]
    gone(ledger, "n")
    ledger.drop("a")
    assert ledger.nodes == {}


def test_a_pod_known_before_its_node_is_counted_when_the_node_appears() -> None:
    ledger = Ledger()
    ledger.put(held("a", "n", "n-0", 8, 100))
    up(ledger, "n")
    entry = ledger.nodes["n"]
    assert free(ledger, "n") == [0]
    assert int(ledger.slots_free[0, entry.column]) == 0
    ledger.drop("a")
    assert int(ledger.slots_free[0, entry.column]) == 4


def test_a_removed_device_comes_back_with_what_its_pods_hold() -> None:
    ledger = Ledger()
    up(ledger, "n", 2)
    ledger.put(held("a", "n", "n-1", 5))
    ledger.set_inventory(inventory("n", 1))
    assert free(ledger, "n") == [8]
    ledger.set_inventory(inventory("n", 2))
    assert free(ledger, "n") == [8, 3]


def test_a_shrunken_device_is_overcommitted_and_takes_nothing_until_room_is_back() -> None:
    ledger = Ledger()
    up(ledger, "n")
    ledger.put(held("a", "n", "n-0", 7))
    ledger.set_inventory(inventory("n", memory=4))
    assert free(ledger, "n") == [-3]
    assert Placement(ledger).decide(asked(), "n") == Unfit(Limit.MEMORY, 1, 0, 1, "c", 1, True)
    ledger.drop("a")
    assert free(ledger, "n") == [4]


def test_a_pod_put_again_elsewhere_leaves_its_first_node() -> None:
    ledger = Ledger()
    up(ledger, "a")
    up(ledger, "b")
    ledger.put(held("u", "a", "a-0", 5))
    before = image(ledger)
    ledger.put(held("u", "a", "a-0", 5))
    assert image(ledger) == before
    ledger.put(held("u", "b", "b-0", 5))
    assert (free(ledger, "a"), free(ledger, "b")) == ([8], [3])
    ledger.drop("u")
    ledger.drop("u")
    assert free(ledger, "b") == [8]


def test_an_unknown_pod_is_counted_against_every_device_of_its_node() -> None:
    ledger = Ledger()
    up(ledger, "n", 2)
    ledger.put(PlacedPod("u", "default", "u", "n", {"c": APP}, None, asked(5)))
    assert free(ledger, "n") == [3, 3]
    ledger.drop("u")
    assert free(ledger, "n") == [8, 8]


def test_an_unknown_pod_whose_request_cannot_be_read_leaves_nothing_of_its_node() -> None:
    ledger = Ledger()
    up(ledger, "n", 2)
    ledger.put(PlacedPod("u", "default", "u", "n", {"c": APP}, None))
    assert free(ledger, "n") == [0, 0]
    assert fitting(Placement(ledger), asked(1)) == []
    ledger.drop("u")
    assert free(ledger, "n") == [8, 8]
    assert fitting(Placement(ledger), asked(1)) == ["n"]


def test_one_sick_device_beside_a_full_one_says_health_and_a_healthy_one_beside_is_usable() -> None:
    ledger = Ledger()
    cards = tuple(Device(f"n-{at}", at, "mock", "T4", 8, 4, healthy=at != 0) for at in range(2))
    ledger.set_inventory(Inventory(node="n", devices=cards))
    ledger.set_node("n", kubelet_resource=True)
    placement = Placement(ledger)
    assert fitting(placement, asked()) == ["n"]
    assert placement.decide(asked(count=2), "n") == Unfit(Limit.HEALTH, 2, 1, 2, "c", 1, False)


Event = Callable[[Ledger], None]


def without_pod(ledger: Ledger) -> None:
    ledger.drop("full")


EVENTS: dict[str, list[Event]] = {
    "a pod goes": [without_pod],
    "a pod shrinks": [lambda ledger: ledger.put(held("full", "n", "n-0", 1))],
    "a pod moves away": [lambda ledger: ledger.put(held("full", "m", "m-0", 1))],
    "a device is added": [lambda ledger: ledger.set_inventory(inventory("n", 2))],
    "a device grows": [lambda ledger: ledger.set_inventory(inventory("n", memory=16))],
    "a device is well again": [
        lambda ledger: ledger.set_inventory(inventory("n", healthy=False)),
        without_pod,
        lambda ledger: ledger.set_inventory(inventory("n")),
    ],
    "the daemon serves again": [
        lambda ledger: ledger.set_inventory(inventory("n", serving=False)),
        without_pod,
        lambda ledger: ledger.set_inventory(inventory("n")),
    ],
    "the kubelet lists its devices again": [
        lambda ledger: ledger.set_node("n", kubelet_resource=False),
        without_pod,
        lambda ledger: ledger.set_node("n", kubelet_resource=True),
    ],
    "the inventory is back": [
        lambda ledger: ledger.remove_inventory("n"),
        without_pod,
        lambda ledger: ledger.set_inventory(inventory("n")),
    ],
    "the node object is back": [
        lambda ledger: ledger.remove_node("n"),
        without_pod,
        lambda ledger: ledger.set_node("n", kubelet_resource=True),
    ],
    "a new node": [lambda ledger: gone(ledger, "n"), without_pod, lambda ledger: up(ledger, "n")],
}
"""Rows of events on a node that is full; the last one makes a pod fit."""


@pytest.mark.parametrize("event", EVENTS)
def test_whatever_makes_a_pod_fit_marks_its_node(event: str) -> None:
    *before, happens = EVENTS[event]
    ledger = Ledger()
    placement = Placement(ledger)
    up(ledger, "n")
    ledger.put(held("full", "n", "n-0", 8))
    for earlier in before:
        earlier(ledger)
    assert fitting(placement, asked(4)) == []
    ledger.freed.clear()
    happens(ledger)
    assert fitting(placement, asked(4)) == ["n"]
    assert "n" in ledger.freed


def test_an_uncordoned_node_is_marked_and_one_that_stays_as_it_was_is_not() -> None:
    ledger = Ledger()
    up(ledger, "n")
    ledger.set_node("n", kubelet_resource=True, schedulable=False)
    ledger.freed.clear()
    ledger.set_node("n", kubelet_resource=True, schedulable=False)
    ledger.set_inventory(inventory("n"))
    assert ledger.freed == set()
    ledger.set_node("n", kubelet_resource=True, schedulable=True)
    assert ledger.freed == {"n"}


def test_a_node_that_turns_bad_is_not_marked() -> None:
    ledger = Ledger()
    up(ledger, "n")
    ledger.freed.clear()
    ledger.set_node("n", kubelet_resource=True, schedulable=False)
    ledger.put(held("a", "n", "n-0", 1))
    ledger.set_node("n", kubelet_resource=False, schedulable=False)
    assert ledger.freed == set()
