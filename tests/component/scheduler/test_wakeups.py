"""A refused pod is woken when a change makes it fit: once for each change, as many as fit, and nobody for nothing."""

import asyncio
from typing import Any

import pytest

from hamipy.scheduler import wakeups
from tests.component.scheduler.world import PODS, World, device, until

PATCH = f"{PODS}/*"


async def full(world: World, memory: str = "14Gi") -> World:
    """Two nodes, each full with a pod."""
    for name in ("n1", "n2"):
        world.node(name)
        text = f'{{"v":1,"containers":{{"main":[{{"device":"{name}-0","memory":15032385536,"cores":0}}]}}}}'
        world.pod(f"on-{name}", "14Gi", spec={"nodeName": name}, annotations={"hamipy.io/allocation": text})
    await world.start()
    world.engine.holds.seconds = 0.02
    return world


def woken(world: World) -> list[str]:
    """Names of the pods that were patched, in order."""
    return [r.path.rpartition("/")[2] for r in world.api.requests if r.verb == "patch" and "/pods/" in r.path]


async def quiet(world: World) -> None:
    """Wait until everything has been seen and a later wake-up has been through, so none is on its way."""
    await world.seen()
    for _ in range(5):
        await asyncio.sleep(0.03)


async def refuse(
    world: World, name: str, memory: str = "8Gi", names: list[str] | None = None, **more: Any
) -> dict[str, Any]:
    pod = world.pod(name, memory, **more)
    assert not world.filter(pod, names)["NodeNames"]
    return pod


async def test_a_released_share_wakes_the_pod_that_waits_for_it(world: World) -> None:
    await full(world)
    pod = await refuse(world, "a")
    world.delete("on-n1")
    await until(lambda: woken(world), "woken")
    assert woken(world) == ["a"]
    assert "hamipy.io/retry" in world.read("a")["metadata"]["annotations"]
    assert await world.schedule(pod) == "n1"
    await quiet(world)
    assert woken(world) == ["a"]
    assert len(world.engine.wakeups) == 0
    assert world.client.writes == {"patch pods": 1, "create pods/binding": 1}


CHANGES = {
    "a pod ended": lambda w: w.phase("on-n1", "Failed"),
    "a node was added": lambda w: w.node("n3"),
    "a device is well again": lambda w: w.inventory("sick", [device("sick", 0)]),
    "a device is larger": lambda w: w.inventory("n1", [device("n1", 0, 40)]),
    "a node serves again": lambda w: w.inventory("away", [device("away", 0)]),
    "the kubelet lists our resource again": lambda w: w.api.patch(
        "/api/v1/nodes/silent", {"status": {"allocatable": {"hamipy.io/device": "10"}}}
    ),
    "a node was uncordoned": lambda w: w.api.patch("/api/v1/nodes/cordoned", {"spec": {"unschedulable": False}}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_every_kind_of_change_that_makes_room_wakes(world: World, change: str) -> None:
    world.node("sick", [device("sick", 0, healthy=False)])
    world.node("away", serving=False)
    world.node("silent")
    world.api.patch("/api/v1/nodes/silent", {"status": {"allocatable": {"hamipy.io/device": "0"}}})
    world.node("cordoned", spec={"unschedulable": True})
    await full(world)
    await refuse(world, "a", names=["n1", "n2", "sick", "away", "silent"])
    await quiet(world)
    assert woken(world) == []
    CHANGES[change](world)
    await until(lambda: woken(world) == ["a"], "woken")


async def test_only_as_many_are_woken_as_fit_by_priority_and_then_age(world: World) -> None:
    await full(world)
    for i in range(6):
        await refuse(world, f"p{i}", "5Gi", spec={"priority": 10 if i == 4 else 0})
    await refuse(world, "large", "14Gi", spec={"priority": -1})
    await world.seen()
    world.delete("on-n1")
    await until(lambda: len(woken(world)) >= 2, "two are woken")
    await quiet(world)
    assert woken(world) == ["p4", "p0"]


async def test_a_woken_pod_is_not_woken_again_without_a_change(world: World) -> None:
    """kube-scheduler refuses it for reasons of its own: it never comes to /filter, or with other nodes only."""
    await full(world)
    pod = await refuse(world, "a")
    world.delete("on-n1")
    await until(lambda: woken(world), "woken")
    for _ in range(3):
        assert not world.filter(pod, ["n2"])["NodeNames"]
        await quiet(world)
    assert woken(world) == ["a"]
    world.api.patch(f"{PODS}/on-n2", {"metadata": {"labels": {"changed": "yes"}}})
    world.api.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"changed": "yes"}}})
    await quiet(world)
    assert woken(world) == ["a"]
    world.delete("on-n2")
    await until(lambda: len(woken(world)) == 2, "woken for another node")


async def test_a_pod_that_is_woken_in_vain_again_and_again_waits_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "WOKEN_HOLD", 0.02)
    await full(world)
    pod = await refuse(world, "a", "14Gi")
    text = '{"v":1,"containers":{"main":[{"device":"n1-0","memory":15032385536,"cores":0}]}}'
    world.delete("on-n1")
    for i in range(6):
        await quiet(world)
        world.filter(pod, ["n2"])
        world.pod(f"x{i}", "14Gi", spec={"nodeName": "n1"}, annotations={"hamipy.io/allocation": text})
        await world.seen()
        world.delete(f"x{i}")
    await quiet(world)
    assert len(woken(world)) == wakeups.PATIENCE
    await until(lambda: len(woken(world)) == wakeups.PATIENCE + 1, "the delayed wake-up is not lost")


async def test_what_kube_scheduler_saw_before_us_is_not_lost(world: World) -> None:
    """Its retry, caused by the same event, is refused because our watch is late; then the event comes."""
    await full(world)
    world.api.faults.add("watch", times=None, status=500)
    world.api.cut_watches()
    world.delete("on-n1")
    pod = await refuse(world, "a")
    world.api.faults.clear()
    await until(lambda: woken(world), "woken")
    assert await world.schedule(pod) == "n1"


async def test_a_change_between_the_refusal_and_the_look_is_not_lost(world: World) -> None:
    await full(world)
    for name in ("a", "b"):
        await refuse(world, name)
    world.engine.state.lose_pod(world.engine.state.by_name["default", "on-n1"])
    await refuse(world, "c", "14Gi", names=["n2"])
    world.engine.state.lose_pod(world.engine.state.by_name["default", "on-n2"])
    await until(lambda: len(woken(world)) == 2, "both are woken")
    assert sorted(woken(world)) == ["a", "b"]


async def test_a_pod_refused_at_bind_is_remembered_too(world: World) -> None:
    await full(world)
    pod = world.pod("a")
    await world.seen()
    assert "taken meanwhile" in await world.bind(pod, "n1")
    world.delete("on-n2")
    await until(lambda: woken(world), "woken")


async def test_a_bound_or_deleted_pod_is_not_woken(world: World) -> None:
    await full(world)
    await refuse(world, "gone")
    await refuse(world, "bound")
    await world.seen()
    world.delete("gone")
    world.api.patch(f"{PODS}/bound", {"spec": {"nodeName": "n9"}})
    await world.seen()
    assert len(world.engine.wakeups) == 0
    world.delete("on-n1")
    await quiet(world)
    assert woken(world) == []


@pytest.mark.parametrize("fault", [{"status": 500}, {"drop": "before"}, {"status": 503, "times": 2}])
async def test_a_wake_up_that_fails_is_tried_again(world: World, fault: dict[str, Any]) -> None:
    await full(world)
    await refuse(world, "a")
    world.api.faults.add("patch", PATCH, **fault)
    world.delete("on-n1")
    await until(lambda: world.engine.stats.wakeups["sent"] == 1, "sent")
    assert "hamipy.io/retry" in world.read("a")["metadata"]["annotations"]


async def test_a_wake_up_that_keeps_failing_is_tried_anew_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "WOKEN_HOLD", 0.1)
    await full(world)
    await refuse(world, "a")
    world.engine.wakeups.debounce = 0.001
    world.api.faults.add("patch", PATCH, status=403, times=2)
    world.delete("on-n1")
    await until(lambda: world.engine.stats.wakeups["sent"] == 1, "sent at last")
    assert world.engine.stats.wakeups["failed"] == 2


async def test_a_recreated_pod_of_the_same_name_is_not_patched_in_its_place(world: World) -> None:
    await full(world)
    await refuse(world, "a")
    world.api.faults.add("watch", PODS.replace("/namespaces/default", ""), times=None, status=500)
    world.api.cut_watches(PODS.replace("/namespaces/default", ""))
    world.delete("a")
    world.pod("a")
    world.engine.state.lose_pod(world.engine.state.by_name["default", "on-n1"])
    await until(lambda: world.engine.stats.wakeups["gone"], "refused by uid")
    assert "hamipy.io/retry" not in (world.read("a")["metadata"].get("annotations") or {})
    assert len(world.engine.wakeups) == 0


async def test_a_pod_that_fits_only_outside_the_sample_is_woken_until_its_node_is_shown(world: World) -> None:
    """percentageOfNodesToScore: each attempt offers the next hundred of three hundred nodes."""
    for i in range(300):
        world.node(f"n{i:03d}", memory=14 if i == 250 else 1)
    await world.start()
    pod, names = world.pod("a"), sorted(world.engine.state.nodes)
    for attempt in range(2):
        assert not world.filter(pod, names[attempt * 100 :][:100])["NodeNames"]
        await until(lambda n=attempt: len(woken(world)) == n + 1, "woken at once")  # type: ignore[misc]
    assert world.filter(pod, names[200:])["NodeNames"] == ["n250"]
    await quiet(world)
    assert len(woken(world)) == 2


async def test_a_node_that_is_never_offered_does_not_keep_a_pod_awake(world: World) -> None:
    for i in range(120):
        world.node(f"n{i:03d}", memory=14 if i == 0 else 1)
    await world.start()
    pod, names = world.pod("a"), sorted(world.engine.state.nodes)
    for _ in range(4):
        assert not world.filter(pod, names[1:])["NodeNames"]
        await quiet(world)
    assert len(woken(world)) <= 1


async def test_many_wake_ups_have_a_bounded_rate_and_none_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "BURST", 5)
    await full(world)
    world.engine.wakeups._tokens = 5.0
    for i in range(20):
        await refuse(world, f"p{i:02d}", "100Mi")
    world.delete("on-n1")
    world.delete("on-n2")
    await until(lambda: len(woken(world)) >= 5, "the first are woken")
    await until(lambda: len(woken(world)) == 20, "all are woken")
    assert sorted(woken(world)) == [f"p{i:02d}" for i in range(20)]


async def test_who_does_not_lead_wakes_nobody_and_forgets_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "NOT_LEADING", 0.05)
    await full(world)
    await refuse(world, "a")
    leadership = world.engine.leadership
    leadership._always = False
    world.delete("on-n1")
    await quiet(world)
    assert woken(world) == []
    leadership._always = True
    await until(lambda: woken(world) == ["a"], "woken after all")
