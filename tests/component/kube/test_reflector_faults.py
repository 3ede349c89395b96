"""A reflector under any mixture of changes and faults."""

import asyncio
import random
from typing import Any

import pytest

from hamipy.kube.client import KubeClient
from hamipy.testing.apiserver import InMemoryApiServer

from .conftest import PODS, Seen, eventually, pod, running

IN_DEFAULT = "/api/v1/namespaces/default/pods"


def truth(api: InMemoryApiServer) -> dict[str, str]:
    return {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in api.list(PODS)}


@pytest.mark.parametrize("seed", range(5))
async def test_after_any_mixture_of_changes_and_faults_the_handler_has_the_truth(seed: int) -> None:
    chance = random.Random(seed)
    async with InMemoryApiServer(bookmark_every=0.01) as api, KubeClient(api.config()) as client:
        seen, names = Seen(), [f"p{i}" for i in range(12)]

        def change() -> None:
            name = chance.choice(names)
            here = {p["metadata"]["name"] for p in api.list(PODS)}
            if name not in here:
                api.create(IN_DEFAULT, pod(name))
            elif chance.random() < 0.4:
                api.delete(f"{IN_DEFAULT}/{name}")
            else:
                api.patch(f"{IN_DEFAULT}/{name}", {"metadata": {"labels": {"n": str(chance.random())}}})

        faults: list[Any] = [
            lambda: api.cut_watches(),
            lambda: api.cut_watches(in_next_event=True),
            lambda: api.end_watches(),
            lambda: api.fail_watches(code=410),
            lambda: api.fail_watches(code=500),
            lambda: api.compact(),
            lambda: api.faults.add("list", status=chance.choice([410, 429, 500, 503])),
            lambda: api.faults.add("list", query={"continue": "*"}, status=410),
            lambda: api.faults.add("watch", status=chance.choice([403, 410, 429, 500, 504])),
            lambda: api.faults.add("watch", drop="before"),
            lambda: api.faults.add("watch", close=True),
        ]
        async with running(client, seen, page_size=5, synced=False) as reflector:
            for _ in range(150):
                change()
                if chance.random() < 0.3:
                    chance.choice(faults)()
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.01)
            api.faults.clear()
            await eventually(lambda: seen.now == truth(api))
            await reflector.relist()
            assert seen.now == truth(api)
