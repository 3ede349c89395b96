"""hamipy itself on the cluster: its image, made here, and its chart, by helm."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from .api import JSON
from .binaries import cache
from .cluster import Cluster
from .errors import HarnessError

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "hamipy"
NAMESPACE, RELEASE = "hamipy-system", "hamipy"
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
        raise HarnessError(f"{e}\n{report(cluster)}") from e


def uninstall(cluster: Cluster) -> None:
    """`helm uninstall`, hooks included."""
    cluster.helm("uninstall", RELEASE, "-n", NAMESPACE, "--wait", "--timeout", "120s", timeout=180)


def _merged(base: JSON, over: JSON) -> JSON:
    both = {k: _merged(base[k], over[k]) for k in base.keys() & over.keys() if isinstance(base[k], dict)}
    return base | over | both


def report(cluster: Cluster, lines: int = 60) -> str:
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
    return "\n".join(said)


def wait_devices(cluster: Cluster, timeout: float = 30) -> None:
    """Wait until every node offers its devices: the kubelet's resource and our published names.

    Raises:
        HarnessError: a node does not within `timeout` seconds.
    """
    end = time.monotonic() + timeout
    while True:
        nodes = {n["metadata"]["name"]: n["status"].get("allocatable", {}) for n in cluster.api.list("nodes")}
        wanted = ("hamipy.io/device", "hamipy.io/memory", "hamipy.io/cores")
        lacking = [n for n in cluster.nodes if any(nodes.get(n, {}).get(w, "0") == "0" for w in wanted)]
        if not lacking:
            return
        if time.monotonic() > end:
            raise HarnessError(f"nodes {lacking} do not offer devices: {nodes}\n{report(cluster)}")
        time.sleep(0.2)
