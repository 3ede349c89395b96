"""A fake kubelet: the device manager of Kubernetes 1.34..1.36 as a device plugin meets it, and a container runtime.

Public, for tests of device plugins and for demonstrations without a cluster. Source of the behaviour:
k8s.io/kubernetes, pkg/kubelet/cm/devicemanager (manager.go, plugin/v1beta1), including what is awkward there: the end
of any stream takes the newest endpoint of the resource down, ids are freed lazily, their order is random, init
containers' ids go on to later containers, and podresources does not list plain init containers.

    async with FakeKubelet(directory, cdi_dir) as kubelet:
        await kubelet.wait_for_devices()
        containers = await kubelet.run_pod(pod_manifest)
        containers["main"].env["HAMIPY_DEVICES"]
"""

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from hamipy.core.names import KUBELET_RESOURCE
from hamipy.node._generated import deviceplugin_v1beta1_pb2 as dp
from hamipy.node._generated import deviceplugin_v1beta1_pb2_grpc as dp_grpc
from hamipy.node._generated import podresources_v1_pb2_grpc as pr_grpc
from hamipy.testing._kubelet_books import Books, Held, KubeletContainer, KubeletPod, PodResources, wipe_sockets
from hamipy.testing.runtime import CreateContainerError, StartedContainer, create

__all__ = ["CreateContainerError", "FakeKubelet", "KubeletContainer", "KubeletPod", "UnexpectedAdmissionError"]

_OPTIONS = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
_RETRY = 0.2
"""Seconds between two attempts to start a container; the kubelet takes about one."""

_Context = grpc.aio.ServicerContext[Any, Any]


class UnexpectedAdmissionError(Exception):
    """The pod is failed for good, as the kubelet does when devices cannot be allocated at admission."""


class _Plugin:
    """One registered endpoint; `stopped` once its stream has ended."""

    def __init__(self, channel: grpc.aio.Channel, stub: Any, options: dp.DevicePluginOptions) -> None:
        self.channel, self.stub, self.options = channel, stub, options
        self.stopped = False
        self.task: asyncio.Task[None] | None = None


class _Registration(dp_grpc.RegistrationServicer):
    def __init__(self, register: Callable[[dp.RegisterRequest, _Context], Any]) -> None:
        self._register = register

    async def Register(self, request: dp.RegisterRequest, context: _Context) -> dp.Empty:  # noqa: N802
        await self._register(request, context)
        return dp.Empty()


class FakeKubelet:
    """See the module.

    Args:
        directory: the kubelet's directory; `device-plugins/` and `pod-resources/` are made below it.
        cdi_dir: where the runtime looks for CDI specs.
        resource: the one device-plugin resource that pods ask for.
        seed: of the random order in which ids are given and sent.

    Attributes:
        healthy, unhealthy: ids as last listed.
        pods: admitted pods that have not finished, by uid.
        registrations: how many were accepted.
        calls: (method, ids) of every call to the plugin, in order.
        seconds: how long each answered call took, by method.
        heeds_preferences: set False for a kubelet that picks other ids than the plugin would like.
    """

    def __init__(self, directory: Path, cdi_dir: Path, *, resource: str = KUBELET_RESOURCE, seed: int = 0) -> None:
        self.plugin_dir, self._resources_dir = directory / "device-plugins", directory / "pod-resources"
        self._cdi_dir, self._resource, self._random = cdi_dir, resource, random.Random(seed)
        self.healthy: set[str] = set()
        self.unhealthy: set[str] = set()
        self.pods: dict[str, KubeletPod] = {}
        self.registrations = 0
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.heeds_preferences = True
        self._running: set[tuple[str, str]] = set()
        self._plugin: _Plugin | None = None
        self._was_registered = False
        self._books = Books(self.plugin_dir, resource)
        self._servers: list[grpc.aio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._channels: list[grpc.aio.Channel] = []
        self._admission = asyncio.Lock()
        self._changed = asyncio.Condition()
        self.podresources = PodResources(resource, lambda: self.pods.values(), self._books, lambda: self.healthy)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin as a new kubelet process: wipe sockets, read the checkpoint, listen; no plugin is known."""
        wipe_sockets(self.plugin_dir)
        self._resources_dir.mkdir(parents=True, exist_ok=True)
        self._books.read()
        self._was_registered = bool(self._books.held)
        self.healthy, self.unhealthy, self._plugin = set(), set(), None
        await self._serve(self._resources_dir, pr_grpc.add_PodResourcesListerServicer_to_server, self.podresources)
        await self._serve(self.plugin_dir, dp_grpc.add_RegistrationServicer_to_server, _Registration(self._accept))

    async def stop(self) -> None:
        """End the process: connections break, containers run on."""
        servers, self._servers = self._servers, []
        await asyncio.gather(*(s.stop(None) for s in servers))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        channels, self._channels = self._channels, []
        for channel in channels:
            await channel.close(None)
        self._plugin = None

    async def restart(self) -> None:
        """Stop and start; running pods are known again, see `readmit`."""
        await self.stop()
        await self.start()

    @property
    def capacity(self) -> int:
        """What the node's status would say for the resource."""
        return len(self.healthy) + len(self.unhealthy)

    @property
    def allocatable(self) -> int:
        """Healthy ids."""
        return len(self.healthy)

    @property
    def registered(self) -> bool:
        """Whether a plugin is registered and its stream is open."""
        return self._plugin is not None and not self._plugin.stopped

    async def wait_for(self, condition: Callable[[], object], limit: float = 10.0) -> None:
        """Return when `condition` holds, asked after each change of devices. Raises TimeoutError."""
        async with asyncio.timeout(limit), self._changed:
            await self._changed.wait_for(condition)

    async def wait_for_devices(self, count: int = 1, limit: float = 10.0) -> None:
        """Return when at least `count` ids are healthy. Raises TimeoutError."""
        await self.wait_for(lambda: self.registered and self.allocatable >= count, limit)

    def pod(self, manifest: dict[str, Any] | KubeletPod) -> KubeletPod:
        """The pod as the kubelet reads it."""
        return manifest if isinstance(manifest, KubeletPod) else KubeletPod.of(manifest, self._resource)

    async def admit(self, manifest: dict[str, Any] | KubeletPod) -> KubeletPod:
        """Admit a pod: allocate for all of its containers in order, one pod at a time.

        Raises:
            UnexpectedAdmissionError: the pod is failed for good.
        """
        pod = self.pod(manifest)
        async with self._admission:
            self.pods[pod.uid] = pod
            try:
                await self._allocate_pod(pod)
            except UnexpectedAdmissionError:
                self.finish(pod.uid)
                raise
        return pod

    async def readmit(self) -> dict[str, str]:
        """Admit all pods again, as after a restart; those that fail are finished. Answers uid -> why it failed."""
        failed = {}
        for pod in list(self.pods.values()):
            try:
                await self.admit(pod)
            except UnexpectedAdmissionError as error:
                failed[pod.uid] = str(error)
        return failed

    async def start_container(self, uid: str, container: str) -> StartedContainer:
        """Start, or restart, one container of an admitted pod, once.

        Raises:
            CreateContainerError: the plugin refused or the runtime cannot; the kubelet would try again.
        """
        spec = next(c for c in self.pods[uid].containers if c.name == container)
        held = self._books.held.get(uid, {}).get(container)
        names: list[str] = []
        if held is not None:
            await self._pre_start(held)
            names = [d.name for d in held.answer.cdi_devices]
        started = create(self._cdi_dir, names, dict(spec.env))
        self._running.add((uid, container))
        return started

    async def start_until(self, uid: str, container: str, limit: float = 10.0) -> StartedContainer:
        """Start a container, again and again for `limit` seconds, as the kubelet does. Raises CreateContainerError."""
        deadline = time.monotonic() + limit
        while True:
            try:
                return await self.start_container(uid, container)
            except CreateContainerError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_RETRY)

    async def run_pod(self, manifest: dict[str, Any] | KubeletPod, limit: float = 10.0) -> dict[str, StartedContainer]:
        """Admit a pod and start all its containers: init containers one after the other, then the others.

        Raises:
            UnexpectedAdmissionError: it is failed for good.
            CreateContainerError: a container does not start within `limit` seconds.
        """
        pod = await self.admit(manifest)
        started = {}
        for container in pod.containers:
            started[container.name] = await self.start_until(pod.uid, container.name, limit)
            if container.init and not container.sidecar:
                self._running.discard((pod.uid, container.name))
        return started

    def finish(self, uid: str) -> None:
        """The pod has ended or was deleted; its ids are freed at the next admission, as the kubelet does."""
        self.pods.pop(uid, None)
        self._running = {(u, c) for u, c in self._running if u != uid}

    def ids_of(self, uid: str, container: str) -> frozenset[str]:
        """The ids that a container holds."""
        return self._books.held[uid][container].ids

    async def _serve(self, directory: Path, add: Callable[[Any, grpc.aio.Server], None], servicer: Any) -> None:
        (directory / "kubelet.sock").unlink(missing_ok=True)
        server = grpc.aio.server()
        add(servicer, server)
        server.add_insecure_port(f"unix:{directory / 'kubelet.sock'}")
        await server.start()
        self._servers.append(server)

    async def _accept(self, request: dp.RegisterRequest, context: _Context) -> None:
        if request.version != "v1beta1":
            await context.abort(grpc.StatusCode.UNKNOWN, f"requested API version {request.version!r} is not supported")
        if request.resource_name != self._resource:
            await context.abort(grpc.StatusCode.UNKNOWN, f"the resource name {request.resource_name!r} is invalid")
        channel = grpc.aio.insecure_channel(f"unix:{self.plugin_dir / request.endpoint}", options=_OPTIONS)
        self._channels.append(channel)
        stub = dp_grpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(10.0):
                await channel.channel_ready()
            options = await stub.GetDevicePluginOptions(dp.Empty(), timeout=10.0)
        except (TimeoutError, grpc.aio.AioRpcError) as error:
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin {request.endpoint}: {error}")
        self._plugin = _Plugin(channel, stub, options)
        self._was_registered = True
        self.registrations += 1
        task = self._plugin.task = asyncio.create_task(self._follow(self._plugin))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, plugin: _Plugin) -> None:
        """Take the plugin's lists until its stream ends; then the newest endpoint goes down, whichever ended."""
        try:
            async for message in plugin.stub.ListAndWatch(dp.Empty()):
                self.healthy = {d.ID for d in message.devices if d.health == "Healthy"}
                self.unhealthy = {d.ID for d in message.devices} - self.healthy
                self._books.write(self.healthy, self._shuffled)
                await self._tell()
        except grpc.aio.AioRpcError:
            pass  # the end of the stream, however it came
        current = self._plugin
        if current is None or current.stopped:
            return
        current.stopped = True
        self.unhealthy |= self.healthy
        self.healthy = set()
        await current.channel.close(None)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _allocate_pod(self, pod: KubeletPod) -> None:
        for uid in self._books.held.keys() - self.pods.keys():
            del self._books.held[uid]
        reusable: set[str] = set()
        for container in pod.containers:
            if not container.count:
                continue
            held = self._books.held.get(pod.uid, {}).get(container.name)
            if held is not None:
                self._check_held(pod, container, held)
            else:
                held = await self._allocate(pod, container, reusable)
            if container.init and not container.sidecar:
                reusable |= held.ids
            else:
                reusable -= held.ids

    def _check_held(self, pod: KubeletPod, container: KubeletContainer, held: Held) -> None:
        """The rules for a container that has its ids already: a restarted kubelet admits it again."""
        if len(held.ids) != container.count:
            raise UnexpectedAdmissionError(f"pod {pod.name} container {container.name} changed its request")
        if (pod.uid, container.name) in self._running:
            return
        if not self._was_registered:
            raise UnexpectedAdmissionError(f"cannot allocate unregistered device {self._resource}")
        if not self.healthy:
            raise UnexpectedAdmissionError(f"no healthy devices present; cannot allocate {self._resource}")
        if not held.ids <= self.healthy:
            raise UnexpectedAdmissionError(f"previously allocated devices are no longer healthy: {self._resource}")

    async def _allocate(self, pod: KubeletPod, container: KubeletContainer, reusable: set[str]) -> Held:
        plugin = self._plugin
        if plugin is None or not self._was_registered:
            raise UnexpectedAdmissionError(f"cannot allocate unregistered device {self._resource}")
        chosen = self._shuffled(reusable)[: container.count]
        needed = container.count - len(chosen)
        available = self.healthy - self._books.ids
        if needed > len(available):
            text = f"requested number of devices unavailable for {self._resource}"
            raise UnexpectedAdmissionError(f"{text}. Requested: {needed}, Available: {len(available)}")
        try:
            if needed:
                wished: list[str] = []
                if plugin.options.get_preferred_allocation_available and needed < len(available):
                    wished = await self._preferred(plugin, available, chosen, container.count)
                wished = [i for i in wished if i in available and i not in chosen]
                rest = [i for i in self._shuffled(available) if i not in wished]
                chosen += [*wished, *rest][:needed]
            self.calls.append(("Allocate", tuple(chosen)))
            request = dp.AllocateRequest(container_requests=[dp.ContainerAllocateRequest(devices_ids=chosen)])
            with self._timed("Allocate"):
                answer = await plugin.stub.Allocate(request)
        except grpc.aio.AioRpcError as error:
            raise UnexpectedAdmissionError(f"Allocate failed due to {error.details()}, which is unexpected") from error
        except asyncio.CancelledError as error:
            if not plugin.stopped:
                raise
            raise UnexpectedAdmissionError(f"endpoint of {self._resource} has been stopped") from error
        held = Held(frozenset(chosen), answer.container_responses[0])
        self._books.held.setdefault(pod.uid, {})[container.name] = held
        self._books.write(self.healthy, self._shuffled)
        return held

    async def _preferred(self, plugin: _Plugin, available: set[str], must: list[str], size: int) -> list[str]:
        offered = self._shuffled(available | set(must))
        request = dp.ContainerPreferredAllocationRequest(
            available_deviceIDs=offered, must_include_deviceIDs=must, allocation_size=size
        )
        with self._timed("GetPreferredAllocation"):
            answer = await plugin.stub.GetPreferredAllocation(
                dp.PreferredAllocationRequest(container_requests=[request])
            )
        wished = tuple(answer.container_responses[0].deviceIDs) if answer.container_responses else ()
        self.calls.append(("GetPreferredAllocation", wished))
        return list(wished) if self.heeds_preferences else []

    async def _pre_start(self, held: Held) -> None:
        plugin = self._plugin
        if plugin is None:
            return  # not registered since the kubelet started: skipped, the spec of before is used
        if plugin.stopped:
            raise CreateContainerError(f"endpoint of {self._resource} has been stopped")
        if not plugin.options.pre_start_required:
            return
        ids = self._shuffled(held.ids)
        self.calls.append(("PreStartContainer", tuple(ids)))
        try:
            with self._timed("PreStartContainer"):
                await plugin.stub.PreStartContainer(dp.PreStartContainerRequest(devices_ids=ids), timeout=30.0)
        except grpc.aio.AioRpcError as error:
            text = f"device plugin PreStartContainer rpc failed with err: {error.code().name}: {error.details()}"
            raise CreateContainerError(text) from error
        except asyncio.CancelledError as error:
            if not plugin.stopped:
                raise
            raise CreateContainerError(f"endpoint of {self._resource} has been stopped") from error

    @contextlib.contextmanager
    def _timed(self, method: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[method].append(time.perf_counter() - began)

    def _shuffled(self, ids: Iterable[str]) -> list[str]:
        ordered = sorted(ids)
        self._random.shuffle(ordered)
        return ordered
