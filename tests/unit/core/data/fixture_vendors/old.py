"""Written for another version of the contract."""

from hamipy.core.vendor import Discovered, Vendor, hookimpl


@hookimpl
def hamipy_vendors() -> list[Vendor]:
    return [Vendor(name="old", discover=Discovered, version=0)]
