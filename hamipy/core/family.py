"""Families: vocabularies of resource names, as data.

A family says which names a container may write in `limits` and what each one means; the scheduler and the webhook
know meanings only. The neutral family `hamipy.io` is one of them, and the one whose names the kubelet knows.
"""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from hamipy.core.errors import InvalidField
from hamipy.core.model import Device
from hamipy.core.names import DOMAIN


class Meaning(StrEnum):
    """What a resource name asks for."""

    COUNT = "count"
    """Number of distinct devices."""
    MEMORY = "memory"
    """Memory on each device, in the resource's unit."""
    MEMORY_PERCENTAGE = "memory-percentage"
    """Memory on each device, as percent of whichever device is chosen."""
    CORES = "cores"
    """Percent of each device's compute; 100 is exclusive."""
    MEMORY_TOTAL = "memory-total"
    """Devices x memory in bytes; written by the webhook, for ResourceQuota."""


class Resource(Struct, frozen=True, forbid_unknown_fields=True):
    """One name of a family.

    Attributes:
        name: as it stands in `limits`.
        meaning: what it asks for.
        unit: bytes per 1 for memory, else 1.
        minimum, maximum: inclusive bounds of the written number; `maximum` 0 means none (memory never exceeds
            `model.MEMORY_MAX` bytes).
    """

    name: str
    meaning: Meaning
    unit: int = 1
    minimum: int = 1
    maximum: int = 0


class Family(Struct, frozen=True, forbid_unknown_fields=True):
    """One vocabulary.

    Attributes:
        name: unique; inventories list the families their node serves.
        resources: its names, at most one for each meaning.
        vendors: vendors it is limited to; empty for any.
    """

    name: str
    resources: tuple[Resource, ...]
    vendors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two names of one meaning, for the second would be ignored."""
        meanings = [r.meaning for r in self.resources]
        if len(set(meanings)) != len(meanings):
            raise InvalidField(f"family {self.name}.resources", meanings, "give each meaning one name")

    def named(self, meaning: Meaning) -> Resource | None:
        """The family's name for `meaning`, or None."""
        return next((r for r in self.resources if r.meaning is meaning), None)

    def capacity(self, devices: tuple[Device, ...]) -> dict[str, int]:
        """What a node with `devices` publishes under the family's names, in their units.

        Memory is the sum over the devices (rounded down to the unit), percentages are 100 for each device. The
        kubelet's own resource (devices x slots) is published by the device plugin and is not among them.
        """
        amounts = {
            Meaning.MEMORY: sum(d.memory for d in devices),
            Meaning.MEMORY_TOTAL: sum(d.memory for d in devices),
            Meaning.MEMORY_PERCENTAGE: 100 * len(devices),
            Meaning.CORES: sum(d.cores for d in devices),
        }
        return {r.name: amounts[r.meaning] // r.unit for r in self.resources if r.meaning in amounts}


NEUTRAL = Family(
    name=DOMAIN,
    resources=(
        Resource(f"{DOMAIN}/device", Meaning.COUNT, maximum=1024),
        Resource(f"{DOMAIN}/memory", Meaning.MEMORY, minimum=2**20),
        Resource(f"{DOMAIN}/memory-percentage", Meaning.MEMORY_PERCENTAGE, maximum=100),
        Resource(f"{DOMAIN}/cores", Meaning.CORES, maximum=100),
        Resource(f"{DOMAIN}/memory-total", Meaning.MEMORY_TOTAL),
    ),
)
"""The vendor-neutral family `hamipy.io`."""


def read_family(document: Any) -> Family:
    """A family from its document (a mapping, as YAML gives it).

    Raises:
        InvalidField: names what is wrong.
    """
    try:
        return msgspec.convert(document, Family)
    except msgspec.ValidationError as error:
        raise InvalidField("family", document, str(error)) from error


class Families:
    """The loaded families, indexed by resource name.

    Raises:
        InvalidField: two families claim one name.
    """

    def __init__(self, families: tuple[Family, ...] = (NEUTRAL,)) -> None:
        self.all = families
        self.by_resource: dict[str, tuple[Family, Resource]] = {}
        for family in families:
            for resource in family.resources:
                if resource.name in self.by_resource:
                    other = self.by_resource[resource.name][0].name
                    raise InvalidField(f"family {family.name}", resource.name, f"is already a name of family {other}")
                self.by_resource[resource.name] = (family, resource)
        self.domains = tuple(sorted({f"{f.name}/" for f in families}))

    def ours(self, name: str) -> bool:
        """Whether `name` is a resource of a family, or lies in a family's own domain."""
        return name in self.by_resource or name.startswith(self.domains)
