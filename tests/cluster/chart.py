"""hamipy itself on the cluster: its image, made here, and its chart, by helm."""

import json
import os
import subprocess
import sys
from pathlib import Path

from hamipy.core.quantity import parse_int

from .api import JSON
from .binaries import cache
from .cluster import Cluster
from .daemons import wait_until
from .errors import HarnessError

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "hamipy"
NAMESPACE, RELEASE = "hamipy-system", "hamipy"
_NOISE = ("Caches populated", "Caches are synced", "Waiting for caches", "tlsconfig.go", "Starting controller")
IMAGE = "local/hamipy:dev"


def image() -> Path:
    """The image's archive: `$HAMIPY_IMAGE`, or made from the working tree (what did not change comes from a cache).

    Raises:
        HarnessError: there is none, or it could not be made.
    """
    given = os.environ.get("HAMIPY_IMAGE")
    if given:
        if not Path(given).is_file():
            raise HarnessError(f"HAMIPY_IMAGE: {given!r}: no such file; leave it unset to have the image made")
        return Path(given)
    archive = cache() / "images" / "hamipy-dev.tar"
    make = [sys.executable, "-m", "tools.image", "-o", str(archive), "-n", IMAGE]
    done = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True)
    if done.returncode:
        raise HarnessError(f"python -m tools.image failed:\n{done.stderr[-3000:]}")
    return archive


def values() -> JSON:
    """Values with which the chart runs on a cluster without a registry, on pretend devices."""
    repository, tag = IMAGE.split(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "kubeScheduler": {"image": {"repository": "local/kube-scheduler", "pullPolicy": "Never"}},
        "vendors": {"mock": {"enabled": True}},
    }


def install(cluster: Cluster, archive: Path, more: JSON | None = None) -> None:
    """Import the image on every node and `helm install`; returns when all pods of the chart are Ready.

    Args:
        cluster: with at least one node.
        archive: `image()`.
        more: values over those of `values()`, merged one level deep as helm does.

    Raises:
        HarnessError: helm failed or a pod is not Ready in time; with the pods' descriptions and logs.
    """
    cluster.import_image(archive)
    apply(cluster, "install", more)


def apply(cluster: Cluster, verb: str = "upgrade", more: JSON | None = None) -> None:
    """`helm install` or `helm upgrade` with `values()` and `more`, and wait until all is Ready."""
    files = ["-f", "-"]
    arguments = [verb, RELEASE, str(CHART), "-n", NAMESPACE, *files, "--wait", "--timeout", "120s"]
    if verb == "install":
        arguments.append("--create-namespace")
    try:
        cluster.helm(*arguments, given=json.dumps(_merged(values(), more or {})), timeout=180)
    except HarnessError as e:
        raise HarnessError(f"{e}\n{report(cluster)}") from None


def uninstall(cluster: Cluster) -> None:
    """`helm uninstall`, hooks included."""
    cluster.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "120s", timeout=180)


def _merged(base: JSON, over: JSON) -> JSON:
    both = {k: _merged(base[k], over[k]) for k in base.keys() & over.keys() if isinstance(base[k], dict)}
    return base | over | both


def report(cluster: Cluster, lines: int = 25) -> str:
    """Pods, events and the ends of the logs of the chart, for a failed test."""
    said = [cluster.kubectl("-n", NAMESPACE, "get", "pods", "-o", "wide", check=False)]
    for pod in cluster.api.list("pods", NAMESPACE):
        name = pod["metadata"]["name"]
        statuses = pod["status"].get("containerStatuses", [])
        if not all(s["ready"] for s in statuses) or not statuses:
            said.append(cluster.kubectl("-n", NAMESPACE, "describe", "pod", name, check=False)[-3000:])
        for status in statuses:
            log = ["-n", NAMESPACE, "logs", name, "-c", status["name"], f"--tail={lines}"]
            said.append(f"--- {name} {status['name']}\n{cluster.kubectl(*log, check=False)}")
            if status["restartCount"]:
                said.append(f"--- before its last restart\n{cluster.kubectl(*log, '--previous', check=False)}")
    lines_ = (line[:240] for text in said for line in text.splitlines())
    return "\n".join(line for line in lines_ if not any(n in line for n in _NOISE))


def wait_devices(cluster: Cluster, counts: dict[str, int] | None = None, timeout: float = 120) -> None:
    """Wait until nodes offer their devices everywhere: in NodeDevices, the kubelet's resource, our published names.

    Args:
        cluster: with the chart installed.
        counts: devices each of these nodes is to have; default: all nodes, any number.
        timeout: seconds; after a restart the daemon advertises ids of pods that it never saw go for up to 90.

    Raises:
        HarnessError: a node does not in time; with the chart's pods and logs.
    """

    def lacking() -> list[str]:
        said = []
        for name in counts or cluster.nodes:
            node, inventory = cluster.api.get("nodes", None, name), cluster.api.find("nodedevices", None, name)
            devices = (inventory or {}).get("spec", {}).get("devices", [])
            amounts = {k: parse_int(v) for k, v in node["status"].get("allocatable", {}).items() if "hamipy.io/" in k}
            wanted = {
                "hamipy.io/device": sum(d["slots"] for d in devices),
                "hamipy.io/memory": sum(d["memory"] for d in devices),
                "hamipy.io/cores": sum(d.get("cores", 100) for d in devices),
            }
            if not devices or (counts and len(devices) != counts[name]) or wanted.items() - amounts.items():
                said.append(f"{name}: {len(devices)} devices, wanted {wanted}, offers {amounts}")
        return said

    try:
        wait_until(lambda: not lacking(), timeout, lambda: f"devices ({lacking()})", 0.2)
    except HarnessError as e:
        raise HarnessError(f"{e}\n{report(cluster)}") from None
