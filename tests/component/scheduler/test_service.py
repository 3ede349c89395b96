"""The whole scheduler process, over HTTP and TLS, with signals."""

import asyncio
import base64
import contextlib
import io
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from hamipy.scheduler.service import Ports, ServiceFailed, run
from hamipy.scheduler.settings import SchedulerSettings
from hamipy.testing.apiserver import InMemoryApiServer
from tests.component.scheduler.world import PODS, World, until

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CONFIGURATION = f"{CONFIGURATIONS}/hamipy"
HOST = "hamipy-webhook.hamipy-system.svc"
SETTINGS = SchedulerSettings(no_leadership=True, extender_port=0, webhook_port=0, metrics_port=0)


class Service:
    """A running scheduler and a client."""

    def __init__(self, task: "asyncio.Task[None]", stop: asyncio.Event, ports: Ports, world: World) -> None:
        self.task, self.stop, self.ports, self.world = task, stop, ports, world
        self.session = aiohttp.ClientSession()

    async def get(self, path: str, *, port: int | None = None) -> tuple[int, str]:
        async with self.session.get(f"http://127.0.0.1:{port or self.ports.metrics}{path}") as answer:
            return answer.status, (await answer.text()).strip()

    async def ask(self, verb: str, body: Any) -> tuple[int, Any]:
        data = io.BytesIO(body if isinstance(body, bytes) else msgspec.json.encode(body))
        async with self.session.post(f"http://127.0.0.1:{self.ports.extender}/{verb}", data=data) as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def ready(self, part: str) -> None:
        async with asyncio.timeout(10):
            while (await self.get(f"/readyz/{part}"))[0] != 200:  # noqa: ASYNC110 - asks over HTTP
                await asyncio.sleep(0.01)

    def trust(self) -> ssl.SSLContext:
        """What an API server trusts: the bundle in the configuration."""
        bundle = self.world.api.get(CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"]
        return ssl.create_default_context(cadata=base64.b64decode(bundle).decode())


@contextlib.asynccontextmanager
async def service(world: World, settings: SchedulerSettings = SETTINGS) -> AsyncIterator[Service]:
    world.api.create(
        CONFIGURATIONS,
        {"metadata": {"name": "hamipy"}, "webhooks": [{"name": "pods.hamipy.io", "clientConfig": {"service": {}}}]},
    )
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run(settings, config=world.api.config(), started=started.set_result, stop=stop))
    await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    made = Service(task, stop, started.result(), world)
    try:
        yield made
    finally:
        await made.session.close()
        stop.set()
        await asyncio.wait({task})


async def test_a_pod_goes_through_webhook_filter_and_bind(world: World) -> None:
    world.node("n1", 1)
    pod = world.pod("a", "8Gi")
    async with service(world) as scheduler:
        await scheduler.ready("extender")
        await scheduler.ready("webhook")
        await until(lambda: "caBundle" in world.api.get(CONFIGURATION)["webhooks"][0]["clientConfig"], "a bundle")

        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "1", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": pod},
        }
        async with scheduler.session.post(
            f"https://127.0.0.1:{scheduler.ports.webhook}/mutate",
            json=review,
            ssl=scheduler.trust(),
            server_hostname=HOST,
        ) as answer:
            assert (await answer.json())["response"]["allowed"]
        names = {"Pod": pod, "NodeNames": ["n1", "nowhere"]}
        status, filtered = await scheduler.ask("filter", names)
        assert (status, filtered["NodeNames"]) == (200, ["n1"])
        meta = pod["metadata"]
        binding = {"PodName": "a", "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n1"}
        assert await scheduler.ask("bind", binding) == (200, {"Error": ""})

        assert world.read("a")["spec"]["nodeName"] == "n1"
        await until(lambda: "hamipy.io/memory" in world.api.get("/api/v1/nodes/n1")["status"]["capacity"], "names")
        _, ledger = await scheduler.get("/inspect")
        assert msgspec.json.decode(ledger)["nodes"][0]["devices"][0]["memory"]["allocated"] == 8 * 2**30
        _, metrics = await scheduler.get("/metrics")
        for line in (
            'hamipy_binds_total{outcome="bound"} 1.0',
            'hamipy_webhook_reviews_total{outcome="completed"} 1.0',
            'hamipy_api_writes_total{request="create pods/binding"} 1.0',
            "hamipy_published_total 1.0",
            "hamipy_leader 1.0",
            'hamipy_reflector_lists_total{collection="pods"} 1.0',
            'hamipy_device_memory_allocated_bytes{node="n1",device="n1-0",vendor="mock",model="T4"} 8589934592',
        ):
            assert line in metrics.splitlines()


async def test_each_part_has_its_own_readiness(world: World) -> None:
    world.api.faults.add("list", "/api/v1/pods", times=None, status=500)
    async with service(world) as scheduler:
        await scheduler.ready("webhook")
        assert await scheduler.get("/healthz") == (200, "ok")
        status, sentence = await scheduler.get("/readyz/extender")
        assert status == 503
        assert sentence.startswith("extender: not yet listed: ")
        assert "pods" in sentence
        assert (await scheduler.get("/readyz", port=scheduler.ports.extender))[0] == 503
        assert (await scheduler.ask("filter", {"Pod": world.pod("a"), "NodeNames": []}))[1]["Error"]

        world.api.faults.clear()
        await scheduler.ready("extender")

    world.api.faults.add("*", "/api/v1/namespaces/hamipy-system/secrets/*", times=None, status=500)
    world.api.delete("/api/v1/namespaces/hamipy-system/secrets/hamipy-webhook-tls")
    world.api.delete(CONFIGURATION)
    async with service(world) as scheduler:
        await scheduler.ready("extender")
        assert await scheduler.get("/readyz/webhook") == (
            503,
            "webhook: there is no certificate yet, or it has expired",
        )


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [
        ("filter", b'{"Pod": {"metadata"', 200),
        ("filter", b"not json", 200),
        ("prioritize", b"[]", 400),
        ("preempt", b"", 400),
        ("bind", b"{}", 200),
        ("bind", b" " * (16 * 2**20 + 1), 413),
        ("filter", b" " * (16 * 2**20 + 1), 413),
    ],
)
async def test_bodies_that_make_no_sense_are_answered_with_one_sentence(
    world: World, verb: str, body: bytes, status: int
) -> None:
    async with service(world) as scheduler:
        await scheduler.ready("extender")

        answered, answer = await scheduler.ask(verb, body)

        assert answered == status
        sentence = answer.get("Error") or answer.get("error")
        assert sentence
        assert "\n" not in sentence


async def test_the_extender_listens_on_this_machine_only(world: World) -> None:
    async with service(world) as scheduler:
        with socket.socket(socket.AF_INET6) as other, pytest.raises(OSError, match=r"refused|assign"):
            other.connect(("::1", scheduler.ports.extender))
        with socket.create_connection(("127.0.0.1", scheduler.ports.extender)):
            pass
        if socket.has_dualstack_ipv6():
            with socket.create_connection(("::1", scheduler.ports.metrics)):
                pass


async def test_told_to_stop_it_finishes_the_bind_under_way(world: World) -> None:
    world.node("n1", 1)
    pod = world.pod("a", "8Gi")
    world.api.faults.add("create", f"{PODS}/a/binding", delay=0.3)
    async with service(world) as scheduler:
        await scheduler.ready("extender")
        binding = {"PodName": "a", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n1"}
        asked = asyncio.create_task(scheduler.ask("bind", binding))
        await until(lambda: world.sent("create", "/binding") == 1, "the Binding is on its way")

        scheduler.stop.set()

        assert await asked == (200, {"Error": ""})
        await scheduler.task
        assert world.read("a")["spec"]["nodeName"] == "n1"
        with pytest.raises(aiohttp.ClientConnectorError):
            await scheduler.get("/healthz")


async def test_idle_connections_do_not_hold_up_the_stop(world: World) -> None:
    async with service(world) as scheduler:
        for _ in range(3):
            await scheduler.get("/healthz")
        with socket.create_connection(("127.0.0.1", scheduler.ports.extender)):
            scheduler.stop.set()
            async with asyncio.timeout(5):
                await scheduler.task


async def test_a_part_that_fails_stops_the_process_with_one_sentence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("hamipy.scheduler.publisher.Publisher.run", broken)
    with pytest.raises(ServiceFailed, match=r"^publisher: ValueError: a bug$"):
        async with service(world) as scheduler:
            await scheduler.task


async def test_a_port_that_is_taken_is_named(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = msgspec.structs.replace(SETTINGS, extender_port=port)
        with pytest.raises(ServiceFailed, match=rf"^extender-port: {port}: cannot listen: Address already in use$"):
            await run(settings, config=world.api.config())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_command_in_order(tmp_path: Any, number: signal.Signals) -> None:
    async with InMemoryApiServer() as api:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": api.url}}],
                    "users": [{"name": "u", "user": {}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        ports = ("--extender-port=0", "--webhook-port=0", "--metrics-port=0")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hamipy", "scheduler", "--no-leadership", f"--kubeconfig={kubeconfig}", *ports,
            stderr=asyncio.subprocess.PIPE, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"serving: extender on" not in (line := await process.stderr.readline()):
                assert line, "it ended before it served"
            process.send_signal(number)
            rest = await process.stderr.read()
            assert await process.wait() == 0
        assert b"stopped" in rest
        assert b"Traceback" not in rest


async def test_a_replica_that_does_not_lead_publishes_and_configures_nothing(world: World) -> None:
    world.node("n1", 1)
    settings = msgspec.structs.replace(SETTINGS, no_leadership=False, pod_name="me")
    async with service(world, settings) as scheduler:
        await scheduler.ready("extender")
        await scheduler.ready("webhook")
        pod = world.pod("a", "8Gi")
        binding = {"PodName": "a", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n1"}

        _, answer = await scheduler.ask("bind", binding)

        assert "does not lead" in answer["Error"]
        assert world.sent("patch", "/status") == 0
        assert "caBundle" not in world.api.get(CONFIGURATION)["webhooks"][0]["clientConfig"]
        assert "hamipy_leader 0.0" in (await scheduler.get("/metrics"))[1].splitlines()
