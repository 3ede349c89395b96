"""Isolation backends: how a share's limits are enforced in the container, beyond being told.

A backend is one entry of `BACKENDS`, by the name that devices list in `isolation`. A container's backend is the first
that its device lists (strongest first) and that this build has; a device that lists none is counted only.
"""

from collections.abc import Callable, Mapping

from hamipy.core.model import Device
from hamipy.core.vendor import ContainerEdits, ContainerShares

Backend = Callable[[ContainerShares], ContainerEdits]
"""Turns a container's shares into what enforces their limits; may block, is called at every start."""

BACKENDS: dict[str, Backend] = {}
"""The backends of this build."""


def backend_of(device: Device, backends: Mapping[str, Backend] = BACKENDS) -> str | None:
    """Name of the backend that holds limits on this device, or None."""
    return next((name for name in device.isolation if name in backends), None)
