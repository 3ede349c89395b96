"""What tests run on the cluster: manifests, a namespace to put them in, and what their containers see."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .api import JSON, path
from .cluster import Cluster
from .daemons import wait_until
from .images import BUSYBOX

LIMITS = "/run/hamipy/limits.json"
_SAY = f'echo "$(cat {LIMITS} 2>/dev/null || echo null)"; echo "${{HAMIPY_DEVICES-none}}"'
_WAIT = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"


def container(name: str = "main", limits: JSON | None = None, *, ends: bool = False, **fields: Any) -> JSON:
    """A container that says what it was given, then waits to be ended, or ends at once."""
    command = ["sh", "-c", _SAY if ends else f"{_SAY}; {_WAIT}"]
    resources = {"resources": {"limits": {k: str(v) for k, v in limits.items()}}} if limits else {}
    return {"name": name, "image": BUSYBOX, "command": command} | resources | fields


def pod(
    name: str,
    *containers: JSON,
    init: Sequence[JSON] = (),
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> JSON:
    """A pod of these containers; ended within a second when deleted."""
    inits = {"initContainers": list(init)} if init else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}, "labels": labels or {}},
        "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 1} | inits | spec,
    }


def deployment(name: str, replicas: int, template: JSON) -> JSON:
    """A Deployment of a pod manifest."""
    labels = {"app": name}
    meta = {"labels": labels, "annotations": template["metadata"].get("annotations", {})}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}}
    spec["template"] = {"metadata": meta, "spec": template["spec"]}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


class Space:
    """A namespace of its own for one test."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name, self.api = cluster, name, cluster.api

    def open(self) -> None:
        """Create it, and wait until pods can be created there."""
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        self.cluster.wait_namespace(self.name)

    def close(self, timeout: float = 60) -> None:
        """Delete it and wait until the last of its pods is gone."""
        self.api.delete("namespaces", None, self.name)  # from now on nothing is created here
        self.api.request("DELETE", path("pods", self.name))
        wait_until(lambda: not self.pods(), timeout, f"the pods of {self.name} to go", 0.2)

    def create(self, *manifests: JSON) -> None:
        """Create objects here."""
        for manifest in manifests:
            self.api.create(manifest, namespace=self.name)

    def pods(self, **selectors: str) -> list[JSON]:
        """Its pods, oldest first, then by name."""
        found = self.api.list("pods", self.name, **selectors)
        return sorted(found, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))

    def pod(self, name: str) -> JSON:
        """One pod."""
        return self.api.get("pods", self.name, name)

    def wait_running(self, count: int | None = None, timeout: float = 60) -> list[JSON]:
        """Wait until that many pods (default: all that are there) run with all containers started, and return them."""

        def enough() -> list[JSON]:
            pods = self.pods()
            up = [p for p in pods if runs(p)]
            last.clear()
            last.extend(f"{p['metadata']['name']} {p['status'].get('phase')}" for p in pods if p not in up)
            return up if up and len(up) == (len(pods) if count is None else count) else []

        last: list[str] = []
        return wait_until(enough, timeout, lambda: f"{count or 'all'} pods of {self.name} to run ({last})", 0.2)

    def exec(self, name: str, *command: str, container: str = "main") -> str:
        """Run a command inside a container."""
        return self.cluster.kubectl("-n", self.name, "exec", name, "-c", container, "--", *command)

    def logs(self, name: str, container: str = "main") -> str:
        """What a container has said since its last start."""
        where = path("pods", self.name, name, "log")
        return self.api.request("GET", where, params={"container": container}).decode()

    def events(self, name: str, reason: str | None = None) -> list[str]:
        """Messages of a pod's events, in the order in which they were first seen."""
        found = self.api.list("events", self.name, fieldSelector=f"involvedObject.name={name}")
        found = [e for e in found if reason in (None, e.get("reason"))]
        return [e["message"] for e in sorted(found, key=lambda e: e["metadata"]["creationTimestamp"])]

    def given(self, name: str, container: str = "main") -> tuple[JSON | None, list[str]]:
        """What a container said at its last start that it was given: its limits file and HAMIPY_DEVICES."""
        limits, devices = self.logs(name, container).splitlines()[:2]
        return json.loads(limits), [] if devices in ("none", "") else devices.split(",")

    def sees(self, name: str, container: str = "main") -> tuple[JSON | None, list[str]]:
        """What a running container sees now: its limits file and HAMIPY_DEVICES."""
        limits, devices = self.exec(name, "sh", "-c", _SAY, container=container).splitlines()[:2]
        return json.loads(limits), [] if devices in ("none", "") else devices.split(",")

    def report(self) -> str:
        """Descriptions and events of its pods, for a failed test."""
        shown = self.cluster.kubectl("-n", self.name, "get", "pods", "-o", "wide", check=False)
        events = self.cluster.kubectl("-n", self.name, "get", "events", "--sort-by=.lastTimestamp", check=False)
        odd = [p["metadata"]["name"] for p in self.pods() if not runs(p)][:5]
        described = [self.cluster.kubectl("-n", self.name, "describe", "pod", n, check=False) for n in odd]
        return "\n".join([shown, events[-6000:], *described])


def runs(pod: JSON) -> bool:
    """True when every app container of a pod runs and the pod is not being deleted."""
    statuses = pod["status"].get("containerStatuses", [])
    started = len(statuses) == len(pod["spec"]["containers"]) and all("running" in s["state"] for s in statuses)
    return pod["status"].get("phase") == "Running" and started and "deletionTimestamp" not in pod["metadata"]


def each(function: Any, items: Sequence[Any], workers: int = 4) -> list[Any]:
    """`function` of every item, a few at a time."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(function, items))
