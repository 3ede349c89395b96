"""Offers a vendor of the same name as `good`."""

from hamipy.core.vendor import Discovered, Vendor, hookimpl


@hookimpl
def hamipy_vendors() -> list[Vendor]:
    return [Vendor(name="acme", discover=Discovered)]
