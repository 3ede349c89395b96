"""Implements a hook that does not exist."""

from hamipy.core.vendor import hookimpl


@hookimpl
def hamipy_vendor() -> list[object]:
    return []
