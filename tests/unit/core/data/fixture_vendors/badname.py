"""Names its vendor as no pod could write it."""

from hamipy.core.vendor import Discovered, Vendor, hookimpl


@hookimpl
def hamipy_vendors() -> list[Vendor]:
    return [Vendor(name="Bad Name", discover=Discovered)]
