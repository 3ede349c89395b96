"""The whole cluster: control plane, nodes, and everything that must be gone afterwards."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import packages
from .api import JSON, Api
from .binaries import Binaries, obtain
from .controlplane import GATEWAY, SERVICE_IP, ControlPlane, Options
from .daemons import environment, gone, marked, wait_until
from .errors import HarnessError
from .images import base_images
from .node import PREFIX, Node, cgroup_roots, remove_cgroups

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def work_directory() -> Path:
    """Where the machine's one cluster keeps its files: `$HAMIPY_CLUSTER_DIR`, or /var/tmp/hamipy-cluster."""
    return Path(os.environ.get("HAMIPY_CLUSTER_DIR") or "/var/tmp/hamipy-cluster")  # fixed on purpose


class Cluster:
    """A running or startable cluster.

    Args:
        binaries: where the executables are.
        options: of the control plane.

    Attributes:
        plane: the control plane; `plane.daemons` by component name.
        nodes: by name, in the order they were added.
        api: client with all rights.
    """

    def __init__(self, binaries: Binaries, options: Options | None = None, work: Path | None = None) -> None:
        self.work, self.binaries, self.options = work or work_directory(), binaries, options or Options()
        self.plane = ControlPlane(self.work / "control-plane", binaries, self.options)
        self.nodes: dict[str, Node] = {}
        self.images: list[Path] = []
        self._api: Api | None = None

    @property
    def api(self) -> Api:
        """Client with all rights."""
        self._api = self._api or Api(self.kubeconfig)
        return self._api

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a member of system:masters."""
        return self.plane.admin_kubeconfig

    @classmethod
    def start(cls, profiles: Sequence[str] = (), options: Options | None = None) -> "Cluster":
        """Start a control plane and one node per mock profile; all nodes Ready on return.

        Raises:
            HarnessError: not root, a cluster is there already, or a part did not come up. Nothing is left behind.
        """
        if os.geteuid() != 0:
            raise HarnessError("a cluster needs root (namespaces, mounts, port 443): use sudo or a root shell")
        packages.ensure(packages.RUN.items())
        binaries = obtain()
        work = work_directory()
        if (work / "cluster.json").exists() and marked(work):
            raise HarnessError("a cluster is there already: `make cluster-down` takes it away")
        destroy(work)  # what a killed run may have left
        cluster = cls(binaries, options, work)
        cluster._save()
        try:
            _FORWARD.write_text("1")
            cluster.plane.start()
            if profiles:
                cluster.images = base_images(binaries)
                cluster.add_nodes(profiles)
            cluster.wait_namespace("default")
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def load(cls) -> "Cluster | None":
        """The running cluster of this machine, started by another process; None when there is none."""
        state = work_directory() / "cluster.json"
        if not state.exists() or not marked(state.parent):
            return None
        saved = json.loads(state.read_text())
        binaries = Binaries(saved["kubernetes"], {n: Path(p) for n, p in saved["files"].items()})
        flags = tuple(saved["options"].pop("apiserver_flags"))
        cluster = cls(binaries, Options(**saved["options"], apiserver_flags=flags), state.parent)
        cluster.images = [Path(p) for p in saved["images"]]
        for name, index in saved["nodes"].items():
            cluster.nodes[name] = Node(name, index, cluster.work, cluster.plane, binaries)
        return cluster

    def _save(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        file = self.work / "cluster.json"
        before = json.loads(file.read_text())["ip_forward"] if file.exists() else _FORWARD.read_text().strip()
        state = {
            "kubernetes": self.binaries.kubernetes_version,
            "files": {n: str(p) for n, p in self.binaries.files.items()},
            "options": dataclasses.asdict(self.options),
            "images": [str(p) for p in self.images],
            "nodes": {n.name: n.index for n in self.nodes.values()},
            "ip_forward": before,
        }
        new = file.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.rename(file)

    def add_nodes(self, profiles: Sequence[str]) -> list[Node]:
        """Start one more node per mock profile (w1, w2, …) at the same time, and wait until all are Ready."""
        used = {n.index for n in self.nodes.values()}
        free = (i for i in range(2, 255) if i not in used)
        added = []
        for profile in profiles:
            index = next(free)
            node = Node(f"w{index - 1}", index, self.work, self.plane, self.binaries)
            node.profile = profile
            self.nodes[node.name] = node
            added.append(node)
        self._save()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda n: n.start(self.images), added))
        self.wait_nodes_ready([n.name for n in added])
        return added

    def wait_namespace(self, name: str) -> None:
        """Wait until pods can be created in a namespace: it has its service account."""
        wait_until(lambda: self.api.find("serviceaccounts", name, "default"), 30, f"service account of {name}", 0.05)

    def remove_node(self, name: str) -> None:
        """Power a node off for good and delete its Node object."""
        node = self.nodes.pop(name)
        node.stop()
        self._save()
        self.api.delete("nodes", None, name)

    def import_image(self, archive: Path) -> None:
        """Give an image to every node, and to nodes added later."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda n: n.import_image(archive), self.nodes.values()))
        self.images = [*(i for i in self.images if i != archive), archive]
        self._save()

    def node_ready(self, name: str) -> bool:
        """True when the API server says so."""
        found = self.api.find("nodes", None, name)
        conditions = found["status"].get("conditions", []) if found else []
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def wait_nodes_ready(self, names: Sequence[str] | None = None, timeout: float = 60) -> None:
        """Wait until nodes (default: all) are Ready."""
        for name in names or list(self.nodes):

            def ready(node: Node = self.nodes[name]) -> bool:
                if not node.kubelet.alive:
                    raise HarnessError(f"kubelet on {node.name} ended:\n{node.kubelet.tail()}")
                return self.node_ready(node.name)

            wait_until(ready, timeout, f"node {name} to be Ready")

    def _client(self, tool: str, arguments: Sequence[str], given: str | None, check: bool, timeout: float) -> str:
        env = environment(Path("-"), self.binaries.search_path) | {"KUBECONFIG": str(self.kubeconfig)}
        command = [self.binaries[tool], *arguments]
        done = subprocess.run(command, env=env, input=given, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            raise HarnessError(f"{tool} {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()[-4000:]}")
        return done.stdout if check else done.stdout + done.stderr

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True, timeout: float = 120) -> str:
        """Run the real kubectl with all rights.

        Returns:
            What it printed; without `check`, also what it complained about.

        Raises:
            HarnessError: it failed and `check` is set.
        """
        return self._client("kubectl", arguments, given, check, timeout)

    def helm(self, *arguments: str, given: str | None = None, timeout: float = 300) -> str:
        """Run the real helm with all rights."""
        return self._client("helm", arguments, given, True, timeout)

    def stop(self) -> None:
        """Take everything away."""
        if self._api:
            self._api.close()
        destroy(self.work)

    def report(self, lines: int = 40) -> str:
        """The ends of all components' logs, for a failed test."""
        daemons = [(d.name, d) for d in self.plane.daemons.values()]
        daemons += [(f"{n.name} {d.name}", d) for n in self.nodes.values() for d in (n.kubelet, n.containerd)]
        return "\n".join(f"--- {name}\n{d.tail(lines)}" for name, d in daemons)


def fake_node(name: str, capacity: dict[str, str], labels: dict[str, str] | None = None) -> JSON:
    """A Node object without a kubelet, Ready for good on a control plane with `Options(fake_nodes=True)`."""
    now = "2025-01-01T00:00:00Z"
    whole = {"cpu": "64", "memory": "256Gi", "pods": "250"} | capacity
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "lastHeartbeatTime": now, "lastTransitionTime": now}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | (labels or {})},
        "status": {"capacity": whole, "allocatable": whole, "conditions": [ready]},
    }


def _links() -> list[str]:
    return sorted(p.name for p in Path("/sys/class/net").iterdir() if re.fullmatch(rf"{PREFIX}\d+", p.name))


def _cgroups() -> list[str]:
    return sorted({p.name for root in cgroup_roots() for p in root.glob(f"{PREFIX}-*")})


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def leftovers(work: Path | None = None) -> list[str]:
    """What a cluster left on the machine, one line each: processes, mounts, cgroups, interfaces, addresses, files."""
    work = work or work_directory()
    found = [f"process {pid}: {command}" for pid, command in marked(work).items()]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [
        f"mount {line.split()[4]}" for line in mounts if f"{work}/" in line or "/io.containerd." in line.split()[4]
    ]
    found += [f"interface {name}" for name in _links()]
    found += [f"cgroup {name}" for name in _cgroups()]
    found += [f"address {a}" for a in (SERVICE_IP, GATEWAY) if f" {a}/32 " in _ip("addr", "show", "dev", "lo")]
    found += [f"route {line}" for line in _ip("route").splitlines() if line.startswith(("10.240.0.", "10.244."))]
    found += [f"directory {work}"] if work.exists() else []
    return found


def destroy(work: Path) -> None:
    """Remove every trace of a cluster, running, broken or half started; without one, do nothing."""

    def all_dead() -> bool:
        for pid in marked(work):
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return all(gone(Path("/proc"), pid) for pid in killed) and not marked(work)

    killed: set[int] = set()

    wait_until(all_dead, 30, "the cluster's processes to end")
    for name in _links():
        subprocess.run(["ip", "link", "del", name], check=False, stderr=subprocess.DEVNULL)
    for name in _cgroups():
        remove_cgroups(name)
    for address in (SERVICE_IP, GATEWAY):
        subprocess.run(["ip", "addr", "del", f"{address}/32", "dev", "lo"], check=False, stderr=subprocess.DEVNULL)
    if not work.exists():
        return
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError):
        _FORWARD.write_text(json.loads((work / "cluster.json").read_text())["ip_forward"])
    with contextlib.suppress(FileNotFoundError):
        for line in reversed((work / "created").read_text().splitlines()):
            with contextlib.suppress(OSError):  # something else uses it by now
                Path(line).rmdir()

    def removed() -> bool:
        shutil.rmtree(work, ignore_errors=True)
        return not work.exists()

    wait_until(removed, 30, f"{work} to be removable", 0.2)
    print("cluster removed", file=sys.stderr)
