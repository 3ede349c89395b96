"""Offers two vendors, lazily."""

from collections.abc import Iterator

from hamipy.core.vendor import Discovered, Vendor, hookimpl


@hookimpl
def hamipy_vendors() -> Iterator[Vendor]:
    yield Vendor(name="one", discover=Discovered)
    yield Vendor(name="two", discover=Discovered)
