"""Everything at once, at random: no share is given out twice, nothing leaks, a restart changes nothing."""

import asyncio
import random
from typing import Any

import pytest

from tests.component.scheduler.world import PODS, World, device, until

NODES = ("n1", "n2", "n3")
FAULTS: list[dict[str, Any]] = [
    {"drop": "after"},
    {"drop": "before"},
    {"status": 500},
    {"status": 409},
    {"status": 403},
    {"delay": 0.05},
]


@pytest.mark.parametrize("seed", range(3))
async def test_books_and_truth_agree_whatever_happens(world: World, seed: int) -> None:
    chance = random.Random(seed)
    for name in NODES:
        world.node(name, 2)
    await world.start()
    world.engine.binder.confirm_after = 0.2
    worst: dict[str, int] = {}
    binds: set[asyncio.Task[str]] = set()

    def check() -> None:
        for name, used in world.truth().items():
            worst[name] = max(worst.get(name, 0), used)

    for step in range(150):
        pods = world.api.list(PODS)
        pending = [p for p in pods if not p["spec"].get("nodeName")]
        bound = [p for p in pods if p["spec"].get("nodeName")]
        match chance.choice("cccbbbbbdetfwki"):
            case "c":
                world.pod(f"p{step}", f"{chance.randint(1, 9)}Gi", spec={"priority": chance.randint(0, 3)})
            case "b" if pending:
                binds.add(asyncio.create_task(world.schedule(chance.choice(pending))))
            case "d" if pods:
                world.delete(chance.choice(pods)["metadata"]["name"])
            case "e" if bound:
                world.phase(chance.choice(bound)["metadata"]["name"], chance.choice(["Succeeded", "Failed"]))
            case "t" if bound:
                path = f"{PODS}/{chance.choice(bound)['metadata']['name']}"
                world.api.patch(path, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
            case "f":
                world.api.faults.add(chance.choice(["create", "get", "patch"]), "*/pods/*", **chance.choice(FAULTS))
            case "w":
                world.api.cut_watches(in_next_event=chance.random() < 0.5)
            case "k":
                world.api.compact()
                world.api.cut_watches()
            case "i":
                name = chance.choice(NODES)
                sick = [device(name, i, healthy=chance.random() < 0.8) for i in range(2)]
                world.inventory(name, sick, serving=chance.random() < 0.9)
        check()
        await asyncio.sleep(chance.random() / 200)
    await asyncio.gather(*binds)
    world.api.faults.clear()
    await world.engine.state.relist_pods()
    await until(lambda: not world.engine.binder.unconfirmed, "all Bindings confirmed, or their pods known to be gone")
    await world.seen()
    check()
    assert max(worst.values()) <= 14
    truth = world.truth()
    for name in NODES:
        assert world.free(name) == [14 - truth.get(f"{name}-{i}", 0) for i in range(2)]
    before = world.books()
    await world.restart()
    assert world.books() == before
