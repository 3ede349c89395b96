"""What the API server says is what the ledger holds."""

from typing import Any

import pytest

from hamipy.core.model import Limit
from hamipy.kube.nodedevices import PATH, NodeDevices
from hamipy.kube.objects import ObjectMeta
from tests.component.scheduler.world import PODS, World, device, until

BOUND = {"nodeName": "n1"}


def allocation(text: str = "") -> dict[str, str]:
    return {
        "hamipy.io/allocation": text
        or '{"v":1,"containers":{"main":[{"device":"n1-0","memory":2147483648,"cores":0}]}}'
    }


async def test_nodes_inventories_and_bound_pods_make_the_ledger(world: World) -> None:
    world.node("n1", 2)
    world.pod("a", spec=BOUND, annotations=allocation())
    await world.start()
    assert world.free("n1") == [12, 14]
    assert world.engine.state.by_name["default", "a"] in world.engine.state.pods


async def test_a_finished_pod_frees_at_once_and_a_terminating_one_still_holds(world: World) -> None:
    world.node("n1")
    for name in ("ends", "stops"):
        world.pod(name, spec=BOUND, annotations=allocation())
    await world.start()
    world.api.patch(f"{PODS}/stops", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.phase("ends", "Succeeded")
    await until(lambda: world.free("n1") == [12], "one of two is free")
    await world.seen()
    assert world.free("n1") == [12]
    world.delete("stops")
    await until(lambda: world.free("n1") == [14], "both are free")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "nonsense",
        '{"v":1}',
        '{"v":7,"containers":{}}',
        '{"v":1,"containers":{"other":[{"device":"n1-0","memory":1,"cores":0}]}}',
        '{"v":1,"containers":{"main":[{"device":"n1-0","memory":1,"cores":0},{"device":"n1-1","memory":1,"cores":0}]}}',
        '{"v":1,"containers":{"main":[{"device":"n1-0","memory":-5,"cores":0}]}}',
    ],
)
async def test_a_bound_pod_without_a_readable_allocation_counts_against_every_device(
    world: World, text: str | None
) -> None:
    world.node("n1", 2)
    pod = world.pod("odd", spec=BOUND, annotations={} if text is None else allocation(text))
    good = world.pod("good", spec=BOUND, annotations=allocation())
    await world.start()
    state = world.engine.state
    assert set(state.unknown) == {pod["metadata"]["uid"]}
    assert "hamipy.io/allocation" in state.unknown[pod["metadata"]["uid"]]
    assert world.free("n1") == [10, 12]
    assert state.ledger.find(good["metadata"]["uid"]) is not None
    world.delete("odd")
    await until(lambda: world.free("n1") == [12, 14], "its shares are free")
    assert not state.unknown


async def test_a_bound_pod_whose_request_cannot_be_read_leaves_nothing_of_its_node(world: World) -> None:
    world.node("n1", 2)
    pod = world.pod("odd", spec=BOUND, limits={"hamipy.io/memory": "soon"})
    await world.start()
    assert set(world.engine.state.unknown) == {pod["metadata"]["uid"]}
    assert world.free("n1") == [0, 0]
    world.delete("odd")
    await until(lambda: world.free("n1") == [14, 14], "its node is free")


async def test_an_owner_who_edits_constraints_of_a_running_pod_changes_nothing(world: World) -> None:
    world.node("n1")
    world.pod("a", spec=BOUND, annotations=allocation())
    await world.start()
    world.api.patch(f"{PODS}/a", {"metadata": {"annotations": {"hamipy.io/vendor": " ", "hamipy.io/nonsense": "x"}}})
    uid = world.engine.state.by_name["default", "a"]
    await until(lambda: world.engine.state.pods[uid].problem, "the edit is seen")
    assert world.free("n1") == [12]
    assert not world.engine.state.unknown


async def test_an_inventory_that_cannot_be_read_closes_its_node_and_no_other(world: World) -> None:
    world.node("n1")
    world.node("n2")
    await world.start()
    state = world.engine.state
    world.api.patch(f"{PATH}/n1", {"spec": {"devices": [{"id": "x", "index": 0, "memory": "much"}]}})
    await until(lambda: "n1" in state.inventory_problems, "the problem is known")
    assert "devices[0]" in state.inventory_problems["n1"]
    answer = world.filter(world.pod("a"))
    assert answer["NodeNames"] == ["n2"]
    assert answer["FailedAndUnresolvableNodes"] == {"n1": "node(s) without a device inventory"}
    world.inventory("n1", [device("n1", 0)])
    await until(lambda: "n1" in state.inventories, "the node is back")
    assert world.filter(world.pod("b"))["NodeNames"] == ["n1", "n2"]


async def test_a_foreign_version_of_an_inventory_is_refused_by_name(world: World) -> None:
    world.node("n1")
    await world.start()
    foreign = NodeDevices(ObjectMeta(name="n9"), "hamipy.io/v9")  # an API server would convert it
    world.engine.state.see_inventory(foreign)
    assert list(world.engine.state.inventories) == ["n1"]
    assert "'hamipy.io/v9'" in world.engine.state.inventory_problems["n9"]


async def test_a_node_is_closed_while_the_kubelet_does_not_list_our_resource(world: World) -> None:
    world.node("n1")
    await world.start()
    world.api.patch("/api/v1/nodes/n1", {"status": {"allocatable": {"hamipy.io/device": "0"}}})
    entry = world.engine.state.ledger.nodes["n1"]
    await until(lambda: entry.closed_by is Limit.SERVING, "closed")
    assert world.filter(world.pod("a"))["FailedAndUnresolvableNodes"] == {
        "n1": "node(s) whose device daemon is not serving"
    }


async def test_a_node_is_closed_while_its_kubelet_would_hold_pods_to_fewer_names_than_its_devices(world: World) -> None:
    world.node("n1")
    await world.start()
    ledger = world.engine.state.ledger
    column = ledger.nodes["n1"].column

    def publish(gib: int) -> None:
        names = {"hamipy.io/memory": f"{gib}Gi"}
        world.api.patch("/api/v1/nodes/n1", {"status": {"capacity": names, "allocatable": names}})

    publish(14)
    await world.seen()
    assert ledger.is_open[column]
    world.inventory("n1", [device("n1", 0), device("n1", 1)])
    await until(lambda: not ledger.is_open[column], "two devices, one published")
    publish(28)
    await until(lambda: ledger.is_open[column], "both published")
    publish(0)
    await until(lambda: not ledger.is_open[column], "the kubelet has wiped them")


async def test_a_node_whose_kubelet_fails_a_pod_at_admission_is_closed_until_its_daemon_serves_again(
    world: World,
) -> None:
    world.node("n1")
    for name in ("a", "b", "c"):
        world.pod(name, spec=BOUND, annotations=allocation())
    await world.start()
    ledger = world.engine.state.ledger
    column = ledger.nodes["n1"].column

    def fail(name: str, reason: str) -> None:
        world.api.patch(f"{PODS}/{name}", {"status": {"phase": "Failed", "reason": reason}})

    fail("a", "Evicted")
    await world.seen()
    assert ledger.is_open[column]
    fail("b", "UnexpectedAdmissionError")
    await until(lambda: not ledger.is_open[column], "closed")
    world.inventory("n1", [device("n1", 0)], serving=False)
    world.inventory("n1", [device("n1", 0)])
    await until(lambda: ledger.is_open[column], "its daemon serves again")
    # or after a while, for a daemon that dies may be back before anybody has asked it
    world.engine.state.refused_for = 0.05
    fail("c", "UnexpectedAdmissionError")
    await until(lambda: not ledger.is_open[column], "closed again")
    await until(lambda: ledger.is_open[column], "open after a while")


async def test_a_pod_that_failed_at_admission_before_we_looked_closes_nothing(world: World) -> None:
    world.node("n1")
    world.pod("old", spec=BOUND, annotations=allocation())
    world.api.patch(f"{PODS}/old", {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}})
    await world.start()
    ledger = world.engine.state.ledger
    assert ledger.is_open[ledger.nodes["n1"].column]


async def test_a_deleted_node_comes_back_with_its_pods(world: World) -> None:
    world.node("n1")
    world.pod("a", spec=BOUND, annotations=allocation())
    await world.start()
    world.api.delete("/api/v1/nodes/n1")
    await until(lambda: "n1" not in world.engine.state.nodes, "node gone")
    assert not world.filter(world.pod("b"), ["n1"])["NodeNames"]
    status = {"allocatable": {"hamipy.io/device": "10"}}
    world.api.create("/api/v1/nodes", {"metadata": {"name": "n1"}, "status": status})
    await until(lambda: "n1" in world.engine.state.nodes, "node back")
    assert world.free("n1") == [12]
    assert world.filter(world.pod("c"), ["n1"])["NodeNames"] == ["n1"]


async def test_a_relist_replaces_exactly_and_touches_only_what_changed(world: World) -> None:
    world.node("n1", 2)
    world.pod("stays", spec=BOUND, annotations=allocation())
    world.pod("goes", spec=BOUND, annotations=allocation())
    await world.start()
    seen: list[tuple[str, Any]] = []
    world.engine.state.on_pod(lambda uid, view: seen.append((uid, view and view.name)))
    gone = world.engine.state.by_name["default", "goes"]
    world.api.faults.add("watch", times=None, status=500)
    world.api.cut_watches()
    world.delete("goes")
    came = world.pod("comes", spec=BOUND, annotations=allocation())
    world.api.compact()
    world.api.faults.clear()
    await world.engine.state.relist_pods()
    assert sorted(seen) == sorted([(gone, None), (came["metadata"]["uid"], "comes")])
    assert world.free("n1") == [10, 14]


async def test_a_restart_finds_the_same_ledger(world: World) -> None:
    world.node("n1", 2)
    world.node("n2", 2)
    await world.start()
    for i in range(8):
        assert await world.schedule(world.pod(f"p{i}", memory=f"{i % 3 + 1}Gi"))
    world.phase("p3", "Failed")
    world.delete("p4")
    await world.seen()
    before = world.books()
    await world.restart()
    assert world.books() == before


async def test_requests_of_a_node_are_summed_as_kubernetes_counts_pods(world: World) -> None:
    world.node("n1")
    limits = {"hamipy.io/device": "1", "hamipy.io/memory": "2Gi"}

    def container(name: str, count: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "resources": {"limits": {**limits, "hamipy.io/device": count}}, **more}

    init = [container("side", "1", restartPolicy="Always"), container("init", "3")]
    world.pod("a", spec={**BOUND, "initContainers": init}, containers=[container("x", "1"), container("y", "1")])
    world.pod("b", spec=BOUND, limits=limits)
    world.pod("c", spec=BOUND, limits=limits, status={"phase": "Failed"})
    await world.start()
    assert world.engine.state.requested_on("n1") == {"hamipy.io/device": 5, "hamipy.io/memory": 8 * 2**30}
    assert world.engine.state.requested_on("n2") == {}


async def test_pods_of_other_schedulers_are_not_ours(world: World) -> None:
    world.node("n1")
    world.pod("other", spec={**BOUND, "schedulerName": "default-scheduler"})
    world.pod("plain", spec=BOUND, limits={"cpu": "1"})
    await world.start()
    assert [p.name for p in world.engine.state.pods.values()] == ["plain"]
    assert world.free("n1") == [14]
    assert not world.engine.state.unknown


async def test_listeners_hear_which_nodes_were_touched(world: World) -> None:
    world.node("n1")
    world.node("n2")
    await world.start()
    await world.seen()
    heard: list[set[str]] = []
    world.engine.state.on_change(heard.append)
    world.pod("a", spec=BOUND, annotations=allocation())
    await until(lambda: heard, "a change is told")
    assert heard == [{"n1"}]
