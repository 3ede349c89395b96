"""What tests do to mock devices (other profiles, sickness), and what the active scheduler says of itself."""

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from . import chart
from .api import JSON
from .cluster import Cluster
from .daemons import wait_until
from .node import Node

GIB = 2**30


def set_health(cluster: Cluster, node: Node, sick: Mapping[int, str]) -> None:
    """Make devices of a node sick (index -> reason) and all others well; returns when NodeDevices says so."""
    file = node.fs("/var/lib/hamipy") / "mock-health.yaml"
    new = file.with_suffix(".new")
    new.write_text(json.dumps({str(index): reason for index, reason in sick.items()}))
    new.rename(file)

    def told() -> bool:
        spec = cluster.api.get("nodedevices", None, node.name)["spec"]
        return {d["index"]: d.get("reason", "") for d in spec["devices"] if not d.get("healthy", True)} == dict(sick)

    wait_until(told, 20, f"NodeDevices {node.name} to have the sick devices {sick}")


@contextmanager
def with_profile(cluster: Cluster, node: Node, profile: str, devices: int) -> Iterator[Node]:
    """Give a node another mock profile for a while."""
    before = node.profile
    count = len(cluster.api.get("nodedevices", None, node.name)["spec"]["devices"])
    node.profile = profile
    chart.wait_devices(cluster, {node.name: devices})
    try:
        yield node
    finally:
        (node.fs("/var/lib/hamipy") / "mock-health.yaml").unlink(missing_ok=True)
        node.profile = before
        chart.wait_devices(cluster, {node.name: count})


def only(node: str) -> JSON:
    """Fields of a pod's spec that keep it to one node."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def devices_of(cluster: Cluster, node: str) -> list[str]:
    """Ids of a node's devices, by index."""
    found = cluster.api.get("nodedevices", None, node)["spec"]["devices"]
    return [d["id"] for d in sorted(found, key=lambda d: d["index"])]


def leader(cluster: Cluster) -> JSON:
    """The pod that kube-scheduler's Lease names."""
    holder = cluster.api.get("leases", chart.NAMESPACE, "hamipy-scheduler")["spec"].get("holderIdentity") or ""
    name = holder.rpartition("_")[0]
    found = cluster.api.find("pods", chart.NAMESPACE, name) if name else None
    assert found, f"the Lease names {holder!r}, which is no pod"
    return found


def metric(pod: JSON, name: str, **labels: str) -> float:
    """A sample of a scheduler's /metrics; 0 when it has not been counted yet."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9464/metrics", timeout=10) as answer:
        text = answer.read().decode()
    for line in text.splitlines():
        found = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line)
        if found and all(f'{key}="{value}"' in (found[1] or "") for key, value in labels.items()):
            return float(found[2])
    return 0.0
