"""The mock vendor: devices that exist in a file only, for trying hamipy and for its tests.

Settings (`vendors.mock` in the configuration):

    profile        name of a profile, or a path to one; no devices when there is none
    profile-file   a file whose text, when it exists, is the profile instead (changes are picked up)
    health-file    YAML of `<device id or index>: <reason>`: those devices are sick, others well;
                   the reason `removed` takes the device away
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hamipy.core.errors import InvalidField
from hamipy.core.vendor import Discovered, Vendor, VendorContext, hookimpl

_POLL = 0.5
"""Seconds between looks at the files."""


class Settings(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The vendor's own section of the configuration, see the package."""

    profile: str = ""
    profile_file: str = ""
    health_file: str = ""


class Mock:
    """Reads the files anew at every discovery."""

    def __init__(self, settings: Settings, node: str) -> None:
        self._settings, self._node = settings, node
        self._files = [Path(f) for f in (settings.profile_file, settings.health_file) if f]

    def discover(self) -> Discovered:
        """The devices of the profile; a bad profile or health file is a problem, not an error."""
        name = self._profile_name()
        if not name:
            return Discovered()
        from hamipy.vendors.mock import profile  # PyYAML costs memory that a node without mock devices need not pay

        try:
            pretend = profile.load(name)
            well = profile.devices(pretend, self._node, name, {})
        except InvalidField as error:
            return Discovered(problem=str(error))
        try:
            health = profile.read_health(Path(self._settings.health_file)) if self._settings.health_file else {}
            return Discovered(profile.devices(pretend, self._node, name, health))
        except InvalidField as error:
            return Discovered(well, problem=str(error))

    def watch(self, changed: Callable[[], None], stopped: Callable[[], bool]) -> None:
        """Poll the files' modification times."""
        seen = self._stamps()
        while not stopped():
            time.sleep(_POLL)
            if (now := self._stamps()) != seen:
                seen = now
                changed()

    def _profile_name(self) -> str:
        try:
            if self._settings.profile_file:
                return Path(self._settings.profile_file).read_text().strip()
        except OSError:
            pass  # no override: what is configured holds
        return self._settings.profile

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(f) for f in self._files]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(settings: Any) -> Settings:
    try:
        return msgspec.convert(dict(settings), Settings)
    except msgspec.ValidationError as error:
        raise InvalidField("vendors.mock", dict(settings), f"{error}; known are profile, health-file") from error


@hookimpl
def hamipy_vendors(context: Callable[[str], VendorContext]) -> Sequence[Vendor]:
    """Offer the vendor `mock`."""
    of_mock = context("mock")
    mock = Mock(_read(of_mock.settings), of_mock.node)
    return [Vendor(name="mock", discover=mock.discover, watch=mock.watch)]
