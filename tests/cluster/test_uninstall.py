"""`helm uninstall`: nothing of hamipy is left but the pods that run."""

import pytest

from . import chart
from .api import JSON
from .books import allocation, disagreements
from .cluster import Cluster
from .workloads import Space, container, pod

MEMORY, DEVICE = "hamipy.io/memory", "hamipy.io/device"
pytestmark = pytest.mark.late


def _left(cluster: Cluster) -> list[str]:
    """`kind namespace name` of what is in the chart's namespace, or named after hamipy anywhere."""
    found = []
    for flag in ("true", "false"):
        listed = cluster.kubectl("api-resources", "--verbs=list", f"--namespaced={flag}", "-o", "name").split()
        kinds = [k for k in listed if not k.startswith(("events", "componentstatuses"))]
        columns = "-o=custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name"
        for line in cluster.kubectl("get", ",".join(kinds), "-A", "--no-headers", columns).splitlines():
            kind, namespace, name = line.split()
            if namespace == chart.NAMESPACE or "hamipy" in name:
                found.append(f"{kind} {namespace} {name}")
    return sorted(found)


def _published(cluster: Cluster) -> dict[str, list[str]]:
    """What of ours stands on each Node: names in its status, labels, annotations."""
    found = {}
    for node in cluster.api.list("nodes"):
        maps = [node["status"][m] for m in ("capacity", "allocatable")]
        maps += [node["metadata"].get(m, {}) for m in ("labels", "annotations")]
        found[node["metadata"]["name"]] = sorted({k for m in maps for k in m if "hamipy.io/" in k})
    return found


def _life(found: JSON) -> list[tuple[str, int, bool]]:
    return [(s["containerID"], s["restartCount"], s["ready"]) for s in found["status"]["containerStatuses"]]


def test_helm_uninstall_leaves_nothing_but_the_running_containers_and_an_installation_finds_them_again(
    space: Space,
) -> None:
    cluster = space.cluster
    for node in cluster.nodes:
        limits = {MEMORY: "8Gi", "hamipy.io/cores": 40}
        space.create(pod(f"on-{node}", container(limits=limits), nodeSelector={"kubernetes.io/hostname": node}))
    before = space.wait_running(len(cluster.nodes))
    seen = {p["metadata"]["name"]: space.sees(p["metadata"]["name"]) for p in before}
    assert all(MEMORY in names for names in _published(cluster).values())

    chart.uninstall(cluster)
    try:
        # the kubelet itself drops its resource some minutes after the last plugin has gone
        assert _published(cluster) == {node: [DEVICE] for node in cluster.nodes}
        assert cluster.api.list("nodedevices") == []
        # helm leaves the namespace, and the chart, unless told otherwise, the definition of NodeDevices
        assert _left(cluster) == [
            "APIService <none> v1alpha1.hamipy.io",
            f"ConfigMap {chart.NAMESPACE} kube-root-ca.crt",
            "CustomResourceDefinition <none> nodedevices.hamipy.io",
            f"Namespace <none> {chart.NAMESPACE}",
            f"ServiceAccount {chart.NAMESPACE} default",
        ]
        events = cluster.api.list("events", chart.NAMESPACE, fieldSelector="involvedObject.name=hamipy-uninstall")
        assert "Completed" in {e["reason"] for e in events}
        assert {e["reason"] for e in events} <= {"SuccessfulCreate", "Completed"}
        for found in before:
            name = found["metadata"]["name"]
            assert _life(space.pod(name)) == _life(found)
            assert space.sees(name) == seen[name]
        space.create(pod("plain", container()))
        space.wait_running(len(before) + 1)
    finally:
        chart.apply(cluster, "install")
        chart.wait_devices(cluster, timeout=60)
    for found in before:
        after = space.pod(found["metadata"]["name"])
        assert _life(after) == _life(found)
        assert allocation(after) == allocation(found)
        assert disagreements(space, after) == []
