"""The in-memory API server, a client of it, and a handler that remembers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hamipy.kube.backoff import Backoff
from hamipy.kube.client import KubeClient
from hamipy.kube.objects import Pod
from hamipy.kube.reflector import Reflector
from hamipy.testing.apiserver import InMemoryApiServer

PODS = "/api/v1/pods"


async def eventually(condition: Callable[[], object], *, within: float = 10.0) -> None:
    """Wait until a condition holds; fail after `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not condition():
        assert loop.time() < deadline, "did not happen in time"
        await asyncio.sleep(0.005)


class Seen:
    """A handler that keeps what it is told: version by pod name, and the calls in order."""

    def __init__(self) -> None:
        self.now: dict[str, str] = {}
        self.calls: list[tuple[str, object]] = []

    def replace(self, items: list[Pod]) -> None:
        self.now = {p.metadata.name: p.metadata.resource_version for p in items}
        self.calls.append(("replace", sorted(self.now)))

    def upsert(self, item: Pod) -> None:
        self.now[item.metadata.name] = item.metadata.resource_version
        self.calls.append(("upsert", item.metadata.name))

    def remove(self, item: Pod) -> None:
        del self.now[item.metadata.name]
        self.calls.append(("remove", item.metadata.name))


class CountingBackoff(Backoff):
    """Short delays, and how many were asked for."""

    def __init__(self) -> None:
        super().__init__(base=0.01, cap=0.02)
        self.waits = 0

    def next(self) -> float:
        self.waits += 1
        return super().next()


@asynccontextmanager
async def running(
    client: KubeClient, seen: Any, *, synced: bool = True, **options: Any
) -> AsyncIterator[Reflector[Pod]]:
    """A reflector on pods with short delays, running."""
    options = {"backoff": CountingBackoff(), "name": "pods", **options}
    reflector: Reflector[Pod] = Reflector(client, PODS, Pod, seen, **options)
    task = asyncio.create_task(reflector.run())
    try:
        if synced:
            await reflector.wait_synced()
            await eventually(lambda: reflector.watching or task.done())
        yield reflector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def pod(name: str, **spec: object) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main"}], **spec},
    }


@pytest.fixture
async def api() -> AsyncIterator[InMemoryApiServer]:
    async with InMemoryApiServer() as server:
        yield server


@pytest.fixture
async def client(api: InMemoryApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(api.config()) as made:
        yield made
