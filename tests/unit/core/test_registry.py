"""Vendors are found by their entry points; one that is broken is switched off by name and the others work."""

from pathlib import Path

import pytest

from hamipy.core.registry import Registered, installed, load
from hamipy.core.vendor import VendorContext

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def fixture_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """`data` holds an installed distribution, metadata and all."""
    monkeypatch.syspath_prepend(str(DATA))


def loaded(*only: str) -> Registered:
    def context(name: str) -> VendorContext:
        return VendorContext(settings={"memory": 7} if name == "acme" else {}, state=Path("/nowhere") / name, node="n1")

    return load(context, only=only)


def test_a_third_partys_vendor_is_found_by_its_entry_point_and_gets_its_settings() -> None:
    assert "good" in [entry.name for entry in installed()]
    registered = loaded("good")
    assert list(registered.vendors) == ["acme"]
    assert registered.problems == {}
    (device,) = registered.vendors["acme"].discover().devices
    assert device.memory == 7


def test_a_package_may_offer_several_vendors() -> None:
    assert list(loaded("several").vendors) == ["one", "two"]


@pytest.mark.parametrize(
    ("broken", "name", "said"),
    [
        ("raises", "raises", "OSError: libacme.so: cannot open shared object file"),
        ("quits", "quits", "SystemExit: no licence"),
        ("absent", "absent", "ModuleNotFoundError: No module named 'fixture_vendors.absent'"),
        ("fails", "fails", "RuntimeError: no driver"),
        ("foreign", "foreign", "hamipy_vendors answered dict, not hamipy.core.vendor.Vendor"),
        ("old", "old", "written for contract version 0, this hamipy has 1: update the package"),
        ("badname", "Bad Name", "name 'Bad Name' must be lower-case letters, digits and dashes, 31 at most"),
        ("nameless", "nameless", "name None must be lower-case letters, digits and dashes, 31 at most"),
        ("silent", "silent", "the package offers no vendor (does it implement hamipy_vendors with @hookimpl?)"),
        ("misspelt", "misspelt", "unknown hook 'hamipy_vendor'"),
        ("twin", "acme", "two packages offer a vendor named 'acme': uninstall one"),
        ("elsewhere", "elsewhere", "not installed; installed are absent, badname, "),
    ],
)
def test_a_broken_vendor_is_switched_off_by_name_and_the_others_work(broken: str, name: str, said: str) -> None:
    registered = loaded("good", "several", broken)
    assert list(registered.vendors) == ["acme", "one", "two"]
    assert registered.vendors["acme"].discover().devices
    assert list(registered.problems) == [name]
    assert said in registered.problems[name]


def test_all_at_once_leave_the_good_ones() -> None:
    names = [entry.name for entry in installed() if entry.value.startswith("fixture_vendors.")]
    registered = loaded(*names)
    assert list(registered.vendors) == ["acme", "one", "two"]
    assert len(registered.problems) == len(names) - 2


def test_nothing_chosen_loads_nothing() -> None:
    assert load(lambda name: VendorContext(settings={}, state=Path("/"), node=name), only=()) == Registered({}, {})
