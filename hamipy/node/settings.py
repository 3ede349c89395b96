"""Settings of the node daemon."""

from pathlib import Path
from typing import Any

from msgspec import Struct

from hamipy.core.errors import InvalidField


class NodeSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `hamipy node` is told; the command line reads environment and files, the daemon reads neither.

    Attributes:
        node_name: name of this machine's Node object.
        kubeconfig: kubeconfig file; without it the pod's own service account, else the user's default.
        vendors: vendor packages to load, all that are installed when empty; in the configuration file this may be a
            mapping of vendor to its own settings (`vendors: {mock: {profile: t4x1}}`).
        mock_profile: profile of the mock vendor, short for `vendors: {mock: {profile: ...}}`.
        kubelet_dir: the kubelet's directory, with `device-plugins/` and `pod-resources/` below it.
        cdi_dir: where the container runtime looks for CDI specs that need not survive a reboot.
        state_dir: the daemon's own files; the same path inside its pod and on the host, for containers mount from it.
        health_port: port of /healthz, /readyz and /metrics on all addresses; 0 is any free port, -1 none.
        boot_id_file: file that tells one boot of the machine from the next.
        discovery_limit: seconds a vendor may take to answer (NVML on eight cold cards takes several).
        discovery_interval: seconds between discoveries of a vendor that cannot watch, or that has failed.
        clean_interval: seconds between looks for what dead pods left.
        drain_limit: seconds that a stopping daemon waits for pods already bound here to be admitted by the kubelet.
    """

    node_name: str
    kubeconfig: str | None = None
    vendors: tuple[str, ...] | dict[str, dict[str, Any]] | None = None
    mock_profile: str | None = None
    kubelet_dir: Path = Path("/var/lib/kubelet")
    cdi_dir: Path = Path("/var/run/cdi")
    state_dir: Path = Path("/var/lib/hamipy")
    health_port: int = 9465
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    discovery_limit: float = 30.0
    discovery_interval: float = 30.0
    clean_interval: float = 30.0
    drain_limit: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything has begun."""
        if not self.node_name or "/" in self.node_name:
            raise InvalidField("node-name", self.node_name, "must be the name of this machine's Node object")
        if not -1 <= self.health_port <= 65535:
            raise InvalidField("health-port", self.health_port, "must be a port, 0..65535, or -1 for none")
        for field in ("kubelet_dir", "cdi_dir", "state_dir"):
            if not getattr(self, field).is_absolute():
                raise InvalidField(field.replace("_", "-"), str(getattr(self, field)), "must be an absolute path")

    @property
    def plugin_dir(self) -> Path:
        """Where kubelet and device plugins meet."""
        return self.kubelet_dir / "device-plugins"

    @property
    def only_vendors(self) -> tuple[str, ...] | None:
        """Vendor packages to load, None for all."""
        return tuple(self.vendors) if self.vendors else None

    def of_vendor(self, name: str) -> dict[str, Any]:
        """Settings of one vendor; the mock's files lie in the state directory unless written otherwise."""
        section = dict(self.vendors.get(name) or {}) if isinstance(self.vendors, dict) else {}
        if name == "mock":
            section.setdefault("health-file", str(self.state_dir / "mock-health.yaml"))
            section.setdefault("profile-file", str(self.state_dir / "mock-profile"))
            if self.mock_profile:
                section["profile"] = self.mock_profile
        return section
