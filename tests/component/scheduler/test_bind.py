"""Place, assume, one Binding; and what forgets an assumption and what does not."""

import asyncio
import random
from typing import Any

import msgspec
import pytest

from hamipy.core.codec import decode_allocation
from hamipy.scheduler.pods import PodView
from tests.component.scheduler.world import PODS, World, device, until

BINDING = "*/pods/*/binding"


@pytest.fixture
async def one(world: World) -> World:
    """One node with one device of 14 GiB."""
    world.node("n1")
    await world.start()
    return world


async def shown(world: World, name: str = "a", memory: str = "8Gi") -> dict[str, Any]:
    """A pod that the engine's watch has shown."""
    pod = world.pod(name, memory)
    await until(lambda: pod["metadata"]["uid"] in world.engine.state.pods, "pod in the watch")
    return pod


def device_of(world: World, name: str) -> str:
    """The device that a bound pod has by its annotation."""
    annotation = world.read(name)["metadata"]["annotations"]["hamipy.io/allocation"]
    return decode_allocation(annotation).containers["main"][0].device


async def test_a_bind_writes_node_and_devices_in_one_request(one: World) -> None:
    pod = await shown(one)
    assert await one.bind(pod, "n1") == ""
    bound = one.read("a")
    assert bound["spec"]["nodeName"] == "n1"
    shares = decode_allocation(bound["metadata"]["annotations"]["hamipy.io/allocation"]).containers
    assert [(s.device, s.memory) for s in shares["main"]] == [("n1-0", 8 * 2**30)]
    assert one.client.writes == {"create pods/binding": 1}
    await one.seen()
    assert one.free("n1") == [6]
    assert one.engine.stats.assumptions == {"confirmed": 1}


async def test_a_pod_known_from_filter_only_is_bound(one: World) -> None:
    one.api.faults.add("watch", times=None, status=500)
    one.api.cut_watches()
    pod = one.pod("a")
    assert one.filter(pod)["NodeNames"] == ["n1"]
    assert await one.bind(pod, "n1") == ""
    assert one.free("n1") == [12]


async def test_a_pod_that_nobody_has_shown_is_refused(one: World) -> None:
    pod = {"metadata": {"name": "ghost", "namespace": "default", "uid": "ghost"}}
    assert "try again" in await one.bind(pod, "n1")
    assert one.engine.stats.binds_refused == {"unknown-pod": 1}


async def test_a_uid_under_another_name_is_refused(one: World) -> None:
    pod = await shown(one)
    pod["metadata"]["name"] = "b"
    assert "is pod default/a" in await one.bind(pod, "n1")


async def test_a_pod_without_our_resources_is_bound_without_an_annotation(one: World) -> None:
    pod = one.pod("plain", limits={"cpu": "1"})
    one.filter(pod)
    assert await one.bind(pod, "n1") == ""
    assert "annotations" not in one.read("plain")["metadata"]


async def test_a_pod_whose_request_cannot_be_read_is_refused_with_the_reason(one: World) -> None:
    pod = one.pod("a", limits={"hamipy.io/cores": "101"})
    assert "limits[hamipy.io/cores]: '101'" in one.filter(pod)["Error"]
    await one.seen()
    assert "limits[hamipy.io/cores]: '101'" in await one.bind(pod, "n1")
    assert one.sent("create", "/binding") == 0


async def test_a_second_bind_of_a_pod_joins_the_first(one: World) -> None:
    pod = await shown(one)
    one.api.faults.add("create", BINDING, delay=0.1)
    assert list(await asyncio.gather(*(one.bind(pod, "n1") for _ in range(3)))) == ["", "", ""]
    assert one.sent("create", "/binding") == 1
    assert one.engine.stats.binds["joined"] == 2


async def test_a_bind_of_a_pod_that_is_being_bound_elsewhere_is_refused(one: World) -> None:
    one.node("n2")
    await one.seen()
    pod = await shown(one)
    one.api.faults.add("create", BINDING, delay=0.1)
    answers = await asyncio.gather(one.bind(pod, "n1"), one.bind(pod, "n2"))
    assert list(answers) == ["", "pod is being bound to n1 already"]


async def test_a_bind_repeated_after_its_success_succeeds_again(one: World) -> None:
    one.api.faults.add("watch", times=None, status=500)
    pod = await shown(one)
    one.api.cut_watches()
    assert await one.bind(pod, "n1") == ""
    assert await one.bind(pod, "n1") == ""
    assert "bound to n1" in await one.bind(pod, "n2")
    one.api.faults.clear()
    await one.engine.state.relist_pods()
    assert await one.bind(pod, "n1") == ""
    assert one.sent("create", "/binding") == 1


async def test_a_share_that_was_taken_since_filter_is_not_handed_out(one: World) -> None:
    first, second = await shown(one, "a"), await shown(one, "b")
    for pod in (first, second):
        assert one.filter(pod)["NodeNames"] == ["n1"]
    assert await one.bind(first, "n1") == ""
    assert await one.bind(second, "n1") == (
        "devices were taken meanwhile: node(s) without 8Gi free memory on one device (most free 6Gi)"
    )
    assert one.sent("create", "/binding") == 1


async def test_a_pod_gets_what_was_held_for_it(world: World) -> None:
    world.node("n1", 2)
    await world.start()
    first, second = await shown(world, "a"), await shown(world, "b")
    for pod in (first, second):
        world.filter(pod)
    assert await world.bind(second, "n1") == ""
    assert await world.bind(first, "n1") == ""
    assert device_of(world, "a") != device_of(world, "b")
    assert world.free("n1") == [6, 6]


async def test_a_device_that_fell_sick_since_filter_is_not_given_although_it_was_held(world: World) -> None:
    world.node("n1", 2)
    await world.start()
    pod = await shown(world)
    world.filter(pod)
    held = world.engine.state.ledger.find(f"hold/{pod['metadata']['uid']}")
    assert held is not None
    assert held.allocation is not None
    sick = held.allocation.containers["main"][0].device
    world.inventory("n1", [device("n1", i, healthy=f"n1-{i}" != sick) for i in range(2)])
    await world.seen()
    assert await world.bind(pod, "n1") == ""
    assert device_of(world, "a") != sick


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_definite_refusal_forgets_the_assumption(one: World, status: int) -> None:
    pod = await shown(one)
    one.api.faults.add("create", BINDING, status=status)
    assert str(status) in await one.bind(pod, "n1")
    assert one.free("n1") == [14]
    assert one.engine.stats.assumptions == {"forgotten": 1}
    assert await one.bind(pod, "n1") == ""


@pytest.mark.parametrize("fault", [{"drop": "after"}, {"delay": 0.0, "drop": "after", "times": 1}])
async def test_a_binding_whose_answer_was_lost_is_found_by_reading(one: World, fault: dict[str, Any]) -> None:
    pod = await shown(one)
    one.api.faults.add("watch", times=None, status=500)
    one.api.cut_watches()
    one.api.faults.add("create", BINDING, **fault)
    assert await one.bind(pod, "n1") == ""
    assert one.free("n1") == [6]
    assert one.engine.stats.assumptions["found"] == 1


@pytest.mark.parametrize("fault", [{"drop": "before"}, {"status": 500}, {"status": 503}])
async def test_an_open_outcome_keeps_the_share_until_reads_have_settled_it(one: World, fault: dict[str, Any]) -> None:
    pod, other = await shown(one), await shown(one, "b")
    one.api.faults.add("create", BINDING, **fault)
    bind = asyncio.create_task(one.bind(pod, "n1"))
    await until(lambda: one.engine.stats.assumptions["kept"], "the outcome is open")
    assert one.free("n1") == [6]
    assert one.filter(other)["FailedNodes"] == {"n1": "node(s) without 8Gi free memory on one device (most free 6Gi)"}
    assert await bind != ""
    assert one.sent("get", "/pods/a") == 5
    assert one.free("n1") == [14]
    assert await one.bind(pod, "n1") == ""


async def test_a_bind_that_times_out_and_is_executed_late_is_not_forgotten(one: World) -> None:
    one.engine.leadership.bind_deadline = 0.05
    pod = await shown(one)
    one.api.faults.add("watch", times=None, status=500)
    one.api.cut_watches()
    late = one.api.faults.add("create", BINDING, delay=0.3)
    assert await one.bind(pod, "n1") == ""
    assert late.hits == 1
    assert one.free("n1") == [6]


async def test_while_the_api_server_cannot_be_read_nothing_is_forgotten(one: World) -> None:
    pod = await shown(one)
    one.api.faults.add("create", BINDING, drop="before")
    broken = one.api.faults.add("get", f"{PODS}/a", times=None, status=500)
    bind = asyncio.create_task(one.bind(pod, "n1"))
    await until(lambda: broken.hits > 8, "many failed reads")
    assert one.free("n1") == [6]
    assert not bind.done()
    one.api.faults.clear()
    assert "unreachable" in await bind
    assert one.free("n1") == [14]


async def test_filter_offers_only_the_node_of_an_open_binding(one: World) -> None:
    one.node("n2")
    await one.seen()
    pod = await shown(one)
    one.api.faults.add("create", BINDING, drop="before")
    bind = asyncio.create_task(one.bind(pod, "n1"))
    await until(lambda: one.engine.stats.assumptions["kept"], "the outcome is open")
    answer = one.filter(pod)
    assert answer["NodeNames"] == ["n1"]
    assert answer["FailedNodes"] == {"n2": "pod's binding to n1 is not decided yet"}
    await bind


async def test_a_conflict_is_settled_by_one_read(one: World) -> None:
    pod = await shown(one)
    one.api.faults.add("create", BINDING, status=409)
    assert "409" in await one.bind(pod, "n1")
    assert one.sent("get", "/pods/a") == 1
    assert one.free("n1") == [14]


async def test_too_many_requests_are_waited_out(one: World) -> None:
    pod = await shown(one)
    one.api.faults.add("create", BINDING, status=429, times=2)
    assert await one.bind(pod, "n1") == ""
    assert one.free("n1") == [6]


async def test_a_pod_bound_by_somebody_else_is_taken_as_it_is(one: World) -> None:
    one.node("n2")
    await one.seen()
    pod = await shown(one)
    one.api.faults.add("watch", times=None, status=500)
    one.api.cut_watches()
    text = '{"v":1,"containers":{"main":[{"device":"n2-0","memory":8589934592,"cores":0}]}}'
    one.api.patch(
        f"{PODS}/a", {"spec": {"nodeName": "n2"}, "metadata": {"annotations": {"hamipy.io/allocation": text}}}
    )
    assert "bound to n2 by somebody else" in await one.bind(pod, "n1")
    assert (one.free("n1"), one.free("n2")) == ([14], [6])


async def test_a_recreated_pod_of_the_same_name_is_another_pod(one: World) -> None:
    old = await shown(one)
    one.api.faults.add("watch", times=None, status=500)
    one.api.cut_watches()
    one.delete("a")
    new = one.pod("a", "2Gi")
    assert "409" in await one.bind(old, "n1")
    assert one.free("n1") == [14]
    one.filter(new)
    assert await one.bind(new, "n1") == ""
    assert one.free("n1") == [12]


async def test_a_pod_deleted_while_it_is_bound_leaves_nothing_behind(one: World) -> None:
    pod = await shown(one)
    one.api.faults.add("create", BINDING, delay=0.1)
    bind = asyncio.create_task(one.bind(pod, "n1"))
    await until(lambda: one.free("n1") == [6], "assumed")
    one.delete("a")
    assert "404" in await bind
    await one.seen()
    assert one.free("n1") == [14]
    assert "being deleted" in await one.bind(pod, "n1")


async def test_a_pod_deleted_before_the_watch_ever_showed_it_leaves_nothing_behind(one: World) -> None:
    one.engine.binder.confirm_after = 0.05
    one.api.faults.add("watch", times=None, status=500)
    one.api.cut_watches()
    pod = one.pod("a")
    one.filter(pod)
    assert await one.bind(pod, "n1") == ""
    one.delete("a")
    await until(lambda: one.free("n1") == [14], "the share is free again")


async def test_a_binding_that_the_watch_does_not_show_is_confirmed_by_reading(one: World) -> None:
    one.engine.binder.confirm_after = 0.05
    one.api.faults.add("watch", times=None, status=500)
    one.api.cut_watches()
    pod = one.pod("a")
    one.filter(pod)
    assert await one.bind(pod, "n1") == ""
    await until(lambda: one.engine.stats.assumptions["confirmed"], "confirmed")
    assert one.free("n1") == [12]


async def test_an_event_of_the_unassigned_pod_does_not_drop_the_assumption(one: World) -> None:
    pod = await shown(one)
    one.api.faults.add("create", BINDING, delay=0.2)
    bind = asyncio.create_task(one.bind(pod, "n1"))
    await until(lambda: one.free("n1") == [6], "assumed")
    one.api.patch(f"{PODS}/a", {"status": {"phase": "Odd"}})
    uid = one.engine.state.by_name["default", "a"]
    await until(lambda: one.engine.state.pods[uid].phase == "Odd", "the event")
    await one.engine.state.relist_pods()
    assert one.free("n1") == [6]
    assert await bind == ""


async def test_64_concurrent_binders_never_hand_out_a_share_twice(world: World) -> None:
    """Every second request fails in some way; truth and ledger are compared at every change."""
    for name in ("n1", "n2", "n3"):
        world.node(name, 2)
    await world.start()
    chance = random.Random(7)
    faults: list[dict[str, Any]] = [
        {"drop": "after"},
        {"drop": "before"},
        {"status": 500},
        {"status": 409},
        {"status": 403},
    ]
    for _ in range(20):
        fault = chance.choice(faults)
        world.api.faults.add("create", f"*/p{chance.randrange(64)}/binding", delay=chance.random() / 50, **fault)
    pods = [world.pod(f"p{i}", f"{chance.randint(1, 5)}Gi") for i in range(64)]
    worst: dict[str, int] = {}

    def check(_: str, __: PodView | None) -> None:
        for name, used in world.truth().items():
            worst[name] = max(worst.get(name, 0), used)

    world.engine.state.on_pod(check)

    async def one_by_one(pod: dict[str, Any]) -> str:
        for _ in range(3):
            await asyncio.sleep(chance.random() / 100)
            if node := await world.schedule(pod):
                return node
        return ""

    async def ends(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0.01)
            running = [p for p in world.api.list(PODS) if p["spec"].get("nodeName")]
            if running:
                world.delete(chance.choice(running)["metadata"]["name"])

    await asyncio.gather(*map(one_by_one, pods), ends(10))
    await world.seen()
    assert max(worst.values()) <= 14
    truth = world.truth()
    for name in ("n1", "n2", "n3"):
        assert world.free(name) == [14 - truth.get(f"{name}-{i}", 0) for i in range(2)]
    before = world.books()
    await world.restart()
    assert world.books() == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"nonsense",
        b"\xff\xfe",
        b'{"PodName":"a"}',
        b'{"PodName":1}',
        b"[" * 100_000,
        b'{"PodName":"a","PodNamespace":"b","PodUID":"","Node":"n"}',
    ],
)
async def test_a_body_that_is_no_binding_is_refused_in_one_sentence(one: World, body: bytes) -> None:
    reply = await one.engine.extender.bind(body)
    assert reply.status == 200
    assert msgspec.json.decode(reply.body)["Error"].startswith("ExtenderBindingArgs: ")
    assert one.sent("create", "/binding") == 0
