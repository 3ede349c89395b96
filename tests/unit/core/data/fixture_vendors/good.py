"""A vendor as it should be."""

from collections.abc import Callable

from hamipy.core.model import Device
from hamipy.core.vendor import Discovered, Vendor, VendorContext, hookimpl


@hookimpl
def hamipy_vendors(context: Callable[[str], VendorContext]) -> list[Vendor]:
    memory = int(context("acme").settings.get("memory", 1))

    def discover() -> Discovered:
        return Discovered(devices=(Device("acme-0", 0, "acme", "X1", memory, 10),))

    return [Vendor(name="acme", discover=discover)]
