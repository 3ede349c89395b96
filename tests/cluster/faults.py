"""Things that go wrong with hamipy's own pods: their processes die."""

from . import chart
from .api import JSON
from .cluster import Cluster
from .daemons import wait_until


def kill_container(cluster: Cluster, pod: JSON, name: str) -> None:
    """kill -9 the first process of a container; the kubelet, which was not asked, starts it again."""
    (status,) = (s for s in pod["status"]["containerStatuses"] if s["name"] == name)
    node = cluster.nodes[pod["spec"]["nodeName"]]
    container = status["containerID"].rpartition("/")[2]
    node.run("ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container)


def daemon_pod(cluster: Cluster, node: str) -> JSON:
    """The pod of the node daemon on a node."""
    found = cluster.api.list(
        "pods",
        chart.NAMESPACE,
        labelSelector="app.kubernetes.io/component=node",
        fieldSelector=f"spec.nodeName={node}",
    )
    (pod,) = (p for p in found if "deletionTimestamp" not in p["metadata"])
    return pod


def is_ready(pod: JSON) -> bool:
    """True when the kubelet says so."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def wait_chart_ready(cluster: Cluster, timeout: float = 90) -> None:
    """Wait until every pod of the chart is Ready again."""

    def unready() -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in cluster.api.list("pods", chart.NAMESPACE)
            if pod["status"].get("phase") != "Succeeded" and not is_ready(pod)
        ]

    wait_until(lambda: not unready(), timeout, lambda: f"the pods of the chart to be Ready ({unready()})", 0.3)
