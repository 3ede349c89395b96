"""The ledger as a document, and as metrics."""

from typing import Any

import msgspec

from hamipy.scheduler.inspect import Snapshot, snapshot, stream
from hamipy.scheduler.metrics import device_lines
from tests.component.scheduler.world import GI, World, device


async def text(world: World) -> bytes:
    return b"".join([piece async for piece in stream(world.engine.state, leader=True)])


async def gauges(world: World) -> dict[str, str]:
    lines = b"".join([piece async for piece in device_lines(world.engine.state.ledger)]).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


async def test_who_holds_what_is_told_device_by_device(world: World) -> None:
    world.node("n1", [device("n1", 0), device("n1", 1, healthy=False, reason="ECC error")])
    pods = [world.pod("a", "2Gi"), world.pod("b", limits={"hamipy.io/memory": "3Gi", "hamipy.io/cores": "30"})]
    await world.start()
    for pod in pods:
        assert await world.schedule(pod) == "n1"
    await world.seen()

    shot = snapshot(world.engine.state, leader=True)

    assert (shot.ready, shot.stale, shot.leader, shot.pending) == (True, False, True, ())
    (node,) = shot.nodes
    assert (node.name, node.closed, node.schedulable, node.problem) == ("n1", "", True, "")
    first, second = node.devices
    assert (first.id, first.memory.total, first.memory.allocated) == ("n1-0", 14 * GI, 5 * GI)
    assert (first.cores.allocated, first.slots.allocated) == (30, 2)
    assert [(p.name, p.memory, p.cores, p.slots) for p in first.pods] == [("a", 2 * GI, 0, 1), ("b", 3 * GI, 30, 1)]
    assert first.pods[1].containers["main"].cores == 30
    assert (second.healthy, second.reason, second.memory.allocated, second.pods) == (False, "ECC error", 0, ())


async def test_pieces_and_whole_say_the_same(world: World) -> None:
    for i in range(3):
        world.node(f"n{i}", 2)
    world.api.create("/api/v1/nodes", {"metadata": {"name": "cpu"}})
    world.pod("big", "80Gi")
    await world.start()
    await world.schedule(world.pod("a", "2Gi"))
    await world.seen()

    whole = snapshot(world.engine.state, leader=True)

    assert msgspec.json.decode(await text(world), type=Snapshot) == whole
    assert [n.name for n in whole.nodes] == ["n0", "n1", "n2"], "a node without devices is none of ours"


async def test_a_pending_pod_comes_with_its_reason(world: World) -> None:
    world.node("n1", 1)
    world.pod("big", "80Gi")
    world.pod("small", "1Gi")
    world.pod("odd", limits={"hamipy.io/memory": "8000"})
    await world.start()

    reasons = {p.name: p.reason for p in snapshot(world.engine.state).pending}

    assert (
        reasons["big"] == "no node fits: 1 node(s) without 80Gi memory on one device even when empty (largest has 14Gi)"
    )
    assert reasons["small"] == "fits on 1 of 1 nodes with devices; waits for kube-scheduler"
    assert reasons["odd"].endswith("is 8000 bytes, less than 1Mi; did you mean 8000Mi?")


async def test_without_any_devices_the_reason_says_so(world: World) -> None:
    world.pod("a", "1Gi")
    await world.start()

    assert snapshot(world.engine.state).pending[0].reason == "there is no node with devices"


async def test_unknown_pods_holds_and_unreadable_inventories_are_shown(world: World) -> None:
    world.node("n1", 1)
    world.node("n2", [device("n2", 0, memory=1)])
    world.api.create(
        "/apis/hamipy.io/v1alpha1/nodedevices",
        {
            "metadata": {"name": "n3"},
            "spec": {"devices": [{"id": "a::b", "index": 0, "vendor": "v", "model": "m", "memory": 1, "slots": 1}]},
        },
    )
    stranger = world.pod("stranger", "1Gi", spec={"nodeName": "n1"})
    waiting = world.pod("waiting", "2Gi")
    await world.start()
    assert world.filter(waiting, ["n1"])["NodeNames"] == ["n1"]

    nodes: dict[str, Any] = {n.name: n for n in snapshot(world.engine.state).nodes}

    (unknown,) = nodes["n1"].unknown
    assert (unknown.uid, unknown.name) == (stranger["metadata"]["uid"], "stranger")
    assert unknown.reason == "metadata.annotations[hamipy.io/allocation] is missing"
    (hold,) = nodes["n1"].holds
    assert hold.name == "waiting"
    assert "a::b" in nodes["n3"].problem
    assert nodes["n3"].devices == ()


async def test_gauges_of_every_device_agree_with_the_ledger(world: World) -> None:
    world.node("n1", [device("n1", 0), device("n1", 1, healthy=False)])
    world.node("n2", 1, memory=80)
    await world.start()
    pod = world.pod("a", limits={"hamipy.io/memory": "3Gi", "hamipy.io/cores": "30"})
    await world.seen()
    assert await world.bind(pod, "n1") == ""
    await world.seen()

    lines = await gauges(world)

    def of(gauge: str, node: str, index: int) -> str:
        return lines[f'hamipy_device_{gauge}{{node="{node}",device="{node}-{index}",vendor="mock",model="T4"}}']

    assert of("memory_bytes", "n1", 0) == str(14 * GI)
    assert of("memory_bytes", "n2", 0) == str(80 * GI)
    assert of("memory_allocated_bytes", "n1", 0) == str(3 * GI)
    assert of("cores_allocated_percent", "n1", 0) == "30"
    assert of("slots_allocated", "n1", 0) == "1"
    assert (of("healthy", "n1", 0), of("healthy", "n1", 1)) == ("1", "0")
    assert len(lines) == 3 * 7


async def test_labels_are_escaped(world: World) -> None:
    world.node("n1", [device("n1", 0, isolation=())])
    world.inventory("n1", [msgspec.structs.replace(device("n1", 0), model='A"1\\2')])
    await world.start()

    assert any('model="A\\"1\\\\2"' in line for line in await gauges(world))
