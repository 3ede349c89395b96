"""The mock vendor: its profiles are inventories, and bad files are one sentence."""

import threading
import time
from pathlib import Path

import pytest

from hamipy.core import registry
from hamipy.core.codec import check_inventory
from hamipy.core.model import Inventory
from hamipy.core.vendor import Discovered, Vendor, VendorContext
from hamipy.vendors.mock import profile

GIB = 2**30


def vendor(tmp_path: Path, node: str = "n1", **settings: str) -> Vendor:
    defaults = {"health-file": str(tmp_path / "health.yaml"), "profile-file": str(tmp_path / "profile")}
    found = registry.load(
        lambda _: VendorContext(settings=defaults | settings, state=tmp_path, node=node), only=["mock"]
    )
    assert found.problems == {}
    return found.vendors["mock"]


def discover(tmp_path: Path, name: str, node: str = "n1") -> Discovered:
    return vendor(tmp_path, node, profile=name).discover()


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("t4x1", {"Mock T4": 1}),
        ("t4x2", {"Mock T4": 2}),
        ("a100x8", {"Mock A100": 8}),
        ("ascend910b-x8", {"Mock 910B": 8}),
        ("mixed", {"Mock T4": 2, "Mock A100": 2, "Mock 910B": 1}),
        ("none", {}),
    ],
)
def test_profiles_are_what_they_say(tmp_path: Path, name: str, models: dict[str, int]) -> None:
    found = discover(tmp_path, name)
    assert found.problem == ""
    check_inventory(Inventory(node="n1", devices=found.devices))
    counted: dict[str, int] = {}
    for device in found.devices:
        counted[device.model] = counted.get(device.model, 0) + 1
    assert counted == models


def test_every_profile_is_named_above() -> None:
    assert profile.names() == ["a100x8", "ascend910b-x8", "mixed", "none", "t4x1", "t4x2"]


def test_t4x1_is_one_14_gib_card(tmp_path: Path) -> None:
    (card,) = discover(tmp_path, "t4x1").devices
    assert card.memory == 14 * GIB


def test_a100x8_has_two_nvlink_groups_on_two_numa_nodes(tmp_path: Path) -> None:
    devices = discover(tmp_path, "a100x8").devices
    assert [d.memory for d in devices] == [80 * GIB] * 8
    assert [d.numa for d in devices] == [0] * 4 + [1] * 4
    for a in devices:
        for b in devices:
            if a is not b:
                assert a.links[b.id].kind == ("NV12" if a.numa == b.numa else "SYS")


def test_ids_are_the_same_each_time_and_differ_between_nodes_and_profiles(tmp_path: Path) -> None:
    ids = [d.id for d in discover(tmp_path, "t4x2").devices]
    assert ids == [d.id for d in discover(tmp_path, "t4x2").devices]
    others = [discover(tmp_path, "t4x2", "n2"), discover(tmp_path, "a100x8"), discover(tmp_path, "t4x2", "n" * 253)]
    everything = ids + [d.id for found in others for d in found.devices]
    assert len(set(everything)) == len(everything)
    assert max(map(len, everything)) <= 57


def test_devices_are_sick_by_index_or_id_and_gone_when_removed(tmp_path: Path) -> None:
    health = tmp_path / "health.yaml"
    mock = vendor(tmp_path, profile="t4x2")
    first, second = mock.discover().devices
    health.write_text(f"0: too hot\n{second.id}: removed\n")
    (sick,) = mock.discover().devices
    assert (sick.id, sick.healthy, sick.reason) == (first.id, False, "too hot")
    health.unlink()
    assert mock.discover().devices == (first, second)


@pytest.mark.parametrize("text", ["[1, 2]", "0", "{", "0: [a]", "7: no such device", "\x00"])
def test_bad_health_file_is_a_problem_and_changes_no_device(tmp_path: Path, text: str) -> None:
    (tmp_path / "health.yaml").write_text(text)
    found = discover(tmp_path, "t4x2")
    assert found.problem.startswith("vendors.mock.health-file: ")
    assert "\n" not in found.problem
    assert [d.healthy for d in found.devices] == [True, True]


def test_file_in_the_state_directory_overrides_the_configured_profile(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("t4x1\n")
    assert len(discover(tmp_path, "a100x8").devices) == 1


def test_no_profile_is_no_device_and_no_problem(tmp_path: Path) -> None:
    assert vendor(tmp_path).discover() == Discovered()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("devices: 3", "is not a profile"),
        ("devices: [{model: M}]", "memory"),
        ("devices: [{model: M, memory: lots}]", "not a Kubernetes quantity"),
        ("devices: [{model: M, memory: 1Gi}]\nlinks: [{between: [0, 1], kind: K}]", "indices 0..0"),
        ("devices: [{model: M, memory: 1Gi, colour: red}]", "colour"),
        ("}", "is not a profile"),
    ],
)
def test_bad_profile_is_one_sentence(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    found = discover(tmp_path, str(path))
    assert why in found.problem
    assert "\n" not in found.problem
    assert found.devices == ()


def test_unknown_profile_names_those_there_are(tmp_path: Path) -> None:
    assert "there are a100x8, ascend910b-x8, mixed, none, t4x1, t4x2" in discover(tmp_path, "t5").problem
    assert "cannot be read" in discover(tmp_path, str(tmp_path / "missing.yaml")).problem


def test_unknown_setting_switches_the_vendor_off_by_name(tmp_path: Path) -> None:
    context = VendorContext(settings={"profil": "t4x1"}, state=tmp_path, node="n1")
    found = registry.load(lambda _: context, only=["mock"])
    assert "unknown field `profil`" in found.problems["mock"]


def test_watch_tells_of_changed_files_and_stops(tmp_path: Path) -> None:
    mock = vendor(tmp_path, profile="t4x1")
    assert mock.watch is not None
    changed, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=mock.watch, args=(changed.set, stop.is_set))
    thread.start()
    deadline = time.monotonic() + 20
    while not changed.is_set() and time.monotonic() < deadline:
        (tmp_path / "health.yaml").write_text(f"0: at {time.monotonic()}")
        changed.wait(0.1)
    assert changed.is_set()
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
