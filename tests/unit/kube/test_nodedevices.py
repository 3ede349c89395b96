"""The NodeDevices object and its definition."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.inspect import StructType, multi_type_info

from hamipy.core.codec import encode_inventory
from hamipy.core.errors import InvalidInventory, UnknownVersion
from hamipy.core.model import Device, Inventory, Link, Model, Nic, Partition
from hamipy.kube.nodedevices import NodeDevices, crd_manifest, crd_text, manifest
from hamipy.testing._refusal import Refused
from hamipy.testing._schema import check_object

CHART = Path(__file__).parents[3] / "charts/hamipy/files/nodedevices.yaml"

FULL = Inventory(
    node="n1",
    families=("hamipy.io", "nvidia.com"),
    serving=False,
    allocation_version=2,
    topology_policy="single-numa-node",
    models={"A100": Model((Partition("1g.5gb", 5 << 30, 14, {"slices": 1}, (1, 2, 4)),), {"slices": 7})},
    devices=(
        Device(
            id="GPU-0",
            index=0,
            vendor="mock",
            model="A100",
            memory=80 << 30,
            slots=10,
            cores=90,
            numa=1,
            pci="0000:01:00.0",
            healthy=False,
            reason="on fire",
            isolation=("mig", "timeslice"),
            links={"GPU-1": Link("NV12", 300.5)},
        ),
        Device(id="GPU-1", index=1, vendor="mock", model="A100", memory=80 << 30, slots=10),
    ),
    nics=(Nic("mlx5_0", "rdma", 0, "0000:02:00.0", {"GPU-0": "PIX"}),),
    problems={"acme": "no driver"},
)


def schema() -> dict[str, Any]:
    found: dict[str, Any] = crd_manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def on_the_wire(inventory: Inventory) -> dict[str, Any]:
    obj: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(manifest(inventory, "uid")))
    return obj


def decoded(obj: dict[str, Any]) -> NodeDevices:
    return msgspec.json.decode(msgspec.json.encode(obj), type=NodeDevices)


def test_the_chart_ships_the_definition_that_we_apply() -> None:
    assert CHART.read_text() == crd_text()


def test_what_is_published_is_read_back_unchanged() -> None:
    assert decoded(manifest(FULL, "uid")).inventory() == FULL


def test_an_empty_inventory_is_read_back_unchanged() -> None:
    empty = Inventory("n1")
    assert decoded(manifest(empty, "uid")).inventory() == empty


def test_the_object_is_owned_by_its_node_and_summed_up_for_printing() -> None:
    obj = manifest(FULL, "uid")
    assert obj["metadata"]["ownerReferences"] == [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid"}]
    assert obj["summary"] == {"devices": 2, "healthy": 1, "memory": "160Gi", "vendors": "mock", "models": "A100"}


def test_the_schema_declares_everything_that_is_published() -> None:
    check_object("NodeDevices", on_the_wire(FULL), schema(), strict=True)


def test_the_schema_has_exactly_the_fields_of_the_model() -> None:
    """A field added to the model and forgotten in the schema would be refused by every API server."""
    spec = schema()["properties"]["spec"]["properties"]
    devices, models = spec["devices"]["items"]["properties"], spec["models"]["additionalProperties"]["properties"]
    declared = {
        Inventory: spec,
        Device: devices,
        Link: devices["links"]["additionalProperties"]["properties"],
        Model: models,
        Partition: models["partitions"]["items"]["properties"],
        Nic: spec["nics"]["items"]["properties"],
    }
    for struct, properties in declared.items():
        (info,) = multi_type_info([struct])
        assert isinstance(info, StructType)
        assert {f.encode_name for f in info.fields} - {"node"} == set(properties), struct.__name__


def test_lists_are_atomic_so_that_a_removed_device_goes() -> None:
    def lists(node: Any, path: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        wrong = [path] if node.get("type") == "array" and node.get("x-kubernetes-list-type") != "atomic" else []
        return wrong + [w for key, value in node.items() for w in lists(value, f"{path}.{key}")]

    assert lists(schema(), "") == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "serving"), "yes"),
        (("spec", "devices", 0, "memory"), -1),
        (("spec", "devices", 0, "memory"), 2**51),
        (("spec", "devices", 0, "memory"), 1.5),
        (("spec", "devices", 0, "cores"), 101),
        (("spec", "devices", 0, "slots"), 0),
        (("spec", "devices", 0, "slots"), True),
        (("spec", "devices", 0, "numa"), -2),
        (("spec", "devices", 0, "id"), "a::b"),
        (("spec", "devices", 0, "id"), "a b"),
        (("spec", "devices", 0, "id"), ""),
        (("spec", "devices", 0, "id"), "x" * 58),
        (("spec", "devices", 0, "unheard-of"), 1),
        (("spec", "node"), "n1"),
        (("spec", "devices"), {}),
        (("status",), {}),
    ],
)
def test_the_schema_refuses(path: tuple[Any, ...], value: object) -> None:
    obj = on_the_wire(FULL)
    at: Any = obj
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    with pytest.raises(Refused):
        check_object("NodeDevices", obj, schema(), strict=True)


@pytest.mark.parametrize("identity", ["GPU-8d5f", "a:b", ":a", "a:", "0000:01:00.0"])
def test_the_schema_takes_every_id_that_the_model_takes(identity: str) -> None:
    inventory = Inventory("n1", devices=(Device(identity, 0, "mock", "X", 1, 1),))
    check_object("NodeDevices", on_the_wire(inventory), schema(), strict=True)
    assert decoded(manifest(inventory, "uid")).inventory() == inventory


def test_another_version_is_refused_by_name() -> None:
    obj = {**manifest(FULL, "uid"), "apiVersion": "hamipy.io/v2"}
    with pytest.raises(UnknownVersion, match=r"hamipy\.io/v2"):
        decoded(obj).inventory()


@pytest.mark.parametrize(
    "spec",
    [[], None, 3, {"devices": 3}, {"devices": [{"id": "a"}]}, {"node": "n1"}],
)
def test_a_foreign_spec_is_refused_with_the_objects_name(spec: object) -> None:
    obj = {**manifest(FULL, "uid"), "spec": spec}
    with pytest.raises(InvalidInventory, match="NodeDevices n1"):
        decoded(obj).inventory()


def test_an_inventory_that_contradicts_itself_is_refused() -> None:
    twice = Inventory("n1", devices=(FULL.devices[1], FULL.devices[1]))
    with pytest.raises(InvalidInventory, match="stands twice"):
        decoded({**manifest(twice, "u"), "spec": encode_inventory(twice)}).inventory()


def test_an_object_without_spec_has_no_devices() -> None:
    assert decoded({"apiVersion": "hamipy.io/v1alpha1", "metadata": {"name": "n1"}}).inventory() == Inventory("n1")
