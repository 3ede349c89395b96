"""Finds vendors by their entry points and keeps them apart: one that fails is switched off by name."""

import importlib.metadata
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pluggy

from hamipy.core.vendor import CONTRACT_VERSION, Vendor, VendorContext, VendorHooks

ENTRY_POINTS = "hamipy.vendors"
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@dataclass(frozen=True)
class Registered:
    """What was found: usable vendors by name, and for each entry point or vendor that is off, why."""

    vendors: dict[str, Vendor]
    problems: dict[str, str]


def installed() -> list[importlib.metadata.EntryPoint]:
    """The entry points of all installed vendor packages, by name."""
    return sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: e.name)


def load(
    context: Callable[[str], VendorContext],
    *,
    only: Iterable[str] | None = None,
    entry_points: Sequence[importlib.metadata.EntryPoint] | None = None,
) -> Registered:
    """Load the vendors.

    Args:
        context: gives a vendor its settings and state directory by name.
        only: names of the entry points to load, None for all. One that is not installed becomes a problem.
        entry_points: instead of the installed ones.
    """
    found = installed() if entry_points is None else list(entry_points)
    problems = {}
    if only is not None:
        wanted = set(only)
        for name in sorted(wanted - {e.name for e in found}):
            problems[name] = f"not installed; installed are {', '.join(e.name for e in found) or 'none'}"
        found = [e for e in found if e.name in wanted]
    vendors: dict[str, Vendor] = {}
    for entry in found:
        manager = pluggy.PluginManager("hamipy")
        manager.add_hookspecs(VendorHooks)
        try:
            manager.register(entry.load(), entry.name)
            manager.check_pending()
            offered = [v for answer in manager.hook.hamipy_vendors(context=context) for v in answer]
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a third party's package may raise anything; it is shown, the others go on
            problems[entry.name] = f"{type(error).__name__}: {error}"
            continue
        if not offered:
            problems[entry.name] = "the package offers no vendor (does it implement hamipy_vendors with @hookimpl?)"
        for vendor in offered:
            problem = _refuse(vendor, vendors)
            if problem:
                problems[_named(vendor, entry.name)] = problem
            else:
                vendors[vendor.name] = vendor
    return Registered(dict(sorted(vendors.items())), problems)


def _named(vendor: object, entry: str) -> str:
    name = getattr(vendor, "name", entry)
    return name if isinstance(name, str) else entry


def _refuse(vendor: object, others: dict[str, Vendor]) -> str:
    if not isinstance(vendor, Vendor):
        return f"hamipy_vendors answered {type(vendor).__name__}, not hamipy.core.vendor.Vendor"
    if vendor.version != CONTRACT_VERSION:
        return f"written for contract version {vendor.version}, this hamipy has {CONTRACT_VERSION}: update the package"
    if not isinstance(vendor.name, str) or not _NAME.fullmatch(vendor.name):
        return f"name {vendor.name!r} must be lower-case letters, digits and dashes, 31 at most"
    if vendor.name in others:
        return f"two packages offer a vendor named {vendor.name!r}: uninstall one"
    return ""
