"""One real node: kubelet and containerd in mount, pid, net and uts namespaces of their own.

Default ports and paths, as on a machine of its own: a hostPath, hostNetwork or hostPID pod sees this node only, and one
SIGKILL to the first process takes everything of it.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import yaml

from .binaries import Binaries
from .controlplane import GATEWAY, ControlPlane
from .daemons import Daemon, environment, wait_until
from .errors import HarnessError
from .images import PAUSE

PREFIX = "hamipy"  # of host interfaces and cgroups, so that `leftovers` knows ours
# host path → a directory of the node's own is bound over it
OWN = (
    "/var/lib/kubelet",
    "/var/lib/hamipy",
    "/var/run/cdi",
    "/etc/cdi",
    "/var/lib/cni",
    "/etc/cni/net.d",
    "/var/lib/containerd",
    "/run/containerd",
    "/run/netns",
    "/run/hamipy",
    "/var/log/pods",
    "/var/log/containers",
)
_INIT = """set -e
read -r host_pid _ < /proc/self/stat            # still the host's /proc: our pid as the host sees it
echo {name} > /proc/sys/kernel/hostname
mount -t proc proc /proc
# copies of mounts that belong to the machine's own containers would keep them busy: drop them (the host keeps its own)
awk '$5 ~ "^/var/lib/kubelet(/|$)" || $5 ~ "^(/var)?/run/netns(/|$)" || $5 ~ "/io[.]containerd[.]" {{print $5}}' \
/proc/self/mountinfo | tac | while read -r mounted; do umount -l "$mounted" || true; done
{binds}
mount --make-rshared /                          # as systemd does; after the binds, so that each is its own peer group
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo $host_pid > {pid}.new; mv {pid}.new {pid}
while :; do sleep 86400 & wait $! || true; done  # from here on it only reaps
"""


class Node:
    """A node of the cluster; `index` (2..254) gives its address 10.240.0.index and its pods' 10.244.index.0/24."""

    def __init__(self, name: str, index: int, work: Path, plane: ControlPlane, binaries: Binaries) -> None:
        self.name, self.index, self.directory = name, index, work / "nodes" / name
        self.address, self.pods = f"10.240.0.{index}", f"10.244.{index}.0/24"
        self.cgroup, self.interface = f"{PREFIX}-{name}", f"{PREFIX}{index}"
        self._plane, self._binaries, self._work = plane, binaries, work
        self.init = self.directory / "init.pid"
        env, d = environment(work, binaries.search_path), self.directory
        self.containerd = Daemon(
            "containerd", [binaries["containerd"], "-c", str(d / "containerd.toml")], d, env, self.init
        )
        kubelet = [binaries["kubelet"], f"--config={d / 'kubelet.yaml'}", f"--kubeconfig={d / 'kubelet.kubeconfig'}"]
        kubelet += [f"--hostname-override={name}", f"--node-ip={self.address}", "-v=2"]
        self.kubelet = Daemon("kubelet", kubelet, d, env, self.init)

    def fs(self, path: str) -> Path:
        """Where, on the host, a file below one of the node's own directories lies."""
        return Path(f"{self.directory}/fs{os.path.realpath(path)}")

    @property
    def profile(self) -> str:
        """Mock profile of its devices; a running daemon picks up a change."""
        return (self.fs("/var/lib/hamipy") / "mock-profile").read_text().strip()

    @profile.setter
    def profile(self, name: str) -> None:
        state = self.fs("/var/lib/hamipy")
        state.mkdir(parents=True, exist_ok=True)
        (state / "mock-profile.new").write_text(name + "\n")
        (state / "mock-profile.new").rename(state / "mock-profile")

    @property
    def running(self) -> bool:
        """True while its first process lives."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            pid = int(self.init.read_text())
            return str(self.directory).encode() in Path("/proc", str(pid), "cmdline").read_bytes()
        return False

    def command(self, *argv: str) -> list[str]:
        """A command line that runs `argv` inside the node."""
        return ["nsenter", "-t", self.init.read_text().strip(), "-m", "-p", "-n", "-u", "--", *argv]

    def run(self, *argv: str, check: bool = True, timeout: float = 60) -> str:
        """Run a command inside the node and return what it printed."""
        env = environment(self._work, self._binaries.search_path)
        done = subprocess.run(self.command(*argv), env=env, capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            raise HarnessError(
                f"{' '.join(argv)} on {self.name}: exit {done.returncode}: {done.stderr.strip()[-1000:]}"
            )
        return done.stdout

    def start(self, images: list[Path]) -> None:
        """Boot: /run is empty, the rest is as it was left. Returns when kubelet and containerd run."""
        if self.running:
            raise HarnessError(f"node {self.name} already runs")
        shutil.rmtree(self.directory / "fs" / "run", ignore_errors=True)
        self._files()
        self._cgroups()
        self._boot()
        self._network()
        self.containerd.start()
        self.wait_containerd()
        for image in images:
            self.import_image(image)
        self.kubelet.start()

    def _files(self) -> None:
        d, b = self.directory, self._binaries
        (d / "log").mkdir(parents=True, exist_ok=True)
        for path in OWN:
            self.fs(path).mkdir(parents=True, exist_ok=True)
            make_mount_point(Path(os.path.realpath(path)), self._work / "created")
        if not (d / "kubelet.kubeconfig").exists():
            a = self._plane.authority
            a.kubeconfig(d / "kubelet.kubeconfig", f"system:node:{self.name}", ["system:nodes"])
            a.issue(
                f"node-{self.name}", f"system:node:{self.name}", ["system:nodes"], dns=[self.name], ips=[self.address]
            )
        subnet = [[{"subnet": self.pods}]]
        network = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False}
        network["ipam"] = {"type": "host-local", "ranges": subnet, "routes": [{"dst": "0.0.0.0/0"}]}
        cni = {"cniVersion": "1.0.0", "name": "hamipy", "plugins": [network]}
        self.fs("/etc/cni/net.d").joinpath("10-hamipy.conflist").write_text(json.dumps(cni))
        (d / "containerd.toml").write_text(
            f"""version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = {json.dumps(b.cni_directories)}
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = "{b["runc"]}"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
"""
        )
        ca = str(self._plane.authority.certificate)
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": ca},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self._plane.authority.directory / f"node-{self.name}.crt"),
            "tlsPrivateKeyFile": str(self._plane.authority.directory / f"node-{self.name}.key"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "nodeLeaseDurationSeconds": 8,  # a heartbeat every 2 s
            "imageMinimumGCAge": "1h",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "50Mi"},
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "maxPods": 200,
            "clusterDNS": [GATEWAY],  # nobody there: a name is refused at once; service IPs come by environment
        }
        (d / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))

    def _cgroups(self) -> None:
        # the kubelet refuses a cgroupRoot that does not exist in every hierarchy
        for root in cgroup_roots():
            (root / self.cgroup).mkdir(exist_ok=True)
            if (root / "cgroup.controllers").exists():
                for controller in (root / "cgroup.controllers").read_text().split():
                    with contextlib.suppress(OSError):  # one that cannot be delegated here
                        (root / "cgroup.subtree_control").write_text(f"+{controller}")
            for file in ("cpuset.cpus", "cpuset.mems"):
                if (root / file).exists() and not (root / "cgroup.controllers").exists():
                    (root / self.cgroup / file).write_text((root / file).read_text())

    def _boot(self) -> None:
        binds = "\n".join(f"mount --bind {self.fs(p)} {os.path.realpath(p)}" for p in OWN)
        script = self.directory / "init.sh"
        script.write_text(_INIT.format(name=self.name, binds=binds, pid=self.init))
        self.init.unlink(missing_ok=True)
        unshare = ["setsid", "-f", "unshare", "-m", "-p", "-n", "-u", "--fork", "--propagation", "private"]
        with (self.directory / "log" / "init.log").open("ab") as log:
            env = environment(self._work, self._binaries.search_path)
            subprocess.run(
                [*unshare, "sh", str(script)], env=env, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            wait_until(lambda: self.running, 15, f"namespaces of node {self.name}", 0.02)
        except HarnessError as e:
            raise HarnessError(f"{e}\n{(self.directory / 'log' / 'init.log').read_text()}") from e

    def _network(self) -> None:
        # a veth pair; routes to the node and its pods outside, a default route inside; no NAT
        pid = self.init.read_text().strip()
        for line in (
            f"link add {self.interface} type veth peer name eth0 netns {pid}",
            f"link set {self.interface} up",
        ):
            subprocess.run(["ip", *line.split()], check=True)
        for line in (
            f"addr add {self.address}/32 dev eth0",
            "link set eth0 up",
            f"route add {GATEWAY} dev eth0 scope link",
            f"route add default via {GATEWAY}",
        ):
            self.run("ip", *line.split())
        for line in (
            f"route replace {self.address}/32 dev {self.interface} src {GATEWAY}",
            f"route replace {self.pods} via {self.address} dev {self.interface} src {GATEWAY}",
        ):
            subprocess.run(["ip", *line.split()], check=True)

    def wait_containerd(self, timeout: float = 20) -> None:
        """Wait until containerd answers."""

        def answers() -> bool:
            if not self.containerd.alive:
                raise HarnessError(f"containerd on {self.name} ended:\n{self.containerd.tail()}")
            return "Server:" in self.run("ctr", "--timeout", "2s", "version", check=False)

        wait_until(answers, timeout, f"containerd on {self.name}")

    def import_image(self, archive: Path) -> None:
        """Make an image of an OCI archive known to the node's containerd."""
        self.run("ctr", "-n", "k8s.io", "images", "import", str(archive), timeout=300)

    def remove_image(self, name: str) -> None:
        """Forget an image (`local/hamipy:dev`), so that the next import of that name is used."""
        self.run("ctr", "-n", "k8s.io", "images", "rm", f"docker.io/{name}", check=False)

    def stop(self, *, keep: bool = False) -> None:
        """Power off, without a word to anyone; removes what the kernel does not, and its files unless `keep`."""
        if self.running:
            pid = int(self.init.read_text())
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not self.running, 20, f"the first process of {self.name} to end")
        subprocess.run(["ip", "link", "del", self.interface], check=False, stderr=subprocess.DEVNULL)
        remove_cgroups(self.cgroup)
        for file in self.directory.glob("*.pid"):
            file.unlink()
        if not keep:
            # its mounts go with its namespaces, some moments after the processes
            wait_until(lambda: _removed(self.directory), 20, f"{self.directory} to be removable", 0.2)


def _removed(directory: Path) -> bool:
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def make_mount_point(path: Path, record: Path) -> None:
    """Create a directory of the machine, and note each one that was missing in `record`, to remove them later."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if missing:
        with record.open("a") as file:
            file.writelines(f"{p}\n" for p in reversed(missing))


def cgroup_roots() -> list[Path]:
    """Root of the one cgroup hierarchy (v2) or of each of them (v1)."""
    root = Path("/sys/fs/cgroup")
    return [root] if (root / "cgroup.procs").exists() else sorted(p.parent for p in root.glob("*/cgroup.procs"))


def remove_cgroups(name: str) -> None:
    """Remove a cgroup and all below it, as soon as the kernel has let their processes go."""

    def gone() -> bool:
        tops = [top for root in cgroup_roots() if (top := root / name).exists()]
        for top in tops:
            for directory, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):  # busy still
                    Path(directory).rmdir()
        return not any(top.exists() for top in tops)

    end = time.monotonic() + 20
    while not gone():
        if time.monotonic() > end:
            raise HarnessError(f"cgroups {name} are still in use")
        time.sleep(0.1)
