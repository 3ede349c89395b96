"""Profiles: pretend hardware as YAML data.

A profile lists devices (`count` of each kind, 1 unless written) and links between them by index, first match wins:

    devices:
      - {count: 4, model: Mock A100, memory: 80Gi, slots: 16, numa: 0}
    links:
      - {between: [0, 1, 2, 3], kind: NV12, bandwidth: 300}
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct

from hamipy.core.errors import InvalidField
from hamipy.core.model import CORES_PER_DEVICE, Device, Link
from hamipy.core.quantity import parse_int

VENDOR = "mock"
REMOVED = "removed"
"""In a health file, instead of a reason: the device is not there at all."""

_PROFILES = Path(__file__).parent / "profiles"


class Kind(Struct, frozen=True, forbid_unknown_fields=True):
    """`count` equal devices; `memory` is a Kubernetes quantity, the rest as in `core.model.Device`."""

    model: str
    memory: str
    slots: int = 16
    count: int = 1
    cores: int = CORES_PER_DEVICE
    numa: int = -1


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """Devices (by index) that reach each other by one kind of link; bandwidth in GB/s."""

    between: list[int]
    kind: str
    bandwidth: float = 0.0


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """One profile; see the module."""

    devices: list[Kind]
    links: list[Group] = []


def names() -> list[str]:
    """The profiles that come with hamipy."""
    return sorted(p.stem for p in _PROFILES.glob("*.yaml"))


def load(name: str) -> Profile:
    """A profile by name, or by path when the name has a slash.

    Raises:
        InvalidField: no such profile, or the file is not one.
    """
    path = Path(name) if "/" in name else _PROFILES / f"{name}.yaml"
    if "/" not in name and name not in names():
        raise InvalidField("vendors.mock.profile", name, f"is not a profile; there are {', '.join(names())}")
    try:
        return msgspec.convert(yaml.safe_load(path.read_text()), Profile)
    except OSError as error:
        raise InvalidField("vendors.mock.profile", name, f"cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InvalidField("vendors.mock.profile", name, f"is not a profile: {_one_line(error)}") from error


def read_health(path: Path) -> dict[str, str]:
    """Reasons by device id or index, as text; empty when there is no file.

    Raises:
        InvalidField: the file is not a mapping of devices to reasons.
    """
    try:
        document = yaml.safe_load(path.read_text())
        document = {} if document is None else document
        return {str(k): v for k, v in msgspec.convert(document, dict[str | int, str]).items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidField("vendors.mock.health-file", str(path), f"cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        fix = f"must be lines of `<device id or index>: <reason>` ({_one_line(error)})"
        raise InvalidField("vendors.mock.health-file", str(path), fix) from error


def devices(profile: Profile, node: str, name: str, health: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices of `profile` on `node`; their ids depend on node, profile name and index alone.

    Raises:
        InvalidField: an amount or a link of the profile is wrong, or the health file names an unknown device.
    """
    kinds = [kind for kind in profile.devices for _ in range(kind.count)]
    digest = hashlib.sha256(f"{node}\n{name}".encode()).hexdigest()[:8]
    ids = [f"{VENDOR}-{node[:32]}-{digest}-{index}" for index in range(len(kinds))]
    unknown = sorted(set(health) - set(ids) - {str(index) for index in range(len(ids))})
    if unknown:
        raise InvalidField(
            "vendors.mock.health-file", unknown[0], f"is no device of {name} on {node}: 0..{len(ids) - 1}"
        )
    links = _links(profile, ids)
    found = []
    for index, (device, kind) in enumerate(zip(ids, kinds, strict=True)):
        reason = health.get(device) or health.get(str(index)) or ""
        if reason == REMOVED:
            continue
        try:
            memory = parse_int(kind.memory)
        except ValueError as error:
            raise InvalidField(f"mock profile {name} devices[{index}].memory", kind.memory, str(error)) from error
        found.append(
            Device(
                id=device,
                index=index,
                vendor=VENDOR,
                model=kind.model,
                memory=memory,
                slots=kind.slots,
                cores=kind.cores,
                numa=kind.numa,
                healthy=not reason,
                reason=reason,
                links=links[index],
            )
        )
    return tuple(found)


def _links(profile: Profile, ids: list[str]) -> list[dict[str, Link]]:
    links: list[dict[str, Link]] = [{} for _ in ids]
    for group in profile.links:
        for a in group.between:
            for b in group.between:
                if not 0 <= a < len(ids) or not 0 <= b < len(ids):
                    raise InvalidField("mock profile links.between", group.between, f"indices 0..{len(ids) - 1}")
                if a != b:
                    links[a].setdefault(ids[b], Link(group.kind, group.bandwidth))
    return links


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
