"""The formats that other programs read: their golden text, the way back, and what is refused by name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamipy.core.codec import (
    INVENTORY_VERSION,
    check_inventory,
    decode_allocation,
    decode_inventory,
    encode_allocation,
    encode_inventory,
)
from hamipy.core.errors import InvalidInventory, InvalidRequest, UnknownVersion
from hamipy.core.model import (
    DEVICES_MAX,
    MEMORY_MAX,
    Allocation,
    Device,
    Inventory,
    Link,
    Model,
    Nic,
    Partition,
    Share,
)
from tests.unit.core.budget import examples

Gi = 2**30
words = st.text("abcXYZ-0189._", min_size=1, max_size=12)
sizes = st.integers(0, MEMORY_MAX)

# -- allocation ------------------------------------------------------------------------------------------------------

ALLOCATION = Allocation(
    {
        "web": (Share("mock-n1-1", 8 * Gi, 30), Share("mock-n1-2", 8 * Gi, 30)),
        "init": (Share("mock-n1-1", 0, 100, "1g.5gb"),),
    }
)
ALLOCATION_TEXT = (
    '{"v":1,"containers":{"init":[{"device":"mock-n1-1","memory":0,"cores":100,"partition":"1g.5gb"}],'
    '"web":[{"device":"mock-n1-1","memory":8589934592,"cores":30},{"device":"mock-n1-2","memory":8589934592,"cores":30}]}}'
)


def test_allocation_version_1_is_this_text() -> None:
    assert encode_allocation(ALLOCATION) == ALLOCATION_TEXT
    assert decode_allocation(ALLOCATION_TEXT) == ALLOCATION


def test_equal_allocations_give_equal_text_whatever_order_they_were_made_in() -> None:
    turned = Allocation(dict(reversed(ALLOCATION.containers.items())))
    assert encode_allocation(turned) == ALLOCATION_TEXT


shares = st.builds(Share, words, sizes, st.integers(0, 100), st.none() | words)
allocations = st.dictionaries(
    words, st.lists(shares, min_size=1, max_size=4, unique_by=lambda s: s.device).map(tuple), min_size=1, max_size=4
).map(Allocation)


@examples(200)
@given(allocations)
def test_any_allocation_comes_back_as_it_was(allocation: Allocation) -> None:
    assert decode_allocation(encode_allocation(allocation)) == allocation


@pytest.mark.parametrize("version", [0, 2, 99])
def test_an_unknown_allocation_version_is_refused_by_name(version: int) -> None:
    said = (
        rf"metadata.annotations\[hamipy.io/allocation\] has version {version}, this build reads 1: upgrade the reader"
    )
    with pytest.raises(UnknownVersion, match=said):
        decode_allocation(json.dumps({"v": version, "whatever": {"comes": "later"}}))


ONE = {"device": "d", "memory": 1, "cores": 1}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("", "is not an allocation"),
        ("{", "is not an allocation"),
        ("null", "is not an allocation"),
        ("[]", "is not an allocation"),
        ('{"v":"1","containers":{}}', "is not an allocation"),
        ({"containers": {"a": [ONE]}}, "required field `v`"),
        ({"v": 1}, "required field `containers`"),
        ({"v": 1, "containers": {}}, "must name at least one container"),
        ({"v": 1, "containers": {"a": []}}, "must name at least one device"),
        ({"v": 1, "containers": {"a": [ONE, ONE]}}, "names a device twice"),
        ({"v": 1, "containers": {"a": [ONE]}, "node": "n"}, "unknown field `node`"),
        ({"v": 1, "containers": {"a": [{**ONE, "gpu": 1}]}}, "unknown field `gpu`"),
        ({"v": 1, "containers": {"a": [{"device": "d", "memory": 1}]}}, "required field `cores`"),
        ({"v": 1, "containers": {"a": [{**ONE, "device": ""}]}}, "needs a device"),
        ({"v": 1, "containers": {"a": [{**ONE, "memory": -1}]}}, "needs a device, memory 0.."),
        ({"v": 1, "containers": {"a": [{**ONE, "memory": MEMORY_MAX + 1}]}}, "needs a device, memory 0.."),
        ({"v": 1, "containers": {"a": [{**ONE, "memory": 10**30}]}}, "needs a device, memory 0.."),
        ({"v": 1, "containers": {"a": [{**ONE, "cores": 101}]}}, "cores 0..100"),
        ({"v": 1, "containers": {"a": [{**ONE, "cores": -1}]}}, "cores 0..100"),
        ({"v": 1, "containers": {"a": [{**ONE, "cores": "5"}]}}, "is not an allocation"),
        ({"v": 1, "containers": {"a": [{**ONE, "memory": 1.5}]}}, "is not an allocation"),
        ({"v": 1, "containers": {"a" * 70000: [ONE]}}, "longer than 65536 bytes, not written by hamipy's scheduler"),
        ("[" * 60000, "is not an allocation"),
        ('{"x":' + "[" * 60000, "is not an allocation"),
        ('{"v":1,"x":' + "[" * 20000 + "]" * 20000 + "}", "is not an allocation"),
    ],
)
def test_what_is_no_allocation_is_refused_in_one_sentence(document: object, said: str) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(InvalidRequest) as refusal:
        decode_allocation(text)
    sentence = str(refusal.value)
    assert sentence.startswith("metadata.annotations[hamipy.io/allocation]")
    assert said in sentence
    assert len(sentence) < 500


@examples(300)
@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
def test_any_text_is_an_allocation_or_refused(text: str) -> None:
    with pytest.raises((InvalidRequest, UnknownVersion)):
        decode_allocation(text)


# -- inventory -------------------------------------------------------------------------------------------------------

INVENTORY = Inventory(
    node="n1",
    serving=False,
    topology_policy="single-numa-node",
    models={"A100": Model((Partition("1g.5gb", 5 * Gi, 14, {"slices": 1}, (1, 2)),), {"slices": 7})},
    devices=(
        Device(
            "mock-n1-0", 0, "mock", "A100", 80 * Gi, 10, isolation=("mig",), links={"mock-n1-1": Link("NV12", 600.0)}
        ),
        Device("mock-n1-1", 1, "mock", "A100", 80 * Gi, 10, 60, 1, "0000:3b:00.0", False, "too hot"),
    ),
    nics=(Nic("mlx5_0", numa=1, distances={"mock-n1-1": "PIX"}),),
    problems={"acme": "no driver"},
)
INVENTORY_SPEC: dict[str, Any] = {
    "families": ["hamipy.io"],
    "allocationVersion": 1,
    "serving": False,
    "topologyPolicy": "single-numa-node",
    "models": {
        "A100": {
            "partitions": (
                {"name": "1g.5gb", "memory": 5 * Gi, "cores": 14, "counters": {"slices": 1}, "placements": (1, 2)},
            ),
            "counters": {"slices": 7},
        }
    },
    "devices": (
        {
            "id": "mock-n1-0",
            "index": 0,
            "vendor": "mock",
            "model": "A100",
            "memory": 80 * Gi,
            "slots": 10,
            "isolation": ("mig",),
            "links": {"mock-n1-1": {"kind": "NV12", "bandwidth": 600.0}},
        },
        {
            "id": "mock-n1-1",
            "index": 1,
            "vendor": "mock",
            "model": "A100",
            "memory": 80 * Gi,
            "slots": 10,
            "cores": 60,
            "numa": 1,
            "pci": "0000:3b:00.0",
            "healthy": False,
            "reason": "too hot",
        },
    ),
    "nics": ({"name": "mlx5_0", "numa": 1, "distances": {"mock-n1-1": "PIX"}},),
    "problems": {"acme": "no driver"},
}


def test_an_inventory_is_published_as_this_object() -> None:
    assert encode_inventory(INVENTORY) == INVENTORY_SPEC
    assert decode_inventory("n1", INVENTORY_VERSION, json.loads(json.dumps(INVENTORY_SPEC))) == INVENTORY


def test_what_a_reader_decides_with_is_written_even_where_it_is_the_default() -> None:
    assert encode_inventory(Inventory(node="n1")) == {
        "families": ["hamipy.io"],
        "serving": True,
        "allocationVersion": 1,
        "topologyPolicy": "unknown",
    }


def unique(devices: list[Device]) -> tuple[Device, ...]:
    return tuple({device.id: device for device in devices}.values())


devices = st.builds(
    Device,
    id=words,
    index=st.integers(0, 15),
    vendor=words,
    model=words,
    memory=sizes,
    slots=st.integers(1, 1000),
    cores=st.integers(0, 100),
    numa=st.integers(-1, 7),
    pci=st.text(max_size=12),
    healthy=st.booleans(),
    reason=st.text(max_size=12),
    isolation=st.lists(words, max_size=2).map(tuple),
    links=st.dictionaries(words, st.builds(Link, words, st.floats(0, 1000)), max_size=2),
)
inventories = st.builds(
    Inventory,
    node=words,
    families=st.lists(words, max_size=2).map(tuple),
    serving=st.booleans(),
    allocation_version=st.integers(1, 3),
    topology_policy=words,
    models=st.dictionaries(words, st.just(INVENTORY.models["A100"]), max_size=1),
    devices=st.lists(devices, max_size=4).map(unique),
    nics=st.lists(st.builds(Nic, words, distances=st.dictionaries(words, words, max_size=1)), max_size=1).map(tuple),
    problems=st.dictionaries(words, words, max_size=1),
)


@examples(200)
@given(inventories)
def test_any_inventory_comes_back_as_it_was(inventory: Inventory) -> None:
    spec = json.loads(json.dumps(encode_inventory(inventory)))
    assert decode_inventory(inventory.node, INVENTORY_VERSION, spec) == inventory


@pytest.mark.parametrize("version", ["hamipy.io/v1", "hamipy.io/v1alpha2", "", "example.com/v1alpha1"])
def test_an_unknown_inventory_version_is_refused_by_name(version: str) -> None:
    said = rf"NodeDevices n1 has version '{version}', this build reads 'hamipy.io/v1alpha1': upgrade the reader"
    with pytest.raises(UnknownVersion, match=said):
        decode_inventory("n1", version, {})


CARD: dict[str, Any] = {"id": "d", "index": 0, "vendor": "mock", "model": "T4", "memory": Gi, "slots": 10}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (None, "NodeDevices n1 spec"),
        ([], "NodeDevices n1 spec"),
        ("devices", "NodeDevices n1 spec"),
        ({"node": "n2"}, "spec.node: 'n2': is the object's name; leave it out"),
        ({"allocationVersion": 0}, "spec.allocationVersion: 0: 1 or more"),
        ({"serving": "yes"}, "$.serving"),
        ({"devices": {}}, "$.devices"),
        ({"devices": [{k: v for k, v in CARD.items() if k != "slots"}]}, "required field `slots` - at `$.devices[0]`"),
        ({"devices": [{**CARD, "memory": "1Gi"}]}, "$.devices[0].memory"),
        ({"devices": [{**CARD, "memory": -1}]}, "spec.devices[0].memory: -1: bytes, 0.."),
        ({"devices": [{**CARD, "memory": MEMORY_MAX + 1}]}, "spec.devices[0].memory: "),
        ({"devices": [{**CARD, "cores": 101}]}, "spec.devices[0].cores: 101: percent, 0..100"),
        ({"devices": [{**CARD, "cores": -1}]}, "spec.devices[0].cores: -1: percent, 0..100"),
        ({"devices": [{**CARD, "slots": 0}]}, "spec.devices[0].slots: 0: 1..1000 concurrent shares"),
        ({"devices": [{**CARD, "slots": 1001}]}, "spec.devices[0].slots: 1001: 1..1000 concurrent shares"),
        ({"devices": [{**CARD, "id": ""}]}, "spec.devices[0].id: '': 1..57 characters without blanks and '::'"),
        ({"devices": [{**CARD, "id": "x" * 58}]}, "1..57 characters"),
        ({"devices": [{**CARD, "id": "a b"}]}, "spec.devices[0].id: 'a b'"),
        ({"devices": [{**CARD, "id": "a\n"}]}, "spec.devices[0].id"),
        ({"devices": [{**CARD, "id": "a::1"}]}, "spec.devices[0].id: 'a::1'"),
        ({"devices": [CARD, {**CARD, "index": 1}]}, "spec.devices[1].id: 'd': stands twice"),
        (
            {"devices": [{**CARD, "id": f"d{at}"} for at in range(DEVICES_MAX + 1)]},
            "spec.devices: '257 devices': 256 at most",
        ),
    ],
)
def test_a_malformed_inventory_is_refused_by_its_field(spec: object, said: str) -> None:
    with pytest.raises(InvalidInventory) as refusal:
        decode_inventory("n1", INVENTORY_VERSION, spec)
    sentence = str(refusal.value)
    assert sentence.startswith("NodeDevices n1 spec")
    assert said in sentence
    assert len(sentence) < 400


def test_as_many_devices_as_allowed_are_read() -> None:
    check_inventory(Inventory("n1", devices=tuple(Device(f"d{at}", at, "m", "T4", 1, 1) for at in range(DEVICES_MAX))))


def test_what_a_newer_daemon_adds_is_ignored_so_that_neighbouring_versions_work_together() -> None:
    spec = {"serving": True, "colour": "red", "devices": [{**CARD, "colour": "red"}]}
    (device,) = decode_inventory("n1", INVENTORY_VERSION, spec).devices
    assert device.id == CARD["id"]
