"""`helm install` on an empty cluster: what it brings up, and what nodes then offer."""

import pytest

from hamipy.core.quantity import parse_int

from . import chart
from .cluster import Cluster

GIB = 2**30
pytestmark = pytest.mark.first


def test_all_pods_of_the_chart_are_ready_and_none_has_restarted(cluster: Cluster) -> None:
    pods = cluster.api.list("pods", chart.NAMESPACE)
    names = sorted(p["metadata"]["name"].rsplit("-", 1)[0] for p in pods)
    assert [n for n in names if n.startswith("hamipy-node")] == ["hamipy-node"] * len(cluster.nodes)
    assert len([n for n in names if n.startswith("hamipy-scheduler-")]) == 2
    for pod in pods:
        for status in pod["status"]["containerStatuses"]:
            seen = (pod["metadata"]["name"], status["name"], status["ready"], status["restartCount"])
            assert seen == (pod["metadata"]["name"], status["name"], True, 0)


def test_kubectl_get_nodedevices_shows_the_mock_devices(cluster: Cluster) -> None:
    header, *rows = cluster.kubectl("get", "nodedevices").splitlines()
    assert header.split()[:5] == ["NAME", "DEVICES", "HEALTHY", "MEMORY", "MODELS"]
    assert [row.split()[:3] for row in rows] == [[name, "1", "1"] for name in cluster.nodes]
    assert all("14" in row and "Mock T4" in row and "true" in row for row in rows)
    for name in cluster.nodes:
        found = cluster.api.get("nodedevices", None, name)
        (device,) = found["spec"]["devices"]
        assert (device["vendor"], device["memory"], device["slots"]) == ("mock", 14 * GIB, 16)
        assert device.get("cores", 100) == 100
        node = cluster.api.get("nodes", None, name)
        (owner,) = found["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Node", node["metadata"]["uid"])


def test_nodes_offer_slots_memory_and_cores_as_resources(cluster: Cluster) -> None:
    for name in cluster.nodes:
        status = cluster.api.get("nodes", None, name)["status"]
        for offered in (status["capacity"], status["allocatable"]):
            ours = {k.partition("/")[2]: parse_int(v) for k, v in offered.items() if k.startswith("hamipy.io/")}
            assert ours == {
                "device": 16,
                "memory": 14 * GIB,
                "memory-total": 14 * GIB,
                "memory-percentage": 100,
                "cores": 100,
            }


def test_the_scheduler_image_has_the_version_of_the_cluster(cluster: Cluster) -> None:
    wanted = f"local/kube-scheduler:v{cluster.binaries.kubernetes_version}"
    pod, *_ = cluster.api.list("pods", chart.NAMESPACE, labelSelector="app.kubernetes.io/component=scheduler")
    assert wanted in [c["image"] for c in pod["spec"]["containers"]]
