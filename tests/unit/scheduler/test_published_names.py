"""Which names a node should carry, and what has to be written for it."""

import pytest

from hamipy.core.family import NEUTRAL, Families, Family, Meaning, Resource
from hamipy.core.model import Device, Inventory
from hamipy.scheduler.publisher import difference, published
from hamipy.scheduler.state import NodeView

GI = 2**30
OTHER = Family("example.com", (Resource("example.com/mem", Meaning.MEMORY, unit=2**20),), vendors=("mock",))
FAMILIES = Families((NEUTRAL, OTHER))


def inventory(*devices: Device, families: tuple[str, ...] = ("hamipy.io",), serving: bool = True) -> Inventory:
    return Inventory("n1", families=families, devices=devices, serving=serving)


def card(index: int = 0, *, memory: int = 14 * GI, cores: int = 100, healthy: bool = True) -> Device:
    return Device(f"d{index}", index, "mock", "T4", memory, 10, cores=cores, healthy=healthy)


def node(capacity: dict[str, str], allocatable: dict[str, str] | None = None) -> NodeView:
    return NodeView("n1", "uid", capacity, capacity if allocatable is None else allocatable, False)


ONE = {
    "hamipy.io/cores": "100",
    "hamipy.io/memory": "14Gi",
    "hamipy.io/memory-percentage": "100",
    "hamipy.io/memory-total": "14Gi",
}


def test_sums_over_the_devices_are_published_in_the_names_own_units() -> None:
    names = published(FAMILIES, inventory(card(0), card(1, memory=80 * GI), families=("hamipy.io", "example.com")), {})

    assert names == {
        "example.com/mem": str(94 * 1024),
        "hamipy.io/cores": "200",
        "hamipy.io/memory": "94Gi",
        "hamipy.io/memory-percentage": "200",
        "hamipy.io/memory-total": "94Gi",
    }


def test_sick_devices_and_a_daemon_that_is_away_count_all_the_same() -> None:
    assert published(FAMILIES, inventory(card(0, healthy=False), serving=False), {}) == ONE


def test_only_the_families_that_a_node_serves_are_published() -> None:
    assert published(FAMILIES, inventory(card(), families=("example.com",)), {}) == {"example.com/mem": "14336"}


def test_never_less_than_what_is_requested() -> None:
    requested = {"hamipy.io/memory": 20 * GI, "hamipy.io/cores": 30, "hamipy.io/device": 3, "cpu": 4}

    assert published(FAMILIES, inventory(card()), requested) == {**ONE, "hamipy.io/memory": "20Gi"}


def test_without_an_inventory_only_what_is_requested_stays() -> None:
    assert published(FAMILIES, None, {}) == {}
    assert published(FAMILIES, None, {"hamipy.io/memory": 2 * GI}) == {"hamipy.io/memory": "2Gi"}


def test_without_devices_nothing_is_published() -> None:
    assert published(FAMILIES, inventory(), {}) == {}


def test_a_size_that_is_no_round_number_is_exact() -> None:
    assert published(FAMILIES, inventory(card(memory=14 * GI + 1)), {})["hamipy.io/memory"] == "15032385537"


def test_no_patch_when_both_maps_say_it_in_whatever_form() -> None:
    assert difference(FAMILIES, node(ONE), inventory(card()), ONE) is None
    there = {**ONE, "hamipy.io/memory": "15032385536", "hamipy.io/cores": "1e2", "hamipy.io/device": "10", "cpu": "4"}
    assert difference(FAMILIES, node(there), inventory(card()), ONE) is None


@pytest.mark.parametrize("there", ["0", "13Gi", "fourteen", "15Gi", None])
@pytest.mark.parametrize("which", ["capacity", "allocatable"])
def test_a_name_that_differs_in_either_map_is_written_into_both(there: str | None, which: str) -> None:
    wrong = {k: v for k, v in {**ONE, "hamipy.io/memory": there}.items() if v is not None}
    view = node(wrong, ONE) if which == "capacity" else node(ONE, wrong)

    assert difference(FAMILIES, view, inventory(card()), ONE) == {
        "status": {"capacity": {"hamipy.io/memory": "14Gi"}, "allocatable": {"hamipy.io/memory": "14Gi"}}
    }


@pytest.mark.parametrize("view", [node(ONE, {}), node({}, ONE), node({**ONE, "hamipy.io/old": "0"})])
def test_names_are_removed_never_zeroed_and_the_kubelets_is_not_touched(view: NodeView) -> None:
    view = NodeView(
        "n1", "uid", {**view.capacity, "hamipy.io/device": "0"}, {**view.allocatable, "hamipy.io/device": "0"}, False
    )
    patch = difference(FAMILIES, view, None, {})

    assert patch is not None
    names = (view.capacity.keys() | view.allocatable.keys()) - {"hamipy.io/device"}
    gone = dict.fromkeys(sorted(names))
    assert patch == {"status": {"capacity": gone, "allocatable": gone}}


def test_another_domains_names_are_removed_only_where_its_family_is_served() -> None:
    view = node({"example.com/mem": "5", "example.com/foreign": "7", "nvidia.com/gpu": "1"})

    assert difference(FAMILIES, view, None, {}) is None
    assert difference(FAMILIES, view, inventory(families=("hamipy.io",)), {}) is None
    patch = difference(FAMILIES, view, inventory(families=("example.com",)), {})
    assert patch == {"status": {"capacity": {"example.com/mem": None}, "allocatable": {"example.com/mem": None}}}
