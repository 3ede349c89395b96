"""Pending pods start at once when what they wait for comes free; and nobody is evicted in vain.

"At once" is held against kube-scheduler's flush of refused pods, which comes after five minutes.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from . import chart
from .api import JSON
from .cluster import Cluster, fake_node
from .daemons import wait_until
from .devices import leader, metric, only
from .workloads import Space, container, each, pod, runs

MEMORY = "hamipy.io/memory"
AT_ONCE = 60.0
WHOLE = "14Gi"


def _fill(space: Space) -> None:
    """A pod on every node that takes its whole card: `on-<node>`."""
    for node in space.cluster.nodes:
        space.create(pod(f"on-{node}", container(limits={MEMORY: WHOLE}), **only(node)))
    space.wait_running(len(space.cluster.nodes))


def _wait_refused(space: Space, name: str) -> str:
    told = wait_until(lambda: space.events(name, "FailedScheduling"), 20, f"a FailedScheduling event of {name}")
    assert "nodeName" not in space.pod(name)["spec"]
    return told[0]


def _wait_runs(space: Space, name: str) -> JSON:
    wait_until(lambda: runs(space.pod(name)), AT_ONCE, f"{name} to run at once")
    return space.pod(name)


@contextmanager
def _deaf(cluster: Cluster, scheduler: JSON) -> Iterator[None]:
    """The scheduler's own container hears nothing from the API server, while kube-scheduler beside it does.

    What comes to its connections is dropped by the node and sent again by TCP afterwards: its watches lag.
    """
    node = cluster.nodes[scheduler["spec"]["nodeName"]]
    (status,) = (s for s in scheduler["status"]["containerStatuses"] if s["name"] == "scheduler")
    task = status["containerID"].removeprefix("containerd://")
    pid = re.search(rf"^{task}\s+(\d+)", node.run("ctr", "-n", "k8s.io", "tasks", "ls"), re.MULTILINE)
    assert pid
    shown = node.run("nsenter", "-t", pid[1], "-n", "ss", "-tnpH", "state", "established", "dport = :443")
    ports = [line.split()[2].rpartition(":")[2] for line in shown.splitlines() if f"pid={pid[1]}," in line]
    assert ports, shown
    rules = [("pref", "10", "ipproto", "tcp", "sport", "443", "dport", port, "blackhole") for port in ports]
    for rule in rules:
        node.run("ip", "rule", "add", *rule)
    try:
        yield
    finally:
        for rule in rules:
            node.run("ip", "rule", "del", *rule)


def test_a_share_released_before_our_watch_told_us_wakes_the_pod_that_kube_scheduler_retried_in_vain(
    space: Space,
) -> None:
    cluster = space.cluster
    _fill(space)
    space.create(pod("waits", container(limits={MEMORY: WHOLE})))
    _wait_refused(space, "waits")
    active = leader(cluster)

    def refused() -> float:
        return metric(active, "hamipy_filters_total", outcome="unfit")

    before, freed = refused(), next(iter(cluster.nodes))
    assert before
    with _deaf(cluster, active):
        space.api.delete("pods", space.name, f"on-{freed}", grace=0)
        wait_until(lambda: refused() > before, 20, "kube-scheduler to try again, and our ledger to refuse again")
        assert "nodeName" not in space.pod("waits")["spec"]
    found = _wait_runs(space, "waits")
    assert found["spec"]["nodeName"] == freed
    assert "hamipy.io/retry" in found["metadata"]["annotations"]


def test_a_node_that_joins_gets_the_pod_that_waits_for_one(space: Space) -> None:
    cluster = space.cluster
    _fill(space)
    space.create(pod("waits", container(limits={MEMORY: WHOLE})))
    _wait_refused(space, "waits")
    (added,) = cluster.add_nodes(["t4x1"])
    try:
        chart.wait_devices(cluster, {added.name: 1}, timeout=60)
        assert _wait_runs(space, "waits")["spec"]["nodeName"] == added.name
        assert space.sees("waits")[1]
    finally:
        cluster.kubectl("cordon", added.name)
        cluster.remove_node(added.name)
        for found in cluster.api.list("pods", None, fieldSelector=f"spec.nodeName={added.name}"):
            cluster.api.delete("pods", found["metadata"]["namespace"], found["metadata"]["name"], grace=0)


@contextmanager
def _fake_nodes(cluster: Cluster, count: int) -> Iterator[None]:
    """Nodes without a kubelet, half of them with a card too small, half with a sick one, for as long as this lasts.

    The controller manager is away meanwhile: it would taint them and give each a daemon's pod.
    """
    manager = cluster.plane.controller_manager
    manager.kill()
    numbers = range(count)

    def add(number: int) -> None:
        name, memory = f"fake-{number}", "4Gi" if number % 2 else WHOLE
        device: JSON = {"id": f"mock-{name}", "index": 0, "vendor": "mock", "model": "Mock T4", "slots": 16}
        device |= {"memory": (4 if number % 2 else 14) * 2**30}
        device |= {} if number % 2 else {"healthy": False, "reason": "fell off the bus"}
        offered = {"device": "16", "memory": memory, "memory-total": memory, "memory-percentage": "100", "cores": "100"}
        cluster.api.create(fake_node(name, {f"hamipy.io/{key}": value for key, value in offered.items()}))
        spec = {"serving": True, "devices": [device]}
        meta = {"name": name}
        cluster.api.create({"apiVersion": "hamipy.io/v1alpha1", "kind": "NodeDevices", "metadata": meta, "spec": spec})

    def remove(number: int) -> None:
        for resource in ("nodedevices", "nodes"):
            cluster.api.delete(resource, None, f"fake-{number}")

    try:
        each(add, numbers, 8)
        yield
    finally:
        each(remove, numbers, 8)
        manager.start()


def test_the_one_of_200_nodes_that_fits_is_found_at_the_first_attempt(space: Space) -> None:
    cluster = space.cluster
    *full, last = cluster.nodes
    for node in full:
        space.create(pod(f"on-{node}", container(limits={MEMORY: WHOLE}), **only(node)))
    space.wait_running(len(full))
    anywhere: JSON = {"tolerations": [{"operator": "Exists"}]}  # new nodes are tainted until a controller has seen them
    with _fake_nodes(cluster, 200 - len(cluster.nodes)):
        active = leader(cluster)
        wait_until(lambda: metric(active, "hamipy_nodes") == 200, 30, "the scheduler to know 200 nodes")
        space.create(
            pod("huge", container(limits={MEMORY: "100Gi"}), **anywhere)
        )  # shows whom kube-scheduler asks about
        told = _wait_refused(space, "huge")
        assert told.startswith("0/200 nodes are available")
        assert "untolerated taint" not in told
        space.create(pod("fits", container(limits={MEMORY: "10Gi"}), **anywhere))
        found = _wait_runs(space, "fits")
        assert found["spec"]["nodeName"] == last
        wait_until(lambda: space.events("fits", "Scheduled"), 20, "the Scheduled event")
        assert space.events("fits", "FailedScheduling") == []
        assert "hamipy.io/retry" not in found["metadata"]["annotations"]


@pytest.fixture
def high(cluster: Cluster) -> Iterator[str]:
    """Name of a priority class above all others of the tests."""
    name = "cluster-test-high"
    meta = {"name": name}
    cluster.api.create({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": meta, "value": 1000})
    yield name
    cluster.api.delete("priorityclasses", None, name)


def test_a_high_priority_pod_that_no_eviction_can_help_kills_nobody(high: str, space: Space) -> None:
    cluster = space.cluster
    cpu = {"requests": {"cpu": "1400m"}}
    for node in cluster.nodes:
        # the card is held by a pod of equal priority; kube-scheduler's own sums could free CPU only
        space.create(pod(f"holds-{node}", container(limits={MEMORY: "8Gi"}), priorityClassName=high, **only(node)))
        space.create(pod(f"low-{node}", container(resources=cpu), **only(node)))
    before = {p["metadata"]["name"]: p["metadata"]["uid"] for p in space.wait_running(2 * len(cluster.nodes))}
    active = leader(cluster)
    vetoed, kept = (metric(active, "hamipy_preemptions_total", outcome=o) for o in ("vetoed", "kept"))
    needy = container(limits={MEMORY: "10Gi"})
    needy["resources"]["requests"] = {"cpu": "1"}
    space.create(pod("cpu-too", needy, priorityClassName=high))
    space.create(pod("device-only", container(limits={MEMORY: "10Gi"}), priorityClassName=high))
    for name in ("cpu-too", "device-only"):
        assert "preemption:" in _wait_refused(space, name)
    # it asked us about victims on every node, and we said that they would die for nothing
    wait_until(
        lambda: metric(active, "hamipy_preemptions_total", outcome="vetoed") >= vetoed + len(cluster.nodes),
        20,
        "kube-scheduler to ask about evictions",
    )
    assert metric(active, "hamipy_preemptions_total", outcome="kept") == kept
    after = {p["metadata"]["name"]: p for p in space.pods()}
    assert {name: after[name]["metadata"]["uid"] for name in before} == before
    assert [name for name in before if not runs(after[name])] == []
    assert [e for name in before for e in space.events(name, "Preempted")] == []
    assert [after[name]["status"].get("nominatedNodeName") for name in ("cpu-too", "device-only")] == [None, None]
