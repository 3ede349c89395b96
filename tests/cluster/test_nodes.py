"""Nodes that are drained, and Node objects that go and come back."""

from . import chart
from .books import allocation, disagreements, ledger_shares, ledgers
from .daemons import wait_until
from .devices import only
from .workloads import Space, container, deployment, pod, runs

MEMORY = "hamipy.io/memory"


def test_a_drained_node_gives_its_pods_away_and_takes_them_again_when_uncordoned(space: Space) -> None:
    cluster = space.cluster
    space.create(deployment("app", 2, pod("app", container(limits={MEMORY: "8Gi"}))))
    before = space.wait_running(2)
    assert {p["spec"]["nodeName"] for p in before} == set(cluster.nodes)  # one card has room for one of them
    drained = list(cluster.nodes)[-1]
    try:
        cluster.kubectl("drain", drained, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
        there = cluster.api.list("pods", None, fieldSelector=f"spec.nodeName={drained}")
        assert [p["metadata"]["name"] for p in there if "hamipy-node" not in p["metadata"]["name"]] == []
        wait_until(lambda: len(space.pods()) == 2, 20, "the replacement of the evicted replica")
        (waiting,) = (p for p in space.pods() if not p["spec"].get("nodeName"))
        name = waiting["metadata"]["name"]
        wait_until(lambda: space.events(name, "FailedScheduling"), 30, "the replacement to be refused")
        assert cluster.api.get("nodedevices", None, drained)["spec"]["serving"]  # a cordon is no matter of the daemon
        for whose, ledger in ledgers(cluster).items():
            (node,) = (n for n in ledger["nodes"] if n["name"] == drained)
            assert [d["memory"]["allocated"] for d in node["devices"]] == [0], whose
    finally:
        cluster.kubectl("uncordon", drained)
    pods = space.wait_running(2, timeout=60)
    assert sorted(p["spec"]["nodeName"] for p in pods) == sorted(cluster.nodes)
    assert [d for p in pods for d in disagreements(space, p)] == []
    chart.wait_devices(cluster)


def test_pods_outlive_the_deletion_of_their_node_object_which_comes_back_with_all_that_was_published(
    space: Space,
) -> None:
    cluster = space.cluster
    node = list(cluster.nodes.values())[-1]
    space.create(pod("stays", container(limits={MEMORY: "8Gi"}), **only(node.name)))
    (before,) = space.wait_running(1)
    old = cluster.api.get("nodes", None, node.name)["metadata"]["uid"]

    cluster.api.delete("nodes", None, node.name)
    wait_until(
        lambda: not cluster.api.find("nodedevices", None, node.name), 30, "the NodeDevices of the lost node to go"
    )
    space.create(pod("next", container(limits={MEMORY: "6Gi"}), **only(node.name)))
    wait_until(lambda: space.events("next", "FailedScheduling"), 20, "a pod for the lost node to be refused")
    node.kubelet.restart()  # a kubelet registers its node at its start only
    cluster.wait_nodes_ready([node.name])
    chart.wait_devices(cluster, {node.name: 1})

    new = cluster.api.get("nodes", None, node.name)["metadata"]["uid"]
    (owner,) = cluster.api.get("nodedevices", None, node.name)["metadata"]["ownerReferences"]
    assert new != old
    assert owner["uid"] == new
    wait_until(lambda: runs(space.pod("next")), 60, "the pod that waited for the node to run")
    after = space.pod("stays")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    (now,), (then,) = (p["status"]["containerStatuses"] for p in (after, before))
    assert (now["containerID"], now["restartCount"]) == (then["containerID"], 0)
    assert [d for p in space.pods() for d in disagreements(space, p)] == []
    # full: what is left of the card was counted with the pod that was there all the time
    space.create(pod("more", container(limits={MEMORY: "1Gi"}), **only(node.name)))
    wait_until(lambda: space.events("more", "FailedScheduling"), 20, "a third pod to be refused")
    for whose, ledger in ledgers(cluster).items():
        assert ledger_shares(ledger, after["metadata"]["uid"]) == allocation(after), whose
