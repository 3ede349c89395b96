"""A whole small cluster in one process tree, without Kubernetes: for demonstrations and end-to-end tests.

The API server (in memory, over HTTP), kubelets and kube-scheduler are stand-ins that keep the real contracts; webhook,
extender, publisher and node daemons are the real ones, over HTTPS, HTTP and gRPC, each daemon a process of its own.
"""

import asyncio
import contextlib
import ssl
import sys
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from hamipy.core.names import KUBELET_RESOURCE
from hamipy.kube.client import KubeClient
from hamipy.scheduler import service
from hamipy.scheduler.settings import SchedulerSettings
from hamipy.testing.apiserver import InMemoryApiServer
from hamipy.testing.kubelet import FakeKubelet
from hamipy.testing.kubescheduler import MiniKubeScheduler
from hamipy.testing.runtime import StartedContainer

_NAMESPACE = "hamipy-system"
_WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hamipy"
_LIMIT = 15.0


class MiniCluster:
    """Nodes with mock devices, and everything that gives their shares to pods. An async context manager.

    Args:
        directory: for the files of all nodes; short, for it holds unix sockets.
        profiles: node name -> profile of the mock vendor.

    Attributes:
        api, client: the API server and a client of it.
        kubelets: by node name.
        scheduler: drives the extender as kube-scheduler does.
    """

    def __init__(self, directory: Path, profiles: Mapping[str, str]) -> None:
        self.directory, self.profiles = directory, dict(profiles)
        self.api = InMemoryApiServer()
        self.kubelets: dict[str, FakeKubelet] = {}
        self._stack = contextlib.AsyncExitStack()
        self._stop = asyncio.Event()
        self._ports: asyncio.Future[service.Ports] = asyncio.Future()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        await self._stack.enter_async_context(self.api)
        self.client = await self._stack.enter_async_context(KubeClient(self.api.config()))
        self.api.create(_WEBHOOK.rpartition("/")[0], _webhook_configuration())
        await self._start_scheduler()
        ports = await self._ports
        self.scheduler = MiniKubeScheduler(self.client, f"http://127.0.0.1:{ports.extender}")
        await self._connect_webhook(ports.webhook)
        await asyncio.gather(*(self._start_node(name, profile) for name, profile in self.profiles.items()))
        await self._until(self._published)

    async def _start_scheduler(self) -> None:
        settings = SchedulerSettings(extender_port=0, webhook_port=0, metrics_port=0, no_leadership=True)
        running = asyncio.create_task(
            service.run(settings, config=self.api.config(), started=self._ports.set_result, stop=self._stop)
        )

        async def stop() -> None:
            self._stop.set()
            await running

        self._stack.push_async_callback(stop)
        started: set[asyncio.Future[Any]] = {running, self._ports}
        await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()

    async def _connect_webhook(self, port: int) -> None:
        def bundle() -> str | None:
            client: str | None = self.api.get(_WEBHOOK)["webhooks"][0]["clientConfig"].get("caBundle")
            return client

        await self._until(bundle)
        trust = ssl.create_default_context(cadata=b64decode(bundle() or "").decode())
        session = await self._stack.enter_async_context(aiohttp.ClientSession())

        async def ask(review: Mapping[str, Any]) -> dict[str, Any]:
            answer = await session.post(
                f"https://127.0.0.1:{port}/mutate",
                data=msgspec.json.encode(review),
                headers={"Content-Type": "application/json"},
                ssl=trust,
                server_hostname=f"hamipy-webhook.{_NAMESPACE}.svc",
            )
            decoded: dict[str, Any] = msgspec.json.decode(await answer.read())
            return decoded

        self.api.admission = ask

    async def _start_node(self, name: str, profile: str) -> None:
        home = self.directory / name
        for part in ("kubelet", "cdi", "state"):
            (home / part).mkdir(parents=True)
        self.api.create("/api/v1/nodes", {"metadata": {"name": name}, "status": {"capacity": {}, "allocatable": {}}})
        kubelet = FakeKubelet(home / "kubelet", home / "cdi")
        self.kubelets[name] = await self._stack.enter_async_context(kubelet)
        kubeconfig = home / "kubeconfig"
        kubeconfig.write_text(
            msgspec.json.encode(
                {
                    "clusters": [{"name": "c", "cluster": {"server": self.api.url}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {"token": name}}],
                    "current-context": "x",
                }
            ).decode()
        )
        flags = {
            "kubeconfig": kubeconfig,
            "node-name": name,
            "mock-profile": profile,
            "vendors": "mock",
            "kubelet-dir": home / "kubelet",
            "cdi-dir": home / "cdi",
            "state-dir": home / "state",
            "health-port": -1,
        }
        with (home / "daemon.log").open("wb") as log:
            daemon = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hamipy", "node"),
                *(f"--{flag}={value}" for flag, value in flags.items()),
                stdout=log,
                stderr=log,
            )
        self._stack.push_async_callback(_end, daemon)
        try:
            await kubelet.wait_for_devices(limit=_LIMIT)
        except TimeoutError:
            raise RuntimeError(f"node {name} offers no devices: {(home / 'daemon.log').read_text()[-2000:]}") from None
        follower = asyncio.create_task(self._report_status(name))
        self._stack.push_async_callback(_cancel, follower)

    async def _report_status(self, name: str) -> None:
        """What a kubelet does at its status update: its device plugin's resource, and capacity into allocatable."""
        kubelet = self.kubelets[name]

        def counts() -> tuple[int, int]:
            return kubelet.capacity, kubelet.allocatable

        while True:
            told = counts()
            capacity, allocatable = ({KUBELET_RESOURCE: str(count)} for count in told)
            self.api.patch(f"/api/v1/nodes/{name}", {"status": {"capacity": capacity, "allocatable": allocatable}})
            await kubelet.wait_for(lambda told=told: counts() != told, limit=3600)  # type: ignore[misc]

    def _published(self) -> bool:
        """Whether the nodes' inventories and names have reached the API server."""
        return all(
            "hamipy.io/memory" in self.api.get(f"/api/v1/nodes/{name}")["status"]["capacity"] for name in self.profiles
        )

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(_LIMIT):
            while not condition():  # noqa: ASYNC110 - the server's store has no event for what is waited for
                await asyncio.sleep(0.02)

    async def run_pod(self, manifest: Mapping[str, Any]) -> tuple[str, dict[str, StartedContainer]]:
        """Create, schedule and start a pod; answers its node and its containers as they see themselves.

        Raises:
            Invalid: the webhook or the API server refused it.
            Unschedulable: it stays pending; it is left in the API.
        """
        namespace = manifest["metadata"].get("namespace", "default")
        path = f"/api/v1/namespaces/{namespace}/pods"
        await self.client.create(path, manifest)
        name = manifest["metadata"]["name"]
        node = await self.scheduler.schedule(namespace, name)
        containers = await self.kubelets[node].run_pod(self.api.get(f"{path}/{name}"))
        self.api.patch(f"{path}/{name}", {"status": {"phase": "Running"}})
        return node, containers


def _webhook_configuration() -> dict[str, Any]:
    """What the chart installs: the active scheduler fills in whom to trust and which pods to send."""
    service_ = {"name": "hamipy-webhook", "namespace": _NAMESPACE, "path": "/mutate"}
    webhook = {"name": "pods.hamipy.io", "clientConfig": {"service": service_}}
    return {"metadata": {"name": "hamipy"}, "webhooks": [webhook]}


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
