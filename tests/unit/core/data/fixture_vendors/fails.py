"""Fails when it is asked for its vendors."""

from hamipy.core.vendor import Vendor, hookimpl


@hookimpl
def hamipy_vendors() -> list[Vendor]:
    raise RuntimeError("no driver")
