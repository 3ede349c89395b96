"""What a container runtime makes of CDI names: the environment and mounts that a container would see.

Public, for tests and demonstrations. Resolves names as containerd does: all `.json` files of the directory, the spec's
edits over what the pod says, so that environment set by a spec wins.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class CreateContainerError(Exception):
    """The runtime cannot create the container; the text is what the kubelet would show."""


@dataclass(frozen=True)
class StartedContainer:
    """One container as it sees itself.

    Attributes:
        env: environment, the pod's own with the specs' over it.
        mounts: container path -> (host path, options).
        devices: paths of device nodes.
    """

    env: Mapping[str, str]
    mounts: Mapping[str, tuple[Path, tuple[str, ...]]] = field(default_factory=dict)
    devices: tuple[str, ...] = ()

    def read(self, path: str) -> bytes:
        """Content of a file as the container sees it. Raises FileNotFoundError where nothing is mounted."""
        for mounted, (host, _) in self.mounts.items():
            if path == mounted:
                return host.read_bytes()
            if path.startswith(f"{mounted}/"):
                return (host / path.removeprefix(f"{mounted}/")).read_bytes()
        raise FileNotFoundError(path)

    @property
    def limits(self) -> Any:
        """`/run/hamipy/limits.json`, decoded."""
        return json.loads(self.read("/run/hamipy/limits.json"))


def create(directory: Path, names: Iterable[str], env: Mapping[str, str] | None = None) -> StartedContainer:
    """Create a container with these fully qualified CDI names (`hamipy.io/share=ab12`).

    Args:
        directory: where the specs are.
        names: what Allocate answered.
        env: what the pod's author wrote.

    Raises:
        CreateContainerError: a name has no spec, or a spec mounts what is not there.
    """
    known: dict[str, Any] = {}
    for path in sorted(directory.glob("*.json")):
        spec = json.loads(path.read_text())
        known |= {f"{spec['kind']}={d['name']}": d["containerEdits"] for d in spec["devices"]}
    seen = dict(env or {})
    mounts: dict[str, tuple[Path, tuple[str, ...]]] = {}
    devices: list[str] = []
    missing = sorted(set(names) - known.keys())
    if missing:
        raise CreateContainerError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    for name in names:
        edits = known[name]
        seen |= dict(e.split("=", 1) for e in edits.get("env", []))
        devices += [n["path"] for n in edits.get("deviceNodes", [])]
        for mount in edits.get("mounts", []):
            host = Path(mount["hostPath"])
            if not host.exists():
                raise CreateContainerError(f"mount source {host} does not exist")
            mounts[mount["containerPath"]] = (host, tuple(mount.get("options", ())))
    return StartedContainer(seen, mounts, tuple(devices))
