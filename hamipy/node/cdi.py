"""CDI specs: what the runtime adds to one container, one file for each name that Allocate answered.

Format: Container Device Interface 0.6.0 (https://github.com/cncf-tags/container-device-interface).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from hamipy.core.errors import HamipyError
from hamipy.core.names import CDI_KIND
from hamipy.core.vendor import ContainerEdits, DeviceNode, Hook, Mount
from hamipy.node.files import write_atomically

VERSION = "0.6.0"
_PREFIX = f"{CDI_KIND.replace('/', '-')}-"


class EditsConflict(HamipyError):
    """Two vendors want different values for one thing."""


def merge(parts: Iterable[ContainerEdits]) -> ContainerEdits:
    """All edits together, in order.

    Raises:
        EditsConflict: one environment variable or path with two values.
    """
    env: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    nodes: dict[str, DeviceNode] = {}
    hooks: list[Hook] = []
    for edits in parts:
        hooks.extend(h for h in edits.hooks if h not in hooks)
        for key, value in edits.env.items():
            if env.setdefault(key, value) != value:
                raise EditsConflict(f"environment {key} is set to {env[key]!r} and to {value!r} by two vendors")
        for mount in edits.mounts:
            if mounts.setdefault(mount.container_path, mount) != mount:
                raise EditsConflict(f"two vendors mount different things on {mount.container_path}")
        for node in edits.device_nodes:
            if nodes.setdefault(node.path, node) != node:
                raise EditsConflict(f"two vendors want different device nodes at {node.path}")
    return ContainerEdits(env, tuple(mounts.values()), tuple(nodes.values()), tuple(hooks))


def render(name: str, edits: ContainerEdits) -> bytes:
    """The spec file of device `name`."""
    container: dict[str, Any] = {"env": [f"{key}={value}" for key, value in sorted(edits.env.items())]}
    if edits.mounts:
        container["mounts"] = [
            {"hostPath": m.host_path, "containerPath": m.container_path, "options": list(m.options)}
            for m in edits.mounts
        ]
    if edits.device_nodes:
        container["deviceNodes"] = [
            {"path": n.path, "hostPath": n.host_path or n.path, "permissions": n.permissions}
            for n in edits.device_nodes
        ]
    if edits.hooks:
        container["hooks"] = [
            {"hookName": h.name, "path": h.path, "args": list(h.args), "env": list(h.env)} for h in edits.hooks
        ]
    spec = {"cdiVersion": VERSION, "kind": CDI_KIND, "devices": [{"name": name, "containerEdits": container}]}
    return msgspec.json.encode(spec)


class Specs:
    """The spec files of ours in the runtime's directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """File of one name."""
        return self.directory / f"{_PREFIX}{name}.json"

    def write(self, name: str, edits: ContainerEdits) -> None:
        """Write the spec of one name; an equal one is left alone, so that the runtime need not read it again."""
        path, content = self.path(name), render(name, edits)
        try:
            if path.read_bytes() == content:
                return
        except FileNotFoundError:
            self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)

    def remove(self, name: str) -> None:
        """Remove the spec of one name, if it is there."""
        self.path(name).unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        """Names that have a spec."""
        for path in self.directory.glob(f"{_PREFIX}*.json"):
            yield path.name.removeprefix(_PREFIX).removesuffix(".json")

    def temporaries(self) -> Iterator[Path]:
        """Files of ours that are being written, or that a crash left."""
        yield from self.directory.glob(f".{_PREFIX}*.tmp")
