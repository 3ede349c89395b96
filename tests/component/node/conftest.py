"""A node: the real daemon on real sockets, a fake kubelet, an API server in memory over HTTP."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hamipy.core.codec import encode_allocation
from hamipy.core.model import Allocation, Device, Share
from hamipy.core.names import ALLOCATION, KUBELET_RESOURCE
from hamipy.node.daemon import Daemon
from hamipy.node.settings import NodeSettings
from hamipy.testing.apiserver import InMemoryApiServer
from hamipy.testing.kubelet import FakeKubelet

GIB = 2**30
NODE = "n1"


def container(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """A container that asks for devices."""
    return {"name": name, "resources": {"limits": {KUBELET_RESOURCE: str(count)}}, **more}


class Node:
    """Everything of one node, with the words the tests are written in."""

    def __init__(self, directory: Path, api: InMemoryApiServer) -> None:
        self.directory, self.api = directory, api
        self.kubelet = FakeKubelet(directory / "k", directory / "cdi")
        self.daemon: Daemon
        self._task: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "c", "cluster": {"server": api.url}}],
                    "users": [{"name": "u", "user": {}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "c",
                }
            )
        )
        self.add_node_object()

    def add_node_object(self) -> None:
        """What a kubelet does when its Node is missing."""
        self.api.create("/api/v1/nodes", {"metadata": {"name": NODE}})

    def settings(self, **changes: Any) -> NodeSettings:
        defaults: dict[str, Any] = {
            "node_name": NODE,
            "kubeconfig": str(self.kubeconfig),
            "mock_profile": "t4x2",
            "vendors": ("mock",),
            "kubelet_dir": self.directory / "k",
            "cdi_dir": self.directory / "cdi",
            "state_dir": self.directory / "s",
            "health_port": -1,
            "drain_limit": 0.0,
            "clean_interval": 0.05,
            "discovery_interval": 0.2,
        }
        return NodeSettings(**(defaults | changes))

    async def start(self, **changes: Any) -> None:
        """Start the daemon and wait until it is listed and published."""
        self.start_daemon(**changes)
        await self.kubelet.wait_for(lambda: self.kubelet.registered and self.kubelet.capacity)
        await self.until(lambda: self.serving)

    def start_daemon(self, **changes: Any) -> None:
        self._stopped = asyncio.Event()
        self.daemon = Daemon(self.settings(**changes))
        self._task = asyncio.create_task(self.daemon.run(self._stopped))

    async def stop(self) -> None:
        """Stop the daemon as SIGTERM does."""
        if self._task is not None:
            self._stopped.set()
            task, self._task = self._task, None
            await task

    async def restart(self, **changes: Any) -> None:
        await self.stop()
        await self.start(**changes)

    async def until(self, condition: Callable[[], object], limit: float = 10.0) -> None:
        """Wait for something that the daemon does by itself."""
        async with asyncio.timeout(limit):
            while not condition():
                await asyncio.sleep(0.01)
                if self._task is not None and self._task.done():
                    self._task.result()

    @property
    def object(self) -> dict[str, Any] | None:
        """The NodeDevices object."""
        found = self.api.list("/apis/hamipy.io/v1alpha1/nodedevices")
        return dict(found[0]) if found else None

    @property
    def serving(self) -> bool:
        return bool(self.object and self.object["spec"]["serving"])

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.daemon.discovery.inventory.devices

    def share(self, index: int = 0, gib: int = 2, cores: int = 0) -> Share:
        """Part of the device with this index."""
        return Share(self.devices[index].id, gib * GIB, cores)

    def bind(
        self,
        name: str,
        shares: dict[str, tuple[Share, ...]] | None,
        *,
        init: tuple[dict[str, Any], ...] = (),
        containers: tuple[dict[str, Any], ...] | None = None,
        annotation: str | None = None,
        node: str = NODE,
        created: str | None = None,
    ) -> dict[str, Any]:
        """Put a pod into the API server as it is after its Binding."""
        if annotation is None and shares is not None:
            annotation = encode_allocation(Allocation(shares))
        names = {c["name"] for c in init}
        if containers is None:
            containers = tuple(container(c, len(s)) for c, s in (shares or {}).items() if c not in names)
        metadata: dict[str, Any] = {"name": name, "namespace": "default"}
        if annotation is not None:
            metadata["annotations"] = {ALLOCATION: annotation}
        if created is not None:
            metadata["creationTimestamp"] = created
        spec = {"nodeName": node, "initContainers": list(init), "containers": list(containers)}
        return dict(
            self.api.create(
                "/api/v1/namespaces/default/pods",
                {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}},
            )
        )

    def gone(self, pod: dict[str, Any]) -> None:
        """The pod has ended and left both kubelet and API server."""
        self.kubelet.finish(pod["metadata"]["uid"])
        self.api.delete(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")

    def events(self) -> list[str]:
        return [e["message"] for e in self.api.list("/api/v1/namespaces/default/events")]

    def specs(self) -> list[str]:
        return sorted(p.name for p in (self.directory / "cdi").iterdir())


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, for a unix socket's path has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="hp-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
async def node(directory: Path) -> AsyncIterator[Node]:
    """A node with its kubelet running and the daemon not started yet."""
    async with InMemoryApiServer() as api:
        node = Node(directory, api)
        async with node.kubelet:
            try:
                yield node
            finally:
                await node.stop()
