"""Only the pod that kube-scheduler's Lease names binds, while the Lease is fresh, and with a list of its own term."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from hamipy.kube.lease import lease_path, leases_path
from hamipy.scheduler.leadership import Leadership
from tests.component.scheduler.world import PODS, World, until


class Scheduler:
    """kube-scheduler's half: somebody who renews the Lease."""

    def __init__(self, world: World) -> None:
        self.world, self.transitions = world, 0
        self.holder = ""
        self._task: asyncio.Task[None] | None = None

    def renew(self) -> None:
        spec = {
            "holderIdentity": self.holder,
            "leaseDurationSeconds": 1,
            "leaseTransitions": self.transitions,
            "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        if self.world.api.list(leases_path("sys")):
            self.world.api.patch(lease_path("sys", "lease"), {"spec": spec})
        else:
            self.world.api.create(leases_path("sys"), {"metadata": {"name": "lease", "namespace": "sys"}, "spec": spec})

    async def _renewing(self) -> None:
        while True:
            self.renew()
            await asyncio.sleep(0.05)

    def lead(self, holder: str) -> None:
        self.pause()
        if holder != self.holder:
            self.holder, self.transitions = holder, self.transitions + 1
        self._task = asyncio.create_task(self._renewing())

    def pause(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()


@pytest.fixture
async def scheduler(world: World) -> AsyncIterator[Scheduler]:
    world.leadership_options = {"lease_duration": 1.0, "renew_deadline": 0.6}
    made = Scheduler(world)
    yield made
    made.pause()


async def shown(world: World, name: str) -> dict[str, Any]:
    pod = world.pod(name)
    await until(lambda: pod["metadata"]["uid"] in world.engine.state.pods, "pod in the watch")
    return pod


async def test_without_a_lease_nothing_is_bound(world: World, scheduler: Scheduler) -> None:
    world.node("n1")
    await world.start()
    assert not world.engine.leadership.is_leader
    assert "held by nobody" in await world.bind(await shown(world, "a"), "n1")
    assert world.sent("create", "/binding") == 0


async def test_the_pod_that_the_lease_names_binds_and_no_other(world: World, scheduler: Scheduler) -> None:
    world.node("n1")
    scheduler.lead("me-2_other")
    await world.start()
    pod = await shown(world, "a")
    assert "held by me-2_other" in await world.bind(pod, "n1")
    scheduler.lead("me_1234")
    await until(lambda: world.engine.leadership.is_leader, "leading")
    assert await world.bind(pod, "n1") == ""


async def test_a_lease_found_at_start_is_not_believed_until_it_is_renewed(world: World, scheduler: Scheduler) -> None:
    scheduler.holder = "me_1234"
    scheduler.renew()
    await world.start()
    lease = world.engine.leadership.reflector
    assert lease is not None
    await lease.wait_synced()
    assert world.engine.leadership.holder == "me_1234"
    assert not world.engine.leadership.is_leader
    scheduler.renew()
    await until(lambda: world.engine.leadership.is_leader, "leading")


async def test_a_lease_that_is_not_renewed_ends_the_lead_by_itself(world: World, scheduler: Scheduler) -> None:
    world.node("n1")
    scheduler.lead("me_1234")
    await world.start()
    leadership = world.engine.leadership
    await until(lambda: leadership.is_leader, "leading")
    scheduler.pause()
    await until(lambda: not leadership.is_leader, "not leading")
    assert "not renewed" in await world.bind(await shown(world, "a"), "n1")
    scheduler.lead("me_1234")
    await until(lambda: leadership.is_leader, "leading again")
    assert leadership.generation == 1  # nobody else can have led meanwhile


async def test_after_a_take_over_the_first_bind_waits_for_a_list_of_the_new_term(
    world: World, scheduler: Scheduler
) -> None:
    """The old leader bound a pod that our watch has not shown; without the list its share were given away twice."""
    world.node("n1")
    scheduler.lead("other_1")
    await world.start()
    pod = await shown(world, "a")
    world.api.faults.add("watch", "/api/v1/pods", times=None, status=500)
    world.api.cut_watches("/api/v1/pods")
    slow = world.api.faults.add("list", "/api/v1/pods", times=None, delay=0.1)
    text = '{"v":1,"containers":{"main":[{"device":"n1-0","memory":13958643712,"cores":0}]}}'
    world.pod("theirs", "13Gi", spec={"nodeName": "n1"}, annotations={"hamipy.io/allocation": text})
    gained: list[bool] = []
    world.engine.leadership.gained.append(lambda: gained.append(True))
    scheduler.lead("me_1")
    await until(lambda: gained, "leading")
    assert "devices were taken" in await world.bind(pod, "n1")
    assert slow.hits >= 1
    assert world.free("n1") == [1]
    assert world.sent("create", "/binding") == 0


async def test_a_bind_that_loses_the_lead_while_it_waits_is_refused(world: World, scheduler: Scheduler) -> None:
    world.node("n1")
    await world.start()
    pod = await shown(world, "a")
    world.api.faults.add("watch", "/api/v1/pods", times=None, status=500)
    world.api.cut_watches("/api/v1/pods")
    slow = world.api.faults.add("list", "/api/v1/pods", times=None, delay=0.5)
    scheduler.lead("me_1")
    await until(lambda: world.engine.leadership.is_leader, "leading")
    bind = asyncio.create_task(world.bind(pod, "n1"))
    await until(lambda: slow.hits, "listing")
    scheduler.lead("other_1")
    await until(lambda: not world.engine.leadership.is_leader, "not leading")
    assert "lost the lead" in await bind
    assert world.sent("create", "/binding") == 0


async def test_two_schedulers_in_turn_never_hand_out_a_share_twice(world: World, scheduler: Scheduler) -> None:
    world.node("n1", 2)
    world.node("n2", 2)
    scheduler.lead("me_1")
    await world.start()
    await until(lambda: world.engine.leadership.is_leader, "leading")
    first = world.engine
    pods = [await shown(world, f"p{i}") for i in range(40)]
    for round_ in range(4):
        world.api.faults.add("create", "*/binding", drop="after", times=2)
        done = await asyncio.gather(*(world.schedule(p) for p in pods[round_ * 10 : round_ * 10 + 10]))
        assert any(done) or round_ > 2
        await world.stop()
        scheduler.lead(f"me_{round_ + 2}")
        await world.start()
        await until(lambda: world.engine.leadership.is_leader, "leading")
        assert max(world.truth().values()) <= 14
    assert world.engine is not first
    await world.seen()
    truth = world.truth()
    for name in ("n1", "n2"):
        assert world.free(name) == [14 - truth.get(f"{name}-{i}", 0) for i in range(2)]
    assert sum(bool(p["spec"].get("nodeName")) for p in world.api.list(PODS)) == 28


async def test_the_bind_deadline_ends_before_another_can_lead() -> None:
    leadership = Leadership(None, namespace="n", lease_name="l", pod_name="p", always=True)  # type: ignore[arg-type]
    assert 0 < leadership.bind_deadline < 3.0 - 2.0
    assert leadership.is_leader
