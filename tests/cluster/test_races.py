"""Pods that race for a kubelet's ids, and names and ids used again: each container has what its own pod was given."""

import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import grpc
import pytest

from hamipy.core.quantity import parse_int

from . import chart
from .api import JSON
from .books import (
    Held,
    allocation,
    checkpoint,
    disagreements,
    ledgers,
    over_the_limit,
    podresources,
    podresources_of,
    swapped,
)
from .cluster import Cluster
from .daemons import wait_until
from .node import Node
from .workloads import Space, container, each, pod

MEMORY, DEVICE = "hamipy.io/memory", "hamipy.io/device"
MIB = 2**20
ONLY_INIT = {f"only-init-{n}": (3333 + n) * MIB for n in range(3)}


@pytest.fixture(scope="module")
def big_nodes(cluster: Cluster) -> Iterator[list[str]]:
    """Names of two nodes that have eight 80 GiB cards each for the time of this module; ask for it before `space`."""
    nodes = list(cluster.nodes.values())[:2]
    for node in nodes:
        node.profile = "a100x8"
    chart.wait_devices(cluster, {n.name: 8 for n in nodes})
    yield [n.name for n in nodes]
    for node in nodes:
        node.profile = "t4x1"
    chart.wait_devices(cluster, {n.name: 1 for n in nodes})


@dataclass
class Poll:
    """What another client of podresources met."""

    answers: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    def ask(self, podresources: Callable[[], list[Held]]) -> None:
        """Ask once; an id that two pods hold is noted."""
        try:
            listed = podresources()
        except grpc.RpcError as e:
            if not over_the_limit(e):
                raise
            self.refused += 1
            return
        self.answers += 1
        holders: dict[str, str] = {}
        for held in listed:
            for i in held.ids:
                if holders.setdefault(i, held.pod) != held.pod:
                    self.wrong.append(f"{i} is held by {held.pod} and {holders[i]}")


@contextmanager
def polled(nodes: list[Node]) -> Iterator[dict[str, Poll]]:
    """Another client that polls podresources on each node, more often than the kubelet allows."""
    end, polls, failed = threading.Event(), {n.name: Poll() for n in nodes}, []

    def poll(node: Node) -> None:
        try:
            with podresources_of(node) as ask:
                while not end.wait(0.004):
                    polls[node.name].ask(ask)
        except Exception as e:  # noqa: BLE001 # told where the test waits
            failed.append(e)

    threads = [threading.Thread(target=poll, args=(n,), name=f"poll {n.name}") for n in nodes]
    for thread in threads:
        thread.start()
    try:
        yield polls
    finally:
        end.set()
        for thread in threads:
            thread.join(30)
    assert not failed, failed


def _counter(cluster: Cluster, name: str) -> int:
    """Sum of a counter over the node daemons, as their metrics tell it."""
    total = 0
    for found in cluster.api.list("pods", chart.NAMESPACE, labelSelector="app.kubernetes.io/component=node"):
        with urllib.request.urlopen(f"http://{found['status']['podIP']}:9465/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(f"hamipy_node_{name}_total "))
    return total


def test_30_raced_pods_each_see_their_own_limits_while_podresources_is_polled(
    big_nodes: list[str], space: Space, capsys: pytest.CaptureFixture[str]
) -> None:
    spread = {"hamipy.io/node-policy": "spread", "hamipy.io/device-policy": "spread"}
    asked = ONLY_INIT | {f"raced-{n:02}": (4096 + 97 * n) * MIB for n in range(30)}
    pods = [pod(n, container(limits={MEMORY: m}), annotations=spread) for n, m in asked.items() if n not in ONLY_INIT]
    # pods whose only device container is an init container, which the kubelet never lists in podresources
    for name, memory in ONLY_INIT.items():
        init = container("first", {MEMORY: memory}, ends=True)
        pods.append(pod(name, container(), init=[init], annotations=spread))
    before = _counter(space.cluster, "ids_swapped")
    with polled([space.cluster.nodes[n] for n in big_nodes]) as polls:
        each(space.create, pods, workers=len(pods))
        running = space.wait_running(len(pods), timeout=90)
    assert {p["spec"]["nodeName"] for p in running} == set(big_nodes)
    assert [(p["status"]["containerStatuses"][0]["restartCount"]) for p in running] == [0] * len(pods)
    for found in running:
        ((of, (share,)),) = allocation(found).items()
        name = found["metadata"]["name"]
        assert (name, of, share["memory"]) == (name, "first" if name in ONLY_INIT else "main", asked[name])
    assert disagreements(space, *running, raced=True) == []
    swaps = [line for found in running for line in swapped(space, found)]
    told = _counter(space.cluster, "ids_swapped") - before
    with capsys.disabled():
        counts = ", ".join(f"{n}: {p.answers} answers, {p.refused} refused" for n, p in polls.items())
        print(f"\nraced pods: {len(swaps)} of {len(pods)} with ids of another device; podresources polled: {counts}")
    assert told == len(swaps), swaps
    assert all(p.answers > 100 for p in polls.values())
    assert [line for p in polls.values() for line in p.wrong] == []


@contextmanager
def cut_off(cluster: Cluster, node: Node) -> Iterator[None]:
    """No word from the API server reaches the daemon of a node; kubelet and containers go on."""
    daemons = cluster.api.list("pods", chart.NAMESPACE, labelSelector="app.kubernetes.io/component=node")
    (address,) = [p["status"]["podIP"] for p in daemons if p["spec"]["nodeName"] == node.name]
    node.run("ip", "route", "add", "blackhole", f"{address}/32")
    try:
        yield
    finally:
        node.run("ip", "route", "del", "blackhole", f"{address}/32")


def test_pods_admitted_while_the_daemon_is_cut_off_get_their_own_shares_whatever_ids_the_kubelet_took(
    big_nodes: list[str], space: Space, capsys: pytest.CaptureFixture[str]
) -> None:
    node = space.cluster.nodes[big_nodes[0]]
    here = {"kubernetes.io/hostname": node.name}
    asked = {f"cut-{n}": (21 * 1024 + 97 * n) * MIB for n in range(8)}
    before = _counter(space.cluster, "ids_swapped")
    with cut_off(space.cluster, node):
        # the daemon cannot know what the kubelet is admitting, and so cannot steer it
        each(space.create, [pod(n, container(limits={MEMORY: m}), nodeSelector=here) for n, m in asked.items()])
        uids = {p["metadata"]["uid"] for p in space.pods()}
        wait_until(lambda: uids <= {h.pod for h in checkpoint(node)}, 30, "the kubelet to have taken ids for all")
    running = space.wait_running(len(asked), timeout=90)
    for found in running:
        ((share,),) = allocation(found).values()
        assert share["memory"] == asked[found["metadata"]["name"]]
    assert disagreements(space, *running, raced=True) == []
    swaps = [line for found in running for line in swapped(space, found)]
    told = _counter(space.cluster, "ids_swapped") - before
    with capsys.disabled():
        print(f"\npods the daemon could not steer: {len(swaps)} of {len(asked)} with ids of another device")
    assert told == len(swaps) > 0, swaps


def _renewed(space: Space, old: set[str], count: int) -> bool:
    return len([p for p in space.pods() if p["metadata"]["uid"] not in old]) == count


def test_statefulset_pods_recreated_under_their_names_see_their_new_shares(big_nodes: list[str], space: Space) -> None:
    labels = {"app": "db"}

    def template(memory: str) -> JSON:
        spec = {"containers": [container(limits={MEMORY: memory})], "terminationGracePeriodSeconds": 1}
        return {"metadata": {"labels": labels}, "spec": spec}

    spec = {"replicas": 3, "serviceName": "db", "selector": {"matchLabels": labels}, "template": template("2Gi")}
    spec |= {"podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"}}
    space.create({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": spec})
    for memory, grace in (("3Gi", 1), ("1Gi", 0)):  # 0: the new pod is there while the old one's container still ends
        before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in space.wait_running(3)}
        space.api.patch("statefulsets", space.name, "db", {"spec": {"template": template(memory)}})
        each(lambda name, grace=grace: space.api.delete("pods", space.name, name, grace), list(before))

        wait_until(partial(_renewed, space, set(before.values()), 3), 30, "the pods to be created again")
        pods = space.wait_running(3)
        assert {p["metadata"]["name"] for p in pods} == set(before)
        for found in pods:
            ((share,),) = allocation(found).values()
            assert share["memory"] == parse_int(memory)
        assert disagreements(space, *pods, raced=True) == []
        names = {f"{space.name}/{n}" for n in before}
        listed = [h.pod for node in space.cluster.nodes.values() for h in podresources(node) if h.pod in names]
        assert sorted(listed) == sorted(names)
        shots = ledgers(space.cluster)["hamipy inspect"]["nodes"]
        held = sum(d["memory"]["allocated"] for n in shots for d in n["devices"])
        assert held == 3 * parse_int(memory)
