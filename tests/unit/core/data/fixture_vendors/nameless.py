"""Names its vendor with something that is no text."""

from typing import Any

from hamipy.core.vendor import Discovered, Vendor, hookimpl

NAME: Any = None


@hookimpl
def hamipy_vendors() -> list[Vendor]:
    return [Vendor(name=NAME, discover=Discovered)]
