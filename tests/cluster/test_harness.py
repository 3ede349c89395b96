"""The harness itself: real pods on real nodes, components that come back, nothing left behind."""

import pytest

from .cluster import Cluster, leftovers
from .daemons import wait_until
from .workloads import Space, container, pod


def test_an_ordinary_pod_runs_on_each_node_and_answers_exec_and_logs(bare_space: Space) -> None:
    nodes = list(bare_space.cluster.nodes)
    assert len(nodes) >= 2
    for node in nodes:
        bare_space.create(pod(f"on-{node}", container(), nodeSelector={"kubernetes.io/hostname": node}))
    bare_space.wait_running()
    for node in nodes:
        found = bare_space.pod(f"on-{node}")
        assert found["spec"]["nodeName"] == node
        assert bare_space.exec(f"on-{node}", "hostname").strip() == f"on-{node}"
        assert bare_space.logs(f"on-{node}").splitlines() == ["null", "none"]
        address = f"10.244.{bare_space.cluster.nodes[node].index}."
        assert found["status"]["podIP"].startswith(address)


def test_containers_survive_kill_9_of_kubelet_containerd_and_api_server(bare_space: Space) -> None:
    cluster = bare_space.cluster
    bare_space.create(pod("stays", container()))
    (running,) = bare_space.wait_running()
    node = cluster.nodes[running["spec"]["nodeName"]]
    first = running["status"]["containerStatuses"][0]["containerID"]
    node.containerd.restart()
    node.wait_containerd()
    node.kubelet.restart()
    cluster.plane.apiserver.restart()
    cluster.plane.wait_ready()
    again = ("-n", bare_space.name, "exec", "stays", "--", "echo", "again")
    wait_until(lambda: cluster.kubectl(*again, check=False) == "again\n", 30, "exec to work again")
    status = bare_space.pod("stays")["status"]["containerStatuses"][0]
    assert (status["containerID"], status["restartCount"]) == (first, 0)


@pytest.mark.last
def test_stopping_the_cluster_leaves_nothing_on_the_machine(bare_cluster: Cluster) -> None:
    assert leftovers()
    bare_cluster.stop()
    assert leftovers() == []
