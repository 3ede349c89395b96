"""The formats that other programs read: inventory (the CRD's `spec`) and allocation (a pod annotation), with versions.

An unknown version is refused by name. Allocation version 1:

    {"v":1,"containers":{"main":[{"device":"mock-n1-0","memory":8589934592,"cores":30}]}}
"""

from typing import Any

import msgspec
from msgspec import Struct

from hamipy.core.errors import InvalidInventory, InvalidRequest, UnknownVersion
from hamipy.core.model import CORES_PER_DEVICE, DEVICES_MAX, MEMORY_MAX, Allocation, Inventory, Share
from hamipy.core.names import ALLOCATION

ALLOCATION_VERSION = 1
"""Highest allocation version this build writes and reads."""

ALLOCATION_VERSIONS = (1,)
"""Allocation versions this build reads."""

INVENTORY_VERSION = "hamipy.io/v1alpha1"
"""API version of the NodeDevices object this build writes and reads."""

_MAX_ALLOCATION = 64 * 1024
_FIELD = f"metadata.annotations[{ALLOCATION}]"


class _Version(Struct, frozen=True):
    v: int


class _AllocationV1(Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    containers: dict[str, tuple[Share, ...]]


_version = msgspec.json.Decoder(_Version)
_allocation_v1 = msgspec.json.Decoder(_AllocationV1)


def encode_allocation(allocation: Allocation) -> str:
    """Text of the annotation; equal allocations give equal text."""
    containers = dict(sorted(allocation.containers.items()))
    return msgspec.json.encode(_AllocationV1(v=ALLOCATION_VERSION, containers=containers)).decode()


def decode_allocation(text: str) -> Allocation:
    """Read an annotation.

    Raises:
        UnknownVersion: written by a newer hamipy.
        InvalidRequest: not an allocation.
    """
    if len(text) > _MAX_ALLOCATION:
        raise InvalidRequest(_FIELD, text, f"longer than {_MAX_ALLOCATION} bytes, not written by hamipy's scheduler")
    try:
        version = _version.decode(text).v
        if version not in ALLOCATION_VERSIONS:
            raise UnknownVersion(_FIELD, version, ALLOCATION_VERSIONS)
        wire = _allocation_v1.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:  # msgspec descends into fields that it skips
        raise InvalidRequest(_FIELD, text, f"is not an allocation ({error})") from error
    if not wire.containers:
        raise InvalidRequest(f"{_FIELD}.containers", wire.containers, "must name at least one container")
    for container, shares in wire.containers.items():
        where = f"{_FIELD}.containers[{container}]"
        if not shares:
            raise InvalidRequest(where, shares, "must name at least one device")
        if len({s.device for s in shares}) != len(shares):
            raise InvalidRequest(where, [s.device for s in shares], "names a device twice")
        for share in shares:
            if not share.device or not 0 <= share.memory <= MEMORY_MAX or not 0 <= share.cores <= CORES_PER_DEVICE:
                raise InvalidRequest(where, share, f"needs a device, memory 0..{MEMORY_MAX} bytes and cores 0..100")
    return Allocation(wire.containers)


def encode_inventory(inventory: Inventory) -> dict[str, Any]:
    """The `spec` of a NodeDevices object (the node's name is the object's).

    What a reader decides with is written out even where it has its default, for a later version's default may differ.
    """
    spec: dict[str, Any] = msgspec.to_builtins(inventory)
    del spec["node"]
    return {
        "families": list(inventory.families),
        "serving": inventory.serving,
        "allocationVersion": inventory.allocation_version,
        "topologyPolicy": inventory.topology_policy,
        **spec,
    }


def decode_inventory(node: str, api_version: str, spec: Any) -> Inventory:
    """Read a NodeDevices object.

    Raises:
        UnknownVersion: another API version.
        InvalidInventory: the object contradicts the schema or itself; the message names the field.
    """
    if api_version != INVENTORY_VERSION:
        raise UnknownVersion(f"NodeDevices {node}", api_version, (INVENTORY_VERSION,))
    if isinstance(spec, dict) and "node" in spec:
        raise InvalidInventory(f"NodeDevices {node} spec.node", spec["node"], "is the object's name; leave it out")
    try:
        inventory = msgspec.convert({**spec, "node": node}, Inventory)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInventory(f"NodeDevices {node} spec", spec, str(error)) from error
    check_inventory(inventory)
    return inventory


def check_inventory(inventory: Inventory) -> None:
    """Hold an inventory to what the types cannot say.

    Raises:
        InvalidInventory: names the first field that is wrong.
    """
    top = f"NodeDevices {inventory.node} spec"
    if inventory.allocation_version < 1:
        raise InvalidInventory(f"{top}.allocationVersion", inventory.allocation_version, "1 or more")
    if len(inventory.devices) > DEVICES_MAX:
        raise InvalidInventory(f"{top}.devices", f"{len(inventory.devices)} devices", f"{DEVICES_MAX} at most")
    seen: set[str] = set()
    for position, device in enumerate(inventory.devices):
        where = f"{top}.devices[{position}]"
        if not device.id or len(device.id) > 57 or "::" in device.id or device.id.split() != [device.id]:
            raise InvalidInventory(f"{where}.id", device.id, "1..57 characters without blanks and '::'")
        if device.id in seen:
            raise InvalidInventory(f"{where}.id", device.id, "stands twice")
        seen.add(device.id)
        if not 0 <= device.memory <= MEMORY_MAX:
            raise InvalidInventory(f"{where}.memory", device.memory, f"bytes, 0..{MEMORY_MAX}")
        if not 0 <= device.cores <= CORES_PER_DEVICE:
            raise InvalidInventory(f"{where}.cores", device.cores, "percent, 0..100")
        if not 1 <= device.slots <= 1000:
            raise InvalidInventory(f"{where}.slots", device.slots, "1..1000 concurrent shares")
