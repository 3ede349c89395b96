"""Composes the node daemon; `run` is its life from start to SIGTERM.

Order at start: what is known from disk -> registered with the kubelet -> API server. The kubelet must not wait, for
while nobody has registered it fails pods for good; the API server can.
"""

import asyncio
import logging
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hamipy.core import registry
from hamipy.core.codec import ALLOCATION_VERSION
from hamipy.core.errors import HamipyError
from hamipy.core.model import Device, Inventory
from hamipy.core.vendor import VendorContext
from hamipy.node import memory
from hamipy.node.advertise import Table, advertised
from hamipy.node.cdi import Specs
from hamipy.node.checkpoint import FILE as CHECKPOINT_FILE
from hamipy.node.checkpoint import Checkpoint, CheckpointUnreadable
from hamipy.node.cleaner import Cleaner
from hamipy.node.discovery import Discovery
from hamipy.node.grants import Grants
from hamipy.node.health import Answer, HealthServer
from hamipy.node.metrics import Metrics
from hamipy.node.plugin import DevicePlugin, Endpoint, Streams
from hamipy.node.podresources import PodResources
from hamipy.node.pods import PodRecord, PodView
from hamipy.node.registration import Registrar
from hamipy.node.settings import NodeSettings
from hamipy.node.starter import Starter
from hamipy.node.steering import Steering
from hamipy.node.waiting import happened

if TYPE_CHECKING:
    from hamipy.kube.client import KubeClient
    from hamipy.kube.config import ClusterConfig
    from hamipy.node.api import Api

logger = logging.getLogger(__name__)

_FIRST_ANSWER = 1.0
"""Seconds to wait for the vendors before registering, when nothing is cached."""
_TICK = 2.0
"""Seconds after which the advertised ids are computed again although nothing was heard."""
_TRIM = 60.0
"""Seconds between two times that freed memory is given back (some milliseconds)."""
_SETTLE = 1.0
"""Seconds that a stopping daemon gives binds which were under way when it said that it no longer serves."""


class NodeUnusable(HamipyError):
    """The daemon cannot work here; the text says what is missing."""


class Daemon:
    """The parts of the daemon and how they hear of each other."""

    def __init__(self, settings: NodeSettings) -> None:
        self.settings = settings
        try:
            settings.state_dir.mkdir(parents=True, exist_ok=True)
            settings.plugin_dir.mkdir(parents=True, exist_ok=True)
            boot = settings.boot_id_file.read_text().strip()
            specs = Specs(settings.cdi_dir)
            self.grants = Grants(settings.state_dir, boot)
        except OSError as error:
            raise NodeUnusable(f"{error.filename}: {error.strerror}; the daemon needs it") from error
        self.metrics = Metrics()
        found = registry.load(self._vendor_context, only=settings.only_vendors)
        self.discovery = Discovery(
            found.vendors,
            found.problems,
            node=settings.node_name,
            state=settings.state_dir,
            boot=boot,
            limit=settings.discovery_limit,
            interval=settings.discovery_interval,
            changed=self._inventory_changed,
            metrics=self.metrics,
        )
        self.pods = PodView()
        self.checkpoint = Checkpoint(settings.plugin_dir)
        self.table = Table()
        self.streams = Streams(self._streams_changed, lambda began: self.registrar.stream_ended(began))
        self._draining = False
        self._refused: dict[str, str] = {}
        self._in_use: dict[str, str] = {i: g.uid for g in self.grants if g.boot == boot for i in g.ids}
        steering = Steering(self.pods, self.checkpoint.read, self.metrics)
        vendors, workers = self.discovery.vendors, self.discovery.workers
        self.starter = Starter(
            node=settings.node_name,
            boot=boot,
            checkpoint=self.checkpoint,
            podresources=PodResources(settings.kubelet_dir),
            pods=self.pods,
            devices=self._devices,
            refresh=self._refresh,
            report=self._report,
            grants=self.grants,
            specs=specs,
            vendors=vendors,
            workers=workers,
            metrics=self.metrics,
        )
        self.endpoint = Endpoint(
            settings.plugin_dir,
            lambda: DevicePlugin(
                self.table, self.streams, steering.prefer, self.starter.start, self.metrics, self.starter.allocated
            ),
        )
        self.registrar = Registrar(settings.plugin_dir, self.endpoint, self.streams, self.metrics, self._appeared)
        self.cleaner = Cleaner(self.checkpoint, self.pods, self.grants, specs, vendors, workers, self.metrics)
        self.health = HealthServer(
            {"/healthz": lambda: (200, "ok\n"), "/readyz": self._ready, "/metrics": self._metrics}
        )
        self._api_ready = asyncio.Event()
        self._api: Api | None = None

    async def run(self, stopped: asyncio.Event) -> None:
        """Serve until `stopped` is set, then drain and leave."""
        settings = self.settings
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, thread_name_prefix="files"))
        tasks = [asyncio.create_task(self.discovery.run(), name="discovery")]
        try:
            if not self.discovery.cached:
                await happened(self.discovery.complete, _FIRST_ANSWER)
            self.refresh_table()
            tasks.append(asyncio.create_task(self.registrar.run(), name="registration"))
            if settings.health_port >= 0:
                try:
                    await self.health.start(settings.health_port)
                except OSError as error:
                    raise NodeUnusable(f"health-port {settings.health_port}: {error.strerror}") from error
            tasks += [
                asyncio.create_task(self._tick(), name="tick"),
                asyncio.create_task(self._with_api(), name="api"),
                asyncio.create_task(self.cleaner.run(settings.clean_interval), name="cleaner"),
            ]
            stop = asyncio.create_task(stopped.wait())
            done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stop}:
                task.result()  # a part that ends, ends the daemon: its pod starts it again
            await self._drain()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.table.close()
            await self.endpoint.close()
            await self.health.close()
            for worker in self.discovery.workers.values():
                worker.close()

    def inventory(self) -> Inventory:
        """What is to be published now."""
        return replace(
            self.discovery.inventory,
            serving=self.streams.listed > 0 and not self._draining,
            allocation_version=ALLOCATION_VERSION,
        )

    def refresh_table(self) -> None:
        """Compute the advertised ids anew from devices, checkpoint and pods."""
        contact = self._api.contact if self._api is not None else float("-inf")
        try:
            self._in_use = self.checkpoint.read().ids
        except CheckpointUnreadable as error:
            logger.warning("ids in use are taken from memory: %s", error)
        in_use = {i for i, uid in self._in_use.items() if not self.pods.gone(uid, contact)}
        self.table.set(advertised(self.discovery.inventory.devices, in_use))

    def _vendor_context(self, name: str) -> VendorContext:
        state = self.settings.state_dir / "vendors" / name
        state.mkdir(parents=True, exist_ok=True)
        return VendorContext(settings=self.settings.of_vendor(name), state=state, node=self.settings.node_name)

    def _devices(self) -> dict[str, Device]:
        return {d.id: d for d in self.discovery.inventory.devices}

    def _inventory_changed(self) -> None:
        self.refresh_table()
        if self._api is not None:
            self._api.kick()

    def _streams_changed(self) -> None:
        if self._api is not None:
            self._api.kick()

    def _appeared(self, name: str) -> None:
        if name == CHECKPOINT_FILE:
            self.refresh_table()

    async def _tick(self) -> None:
        trim_at = 0.0  # soon after the start, which leaves most to be freed
        while True:
            await asyncio.sleep(_TICK)
            self.refresh_table()
            if time.monotonic() > trim_at:
                trim_at = time.monotonic() + _TRIM
                memory.trim()

    async def _refresh(self) -> bool:
        await happened(self._api_ready, 5.0)
        return self._api is not None and await self._api.refresh()

    def _report(self, pod: PodRecord, message: str) -> None:
        level = logging.DEBUG if self._refused.get(pod.uid) == message else logging.WARNING
        self._refused = {**dict(list(self._refused.items())[-100:]), pod.uid: message}
        logger.log(level, "refused: %s", message)
        if self._api is not None:
            self._api.report(pod, message)

    async def _with_api(self) -> None:
        """Everything that needs the API server; loaded after the registration has had its chance."""
        if not await happened(self.registrar.registered, 0.5):
            logger.info("not registered yet, the kubelet is away")
        config, client_type, api_type = await asyncio.to_thread(_load_kube, self.settings.kubeconfig)
        async with client_type(config, user_agent="hamipy-node") as client:
            api = self._api = api_type(
                client, self.settings.node_name, self.pods, self.inventory, self.refresh_table, self.metrics
            )
            self._api_ready.set()
            await api.run()

    async def _drain(self) -> None:
        """Say that we no longer serve, then let the kubelet admit what is bound here already."""
        self._draining = True
        if self._api is None:
            return
        begin = time.monotonic()
        await self._api.published_within(2.0)
        deadline = begin + self.settings.drain_limit
        settled = time.monotonic() + min(_SETTLE, self.settings.drain_limit)
        while (now := time.monotonic()) < deadline and (now < settled or self._unadmitted()):
            await self.pods.changed(0.1)

    def _unadmitted(self) -> bool:
        """Whether a pod is bound here whose containers have not all got their ids yet."""
        try:
            held = self.checkpoint.read().by_pod
        except CheckpointUnreadable:
            return False
        return any(
            pod.allocation is not None
            and not pod.finished
            and not pod.deleting
            and not pod.allocation.containers.keys() <= held.get(pod.uid, {}).keys()
            for pod in self.pods
        )

    def _ready(self) -> Answer:
        if self._draining:
            return 503, "stopping\n"
        if not self.streams.listed:
            return 503, "the kubelet has not listed our devices\n"
        return 200, "ok\n"

    def _metrics(self) -> Answer:
        devices = self.discovery.inventory.devices
        self.metrics.gauges = {
            "devices": len(devices),
            "devices_healthy": sum(d.healthy for d in devices),
            "listed": float(self.streams.listed > 0),
            "published": float(self._api is not None and self._api.published),
            "pods": sum(1 for _ in self.pods),
            "grants": sum(1 for _ in self.grants),
        }
        return 200, self.metrics.render()


def _load_kube(kubeconfig: str | None) -> "tuple[ClusterConfig, type[KubeClient], type[Api]]":
    from hamipy.kube.client import KubeClient
    from hamipy.kube.config import load_config
    from hamipy.node.api import Api

    return load_config(kubeconfig), KubeClient, Api


async def run(settings: NodeSettings) -> None:
    """Run the node daemon until SIGTERM or SIGINT.

    Raises:
        HamipyError: it cannot work here; the text is one sentence.
    """
    memory.one_heap()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await Daemon(settings).run(stopped)
