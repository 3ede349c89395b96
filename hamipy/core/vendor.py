"""The vendor contract: what a device vendor provides, and nothing more.

A vendor is one Python package with the entry point group `hamipy.vendors`. Its module implements one hook, which
returns `Vendor` objects; a vendor does its work on the node only. Roles beyond discovery are optional: a vendor that
lacks one leaves the attribute None. Every role method may block; the node daemon runs it in a thread of the vendor's
own and bounds its time.

    from hamipy.core.vendor import Vendor, hookimpl

    @hookimpl
    def hamipy_vendors():
        return [Vendor(name="acme", discover=discover, edits=edits)]
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pluggy
from msgspec import Struct

from hamipy.core.model import Device, Model, Nic, Share

CONTRACT_VERSION = 1
"""Version of this contract; a vendor made for another major version is switched off by name."""

hookspec = pluggy.HookspecMarker("hamipy")
hookimpl = pluggy.HookimplMarker("hamipy")


class DeviceNode(Struct, frozen=True, omit_defaults=True):
    """A device node the container gets; `host_path` defaults to `path`, `permissions` is a subset of `rwm`."""

    path: str
    host_path: str = ""
    permissions: str = "rw"


class Mount(Struct, frozen=True, omit_defaults=True):
    """A bind mount the container gets."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")


class Hook(Struct, frozen=True, omit_defaults=True):
    """An OCI hook run by the runtime on the host; `name` is one of the CDI hook names (`createContainer`...)."""

    name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()


class ContainerEdits(Struct, frozen=True):
    """What makes a share usable inside the container, in CDI's terms (CDI specification 0.6, `containerEdits`)."""

    env: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    hooks: tuple[Hook, ...] = ()


class Discovered(Struct, frozen=True):
    """What a vendor found on this node; `devices` may carry sickness, `problem` says why the vendor finds nothing."""

    devices: tuple[Device, ...] = ()
    models: Mapping[str, Model] = {}
    nics: tuple[Nic, ...] = ()
    problem: str = ""


class ContainerShares(Struct, frozen=True):
    """One container that is about to start, with its shares of this vendor's devices.

    Attributes:
        pod_uid, namespace, pod, container: who it is.
        shares: in the order of the allocation.
        devices: the devices of `shares`, same order.
        directory: a directory of the host for files of this container alone; exists, removed with the share.
    """

    pod_uid: str
    namespace: str
    pod: str
    container: str
    shares: tuple[Share, ...]
    devices: tuple[Device, ...]
    directory: Path


class Discover(Protocol):
    """Finds the devices; called at start and again whenever `watch` says that something changed."""

    def __call__(self) -> Discovered:
        """Return all devices, sick ones too. Raises VendorError, or any error: the vendor is then shown as failing."""
        ...


class Watch(Protocol):
    """Tells of changes: calls `changed()` whenever discovery would answer differently, until `stopped()` is true."""

    def __call__(self, changed: Callable[[], None], stopped: Callable[[], bool]) -> None:
        """Block in a thread of its own; return when stopped. `stopped` is asked at least once a second."""
        ...


class Edits(Protocol):
    """Turns shares into what the container gets."""

    def __call__(self, container: ContainerShares) -> ContainerEdits:
        """Return the edits. Must be repeatable: it is called at every start of the container."""
        ...


class Prepare(Protocol):
    """Makes partitions (or anything else) ready before the container starts; idempotent, crash-safe."""

    def __call__(self, container: ContainerShares) -> None:
        """Return when the container may start. An error is shown to the pod's owner and tried again."""
        ...


class Release(Protocol):
    """Takes back what `prepare` made; called after the container's pod is gone, at least once."""

    def __call__(self, container: ContainerShares) -> None:
        """Return when nothing is left; idempotent."""
        ...


class Usage(Struct, frozen=True):
    """Momentary use of one device by one container (`container` empty: the whole device)."""

    device: str
    memory: int
    utilisation: float
    container: str = ""


@dataclass(frozen=True, kw_only=True)
class Vendor:
    """One vendor with its roles; all of them run on the node.

    Attributes:
        name: lower-case, unique, as pods write it in the `vendor` constraint.
        discover: finds devices.
        edits: shares -> container edits; None when limits.json and HAMIPY_DEVICES are all a container needs.
        watch: tells of changes; None: discovery is repeated at an interval.
        prepare, release: make and take back partitions.
        usage: momentary use, for metrics; a later version reads it, this one never calls it.
        version: CONTRACT_VERSION that the vendor was written for.
        families: family documents that the vendor ships, see `core.family`.
    """

    name: str
    discover: Discover
    edits: Edits | None = None
    watch: Watch | None = None
    prepare: Prepare | None = None
    release: Release | None = None
    usage: Callable[[], Sequence[Usage]] | None = None
    version: int = CONTRACT_VERSION
    families: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


@dataclass(frozen=True, kw_only=True)
class VendorContext:
    """What the node daemon gives each vendor at start.

    Attributes:
        settings: the vendor's own section of the configuration (`vendors.<name>`), unchecked.
        state: directory that survives restarts, the vendor's own.
        node: name of the node.
    """

    settings: Mapping[str, Any]
    state: Path
    node: str


class VendorHooks:
    """The hooks that a vendor package implements."""

    @hookspec
    def hamipy_vendors(self, context: Callable[[str], VendorContext]) -> Sequence[Vendor]:
        """Offer vendors; called once at start.

        Args:
            context: `context("acme")` gives the context of the vendor of that name.

        Returns:
            The vendors of this package, usually one. Raising switches the package off by name; the others go on.
        """
        raise NotImplementedError  # a specification: pluggy never calls it
