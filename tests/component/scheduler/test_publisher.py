"""Published names in the node status of an API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hamipy.scheduler.publisher import Publisher
from tests.component.scheduler.world import World, device, until

NODES = "/api/v1/nodes"


class Publishing:
    """A publisher at work on a world."""

    def __init__(self, world: World, **options: Any) -> None:
        self.world, self.leads = world, True
        self.publisher = Publisher(
            world.client,
            world.engine.state,
            lambda: self.leads,
            **{"settle": 0.01, "sweep_interval": 3600.0, **options},
        )

    def names(self, node: str, which: str = "capacity") -> dict[str, str]:
        status = self.world.api.get(f"{NODES}/{node}")["status"]
        return {k.removeprefix("hamipy.io/"): v for k, v in (status.get(which) or {}).items()}

    def patches(self) -> int:
        return self.world.sent("patch", "/status")

    async def shows(self, node: str, **wanted: str) -> None:
        """Until capacity and allocatable are exactly this, with `_` for `-`."""
        exact = {"device": "80", **{k.replace("_", "-"): v for k, v in wanted.items()}}
        await until(lambda: self.names(node) == self.names(node, "allocatable") == exact, f"{node} shows {exact}")

    async def quiet(self) -> None:
        """Until everything was seen and looked at."""
        await self.world.seen()
        publisher = self.publisher
        await until(
            lambda: not publisher._changed and not publisher._queued and not publisher._resting,
            "nothing left to look at",
        )


@contextlib.asynccontextmanager
async def publishing(world: World, **options: Any) -> AsyncIterator[Publishing]:
    await world.start()
    made = Publishing(world, **options)
    task = asyncio.create_task(made.publisher.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])


ONE = {"cores": "100", "memory": "14Gi", "memory_percentage": "100", "memory_total": "14Gi"}
TWO = {"cores": "200", "memory": "28Gi", "memory_percentage": "200", "memory_total": "28Gi"}


async def test_every_node_with_devices_shows_them_and_one_write_each_is_enough(world: World) -> None:
    world.node("n1", 1)
    world.node("n2", 2)
    world.api.create(NODES, {"metadata": {"name": "cpu"}, "status": {"capacity": {"cpu": "4"}}})
    async with publishing(world) as made:
        await made.shows("n1", **ONE)
        await made.shows("n2", **TWO)
        await made.quiet()

        assert made.patches() == made.publisher.written == 2
        assert world.api.get(f"{NODES}/cpu")["status"] == {"capacity": {"cpu": "4"}}


async def test_a_node_that_comes_later_and_devices_that_come_later_are_shown(world: World) -> None:
    async with publishing(world) as made:
        world.node("n1", 1)
        await made.shows("n1", **ONE)

        world.inventory("n1", [device("n1", 0), device("n1", 1)])
        await made.shows("n1", **TWO)


async def test_what_the_kubelet_wipes_is_asserted_again(world: World) -> None:
    world.node("n1", 1)
    async with publishing(world) as made:
        await made.shows("n1", **ONE)

        zeroed = {f"hamipy.io/{k.replace('_', '-')}": "0" for k in ONE}
        world.api.patch(f"{NODES}/n1", {"status": {"capacity": zeroed, "allocatable": zeroed}})
        await until(lambda: made.publisher.written == 2, "a second write")
        await made.shows("n1", **ONE)

        world.api.patch(f"{NODES}/n1", {"status": {"allocatable": dict.fromkeys(zeroed)}})
        await until(lambda: made.publisher.written == 3, "a third write")
        await made.shows("n1", **ONE)


async def test_a_sick_device_changes_nothing(world: World) -> None:
    world.node("n1", 1)
    async with publishing(world) as made:
        await made.shows("n1", **ONE)

        world.inventory("n1", [device("n1", 0, healthy=False, reason="ECC")])
        await made.quiet()

        assert made.publisher.written == 1
        await made.shows("n1", **ONE)


async def test_names_shrink_only_to_what_bound_pods_request_until_these_have_ended(world: World) -> None:
    world.node("n1", 2)
    pod = world.pod("a", limits={"hamipy.io/memory": "10Gi", "hamipy.io/memory-total": "20Gi", "hamipy.io/device": "2"})
    async with publishing(world) as made:
        assert await world.schedule(pod) == "n1"
        await world.seen()

        world.inventory("n1", [device("n1", 0, memory=4)])
        await made.shows("n1", cores="100", memory="10Gi", memory_percentage="100", memory_total="20Gi")

        world.api.delete("/apis/hamipy.io/v1alpha1/nodedevices/n1")
        await made.shows("n1", memory="10Gi", memory_total="20Gi")

        world.phase("a", "Succeeded")
        await made.shows("n1")
        assert "0" not in made.names("n1").values()


async def test_a_terminating_pod_still_counts(world: World) -> None:
    world.node("n1", 1)
    pod = world.pod("a", "10Gi")
    async with publishing(world) as made:
        assert await world.schedule(pod) == "n1"
        world.api.graceful = True
        await world.client.delete("/api/v1/namespaces/default/pods/a")
        world.inventory("n1", [device("n1", 0, memory=4)])
        await made.shows("n1", cores="100", memory="10Gi", memory_percentage="100", memory_total="4Gi")

        world.api.finish_deletion("default", "a")
        await made.shows("n1", cores="100", memory="4Gi", memory_percentage="100", memory_total="4Gi")


async def test_only_the_leader_publishes_and_a_new_one_puts_everything_right(world: World) -> None:
    world.node("n1", 1)
    async with publishing(world) as made:
        await made.shows("n1", **ONE)
        made.leads = False
        world.inventory("n1", [device("n1", 0), device("n1", 1)])
        world.node("n2", 1)
        await made.quiet()
        assert made.patches() == 1

        made.leads = True
        made.publisher.look_at_all()
        await made.shows("n1", **TWO)
        await made.shows("n2", **ONE)


async def test_a_sweep_finds_what_no_event_told(world: World) -> None:
    world.node("n1", 1)
    async with publishing(world, sweep_interval=0.05) as made:
        made.leads = False
        await made.quiet()
        made.leads = True
        await made.shows("n1", **ONE)


@pytest.mark.parametrize(
    "fault", [{"status": 500}, {"status": 403}, {"status": 429, "retry_after": 1}, {"drop": "after"}]
)
async def test_a_failed_write_is_tried_again_and_does_not_hold_up_the_others(
    world: World, fault: dict[str, Any]
) -> None:
    world.node("n1", 1)
    world.node("n2", 1)
    world.api.faults.add("patch", f"{NODES}/n1/status", **fault)
    async with publishing(world, concurrency=1 if "retry_after" not in fault else 2) as made:
        await made.shows("n2", **ONE)
        await made.shows("n1", **ONE)
        assert made.publisher.failed == (0 if fault.get("status") == 429 else 1)
        await made.quiet()
        assert not made.publisher._backoffs


async def test_a_node_that_goes_away_in_the_middle_is_forgotten(world: World) -> None:
    world.node("n1", 1)
    world.api.faults.add("patch", f"{NODES}/n1/status", status=404)
    async with publishing(world) as made:
        await until(lambda: made.patches() >= 1, "a write that comes too late")
        world.api.delete(f"{NODES}/n1")
        await made.quiet()
        assert made.publisher.failed == 0


async def test_no_more_writes_at_once_than_allowed(world: World) -> None:
    for i in range(20):
        world.node(f"n{i}", 1)
    world.api.faults.add("patch", f"{NODES}/*/status", times=None, delay=0.02)
    running = most = 0
    async with publishing(world, concurrency=3) as made:
        patch = world.client.merge_patch

        async def counted(path: str, body: object, *, timeout: float = 10.0) -> bytes:  # noqa: ASYNC109
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                return await patch(path, body, timeout=timeout)
            finally:
                running -= 1

        world.client.merge_patch = counted  # type: ignore[method-assign]
        await until(lambda: made.publisher.written == 20, "all nodes written")
    assert most == 3


async def test_nothing_is_published_from_a_ledger_that_is_not_believed(world: World) -> None:
    world.node("n1", 1)
    async with publishing(world, sweep_interval=0.02) as made:
        await made.shows("n1", **ONE)
        world.engine.state._stale_after = -1.0
        world.inventory("n1", [device("n1", 0, memory=28)])
        await world.seen()
        await until(lambda: "n1" in made.publisher._resting, "the node waits")
        assert made.patches() == 1
