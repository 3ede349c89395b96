"""Pods get their fractions: the scenario of the demo, on real kubelets."""

from hamipy.core.quantity import parse_int

from .api import JSON
from .books import allocation
from .daemons import wait_until
from .workloads import Space, container, deployment, each, pod

GIB = 2**30
MEMORY = "hamipy.io/memory"


def _app(name: str, replicas: int, memory: str) -> JSON:
    return deployment(name, replicas, pod(name, container(limits={MEMORY: memory})))


def _node(found: JSON) -> str:
    return str(found["spec"]["nodeName"])


def test_five_apps_fill_two_cards_to_89_percent_and_the_next_is_told_why_it_waits(space: Space) -> None:
    apps = [("app1", 1, 2), ("app2", 2, 8), ("app3", 1, 2), ("app4", 1, 5)]
    count = 0
    for name, replicas, gib in apps:
        space.create(_app(name, replicas, f"{gib}Gi"))
        count += replicas
        space.wait_running(count)

    def check(found: JSON) -> tuple[str, int]:
        name, node = found["metadata"]["name"], _node(found)
        written = parse_int(found["spec"]["containers"][0]["resources"]["limits"][MEMORY])
        (share,) = allocation(found)["main"]
        limits, devices = space.sees(name)
        assert limits == {
            "pod": f"{space.name}/{name}",
            "container": "main",
            "devices": [{"id": share["device"], "memory": written, "cores": 0, "partition": None}],
        }
        assert devices == [share["device"]]
        inventory = space.api.get("nodedevices", None, node)
        assert share["device"] in [d["id"] for d in inventory["spec"]["devices"]]
        return node, written

    used = dict.fromkeys(space.cluster.nodes, 0)
    for node, written in each(check, space.pods()):
        used[node] += written
    assert sorted(used.values()) == [12 * GIB, 13 * GIB]

    space.create(_app("app5", 1, "3Gi"))
    (waiting,) = wait_until(lambda: space.pods(labelSelector="app=app5"), 20, "app5's pod")
    name = waiting["metadata"]["name"]
    (told, *_) = wait_until(lambda: space.events(name, "FailedScheduling"), 20, f"a FailedScheduling event of {name}")
    assert "0/2 nodes are available" in told
    assert "node(s) without 3Gi free memory on one device (most free 2Gi)" in told
    assert "nodeName" not in space.pod(name)["spec"]
    assert space.pod(name)["status"]["phase"] == "Pending"


def test_a_share_of_cores_and_a_percentage_of_memory_reach_the_container(space: Space) -> None:
    space.create(
        pod("percent", container(limits={"hamipy.io/memory-percentage": 25, "hamipy.io/cores": 30})),
        pod("whole", container(limits={"hamipy.io/device": 1})),
    )
    space.wait_running(2)
    shares = {}
    for name in ("percent", "whole"):
        limits, _ = space.sees(name)
        assert limits
        shares[name] = limits["devices"][0]
    assert (shares["percent"]["memory"], shares["percent"]["cores"]) == (14 * GIB // 4, 30)
    assert (shares["whole"]["memory"], shares["whole"]["cores"]) == (14 * GIB, 100)
    assert shares["percent"]["id"] != shares["whole"]["id"]


def test_a_pod_without_our_resources_gets_no_device_and_is_not_touched(space: Space) -> None:
    space.create(pod("plain", container()))
    (found,) = space.wait_running()
    assert found["spec"]["schedulerName"] == "default-scheduler"
    assert space.sees("plain") == (None, [])
    assert not [k for k in found["metadata"].get("annotations", {}) if k.startswith("hamipy.io/")]


def test_a_released_share_is_given_to_the_pod_that_waits_for_it(space: Space) -> None:
    for n in range(3):
        space.create(pod(f"p{n}", container(limits={MEMORY: "14Gi"})))
    up = space.wait_running(2)
    space.api.delete("pods", space.name, up[0]["metadata"]["name"])
    wait_until(lambda: len(space.pods()) == 2, 20, "the deleted pod to go")
    space.wait_running(2, timeout=20)
