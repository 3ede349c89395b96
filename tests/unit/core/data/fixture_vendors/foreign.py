"""Offers something that is no vendor."""

from hamipy.core.vendor import hookimpl


@hookimpl
def hamipy_vendors() -> list[object]:
    return [{"name": "foreign"}]
