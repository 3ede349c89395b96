"""Whatever is killed or restarted: nothing is lost, doubled or stuck, no device gives too much, no running pod dies."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from . import chart
from .api import JSON
from .books import allocation, checkpoint, disagreements
from .cluster import Cluster
from .daemons import wait_until
from .devices import GIB, devices_of, leader, only, with_profile
from .faults import daemon_pod, is_ready, kill_container, wait_chart_ready
from .history import History, excesses, holds
from .node import Node
from .room import would_fit
from .workloads import Space, container, deployment, pod, runs

MEMORY, CORES, DEVICE = "hamipy.io/memory", "hamipy.io/cores", "hamipy.io/device"
# 66 GiB for four cards of 14 GiB: 60 pods of which not all fit
BURST: dict[str, tuple[int, JSON]] = {
    "small": (24, {MEMORY: "768Mi"}),
    "medium": (20, {MEMORY: "1Gi", CORES: 10}),
    "large": (16, {MEMORY: "1792Mi"}),
}
REFUSED_AT_ADMISSION = "UnexpectedAdmissionError"
"""What the kubelet says of a pod that it admits (again) before the device plugin has registered with it."""


@pytest.fixture(scope="module")
def four_cards(cluster: Cluster) -> Iterator[None]:
    """Two cards on each node; ask for it before `space`."""
    with ExitStack() as stack:
        for node in cluster.nodes.values():
            stack.enter_context(with_profile(cluster, node, "t4x2", 2))
        yield


def _bound(space: Space, app: str) -> int:
    return sum("nodeName" in p["spec"] for p in space.pods(labelSelector=f"app={app}"))


def _admitted(space: Space) -> int:
    pods = {p["metadata"]["uid"] for p in space.pods()}
    return len(pods & {held.pod for node in space.cluster.nodes.values() for held in checkpoint(node)})


def _running(space: Space) -> int:
    return sum(map(runs, space.pods()))


def _at(count: int, what: str, counted: Callable[[], int]) -> None:
    wait_until(lambda: counted() >= count, 90, lambda: f"{count} {what} pods, there are {counted()}", 0.05)


def _settled(space: Space, replicas: dict[str, int]) -> list[JSON]:
    """Wait until all that fits runs and all else waits; the pods that have not failed."""

    def open_questions() -> list[str]:
        found = [p for p in space.pods() if p["status"].get("phase") != "Failed"]
        names = {app: sum(p["metadata"]["labels"]["app"] == app for p in found) for app in replicas}
        if names != replicas:
            return [f"replicas are {names}, not {replicas}"]
        stuck = [p["metadata"]["name"] for p in found if holds(p) and not runs(p)]
        return stuck or would_fit(space, found)

    wait_until(lambda: not open_questions(), 150, lambda: f"all that fits to run ({open_questions()})", 0.5)
    return [p for p in space.pods() if p["status"].get("phase") != "Failed"]


def _deaths(history: History) -> list[str]:
    """Pods that ran and then did not any more, though nobody deleted them; containers of theirs that restarted."""
    ran: dict[str, dict[str, int]] = {}
    wrong = []
    for event in history.events:
        found = event["object"]
        name, uid = found["metadata"]["name"], found["metadata"]["uid"]
        statuses = found["status"].get("containerStatuses", [])
        restarts = {s["name"]: s["restartCount"] for s in statuses}
        if uid in ran and (
            found["status"]["phase"] != "Running"
            or event["type"] == "DELETED"
            or "deletionTimestamp" in found["metadata"]
            or restarts != ran[uid]
        ):
            wrong.append(f"{name}: {event['type']} {found['status']['phase']}, restarts {restarts}, was {ran[uid]}")
        elif runs(found):
            ran[uid] = restarts
    return wrong


def _changed_minds(history: History) -> list[str]:
    """Pods whose node or allocation was not the same all the time."""
    decided: dict[str, tuple[str, str]] = {}
    wrong = []
    for event in history.events:
        found = event["object"]
        if holds(found):
            now = found["spec"]["nodeName"], json.dumps(allocation(found), sort_keys=True)
            before = decided.setdefault(found["metadata"]["uid"], now)
            if now != before:
                wrong.append(f"{found['metadata']['name']}: {now}, was {before}")
    return wrong


def _take_over(cluster: Cluster) -> float:
    """kill -9 kube-scheduler and extender of the leading replica; seconds until the Lease names another process."""

    def holder() -> str:
        return str(cluster.api.get("leases", chart.NAMESPACE, "hamipy-scheduler")["spec"].get("holderIdentity"))

    before, leading = holder(), leader(cluster)
    for name in ("kube-scheduler", "scheduler"):
        kill_container(cluster, leading, name)
    began = time.monotonic()
    wait_until(lambda: holder() not in (before, "None", ""), 60, "another scheduler to lead", 0.05)
    return time.monotonic() - began


def _noticed(cluster: Cluster, dead: JSON) -> bool:
    """Whether the kubelet has told that the daemon's container has ended, or has started it again."""
    (then,) = dead["status"]["containerStatuses"]
    (now,) = daemon_pod(cluster, dead["spec"]["nodeName"])["status"]["containerStatuses"]
    return "running" not in now["state"] or now["containerID"] != then["containerID"]


def _replaced(cluster: Cluster, dead: JSON) -> bool:
    """Whether the daemon's next container is Ready: the kubelet has listed its devices."""
    return _noticed(cluster, dead) and is_ready(daemon_pod(cluster, dead["spec"]["nodeName"]))


@pytest.mark.timeout(420, func_only=True)
def test_restarts_in_the_middle_of_a_burst_lose_double_and_overcommit_nothing(
    four_cards: None, space: Space, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = space.cluster
    first, last = (list(cluster.nodes.values())[i] for i in (0, -1))
    waves = {app: deployment(app, n, pod(app, container(limits=limits))) for app, (n, limits) in BURST.items()}
    with History(space) as history:
        space.create(waves["small"], waves["medium"])
        _at(5, "bound", lambda: _bound(space, "small"))
        taken_over = _take_over(cluster)
        # all admitted: of a pod that comes while no daemon is there, the kubelet says for good that it cannot be
        _at(44, "admitted", lambda: _admitted(space))
        _at(4, "running", lambda: _running(space))
        dead = daemon_pod(cluster, last.name)
        kill_container(cluster, dead, "node")
        _at(8, "running", lambda: _running(space))
        last.containerd.restart()
        _at(12, "running", lambda: _running(space))
        wait_until(lambda: _replaced(cluster, dead), 60, "the daemon to be back")
        first.kubelet.restart()
        space.create(waves["large"])
        _at(3, "bound", lambda: _bound(space, "large"))
        cluster.plane.apiserver.restart()
        cluster.plane.wait_ready()
        found = _settled(space, {app: replicas for app, (replicas, _) in BURST.items()})
    running, waiting = [p for p in found if runs(p)], [p for p in found if not holds(p)]
    failed = [p for p in space.pods() if p["status"].get("phase") == "Failed"]
    with capsys.disabled():
        print(
            f"\nrestarts: another scheduler led {taken_over:.1f} s after kill -9 of the leader; {len(running)} run, "
            f"{len(waiting)} wait, {len(failed)} left by the kubelet's restart ({REFUSED_AT_ADMISSION})"
        )
    assert len(running) + len(waiting) == sum(n for n, _ in BURST.values())
    assert len(running) >= 50
    assert waiting
    assert excesses(space, history) == []
    assert _changed_minds(history) == []
    assert _deaths(history) == []
    assert {(p["status"].get("reason"), p["spec"]["nodeName"]) for p in failed} <= {(REFUSED_AT_ADMISSION, first.name)}
    assert disagreements(space, *running, raced=True) == []
    wait_chart_ready(cluster)
    chart.wait_devices(cluster)


def test_a_daemon_that_dies_again_and_again_costs_a_few_pods_only(
    space: Space, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = space.cluster
    node = next(iter(cluster.nodes.values()))
    # the second time within ten minutes the kubelet waits ten seconds before it starts the container again; its node
    # status, by which kube-scheduler would learn of it, is as late
    for _ in range(2):
        wait_until(lambda: is_ready(daemon_pod(cluster, node.name)), 60, "the daemon to be back")
        dead = daemon_pod(cluster, node.name)
        kill_container(cluster, dead, "node")
        wait_until(partial(_noticed, cluster, dead), 20, "the kubelet to notice")
    replicas = 8
    with History(space) as history:
        space.create(deployment("app", replicas, pod("app", container(limits={MEMORY: "1Gi"}), **only(node.name))))
        found = _settled(space, {"app": replicas})
    failed = [p for p in space.pods() if p["status"].get("phase") == "Failed"]
    with capsys.disabled():
        print(f"\ndead daemon: {len(failed)} pods failed at admission until {replicas} replicas ran")
    assert {p["status"].get("reason") for p in failed} <= {REFUSED_AT_ADMISSION}
    assert len(failed) <= 3 * replicas
    assert all(runs(p) for p in found)
    assert excesses(space, history) == []
    assert disagreements(space, *found) == []
    wait_chart_ready(cluster)


@pytest.fixture
def changeable(cluster: Cluster) -> Iterator[Node]:
    """A node with two cards that `_cards` may change under their ids; ask for it before `space`."""
    node = list(cluster.nodes.values())[-1]
    _write_cards(node, count=2, memory="14Gi", slots=16)
    others = devices_of(cluster, node.name)
    with with_profile(cluster, node, "/var/lib/hamipy/cards.yaml", 2):
        wait_until(lambda: not set(others) & set(devices_of(cluster, node.name)), 20, "the cards of cards.yaml")
        yield node
        _write_cards(node, count=2, memory="14Gi", slots=16)


def _write_cards(node: Node, **card: object) -> None:
    file = node.fs("/var/lib/hamipy") / "cards.yaml"
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"devices": [{"model": "Mock T4"} | card]}))
    new.rename(file)


def _wait_published(cluster: Cluster, node: Node, memory: list[int]) -> None:
    """Wait until NodeDevices tells of cards with this much memory each, in GiB."""

    def told() -> list[int]:
        return [d["memory"] // GIB for d in cluster.api.get("nodedevices", None, node.name)["spec"].get("devices", [])]

    wait_until(lambda: told() == memory, 30, lambda: f"cards of {memory} GiB on {node.name}, told are {told()}", 0.2)


def _restart_daemon(cluster: Cluster, node: Node) -> None:
    """kill -9 a node daemon, and wait for the next one: a kubelet that starts while there is none ends every pod that
    has an init container with devices, for it allocates them again.
    """
    dead = daemon_pod(cluster, node.name)
    kill_container(cluster, dead, "node")
    wait_until(lambda: _replaced(cluster, dead), 60, "the daemon to be back")


def _restart_kubelet(space: Space, node: Node, probe: str) -> None:
    """Restart a kubelet; returns when it has taken in the pods that were there, for it has started a younger one."""
    node.kubelet.restart()
    space.create(pod(probe, container(), **only(node.name)))
    wait_until(lambda: runs(space.pod(probe)), 60, "a pod without devices to run after the kubelet's restart")


@pytest.mark.timeout(300, func_only=True)
def test_no_running_pod_dies_with_a_mode_changed_a_device_removed_no_devices_and_the_kubelet_restarted(
    changeable: Node, space: Space
) -> None:
    cluster, node = space.cluster, changeable
    pods = [
        pod("whole", container(limits={DEVICE: 1}), **only(node.name)),
        *(pod(f"part-{n}", container(limits={MEMORY: "3Gi"}), **only(node.name)) for n in range(3)),
        pod(
            "steps",
            container(limits={MEMORY: "1Gi"}),
            container("plain"),
            init=[
                container("first", {MEMORY: "4Gi"}, ends=True),
                container("side", {MEMORY: "1Gi"}, restartPolicy="Always"),
            ],
            **only(node.name),
        ),
    ]
    with History(space) as history:
        space.create(*pods)
        before = space.wait_running(len(pods), timeout=90)
        assert disagreements(space, *before) == []

        # the same cards with less memory and fewer shares than are in use
        _write_cards(node, count=2, memory="2Gi", slots=1)
        node.profile = node.profile
        _wait_published(cluster, node, [2, 2])
        _restart_kubelet(space, node, "after-mode")
        # one card away, and the daemon new
        _write_cards(node, count=1, memory="2Gi", slots=1)
        node.profile = node.profile
        _wait_published(cluster, node, [2])
        _restart_daemon(cluster, node)
        _restart_kubelet(space, node, "after-removal")
        # a daemon that finds nothing at all
        node.profile = ""
        _wait_published(cluster, node, [])
        _restart_daemon(cluster, node)
        _restart_kubelet(space, node, "without-devices")
        # each sees still what it was given
        for found in before:
            for name in allocation(found).keys() - {"first"}:
                limits, _ = space.sees(found["metadata"]["name"], name)
                assert limits
                assert [d["memory"] for d in limits["devices"]] == [s["memory"] for s in allocation(found)[name]]

        _write_cards(node, count=2, memory="14Gi", slots=16)
        node.profile = "/var/lib/hamipy/cards.yaml"
        _wait_published(cluster, node, [14, 14])
        wait_chart_ready(cluster)
        chart.wait_devices(cluster, {node.name: 2})
        assert disagreements(space, *before) == []
    assert _deaths(history) == []
    assert _changed_minds(history) == []
