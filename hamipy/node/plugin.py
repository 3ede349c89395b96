# ruff: noqa: N802 - the API names its methods
"""The device-plugin server that the kubelet calls, on a unix socket in its directory.

The order of the kubelet's calls for a container: GetPreferredAllocation (a wish) -> Allocate (a fresh CDI name,
nothing else, it must not fail) -> PreStartContainer (who is it? write what it gets; the kubelet tries again).
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from hamipy.core.names import CDI_KIND
from hamipy.node._generated import deviceplugin_v1beta1_pb2 as pb
from hamipy.node._generated import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from hamipy.node.advertise import Table
from hamipy.node.metrics import Metrics

logger = logging.getLogger(__name__)

SOCKET = "hamipy.sock"
_GRACE = 2.0
"""Seconds that calls under way have to end when we stop."""
OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

_Context = grpc.aio.ServicerContext[Any, Any]


class StartRefused(Exception):
    """A container may not start now; the text is shown to the pod's owner, the kubelet tries again."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Prefer(Protocol):
    """Chooses ids for a container that the kubelet is about to allocate; must not raise."""

    async def __call__(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Return at most `size` ids out of `available`, `must` among them."""
        ...


class Streams:
    """The open ListAndWatch streams, and whether the kubelet has been sent a list on one of them.

    Args:
        changed: called after every change.
        ended: called with the time.monotonic() at which a stream had begun when it ends.
    """

    def __init__(self, changed: Callable[[], None], ended: Callable[[float], None]) -> None:
        self.open = 0
        self.listed = 0
        self._changed, self._ended = changed, ended

    def opened(self) -> None:
        """A stream began."""
        self.open += 1
        self._changed()

    def sent(self) -> None:
        """A stream delivered its first list."""
        self.listed += 1
        self._changed()

    def closed(self, listed: bool, began: float) -> None:
        """A stream ended that began at this time.monotonic()."""
        self.open -= 1
        self.listed -= listed
        self._ended(began)
        self._changed()


class DevicePlugin(pb_grpc.DevicePluginServicer):
    """The kubelet's device-plugin API v1beta1."""

    def __init__(
        self,
        table: Table,
        streams: Streams,
        prefer: Prefer,
        start: Callable[[frozenset[str]], Awaitable[None]],
        metrics: Metrics,
        allocated: Callable[[frozenset[str], str], None],
    ) -> None:
        self._table, self._streams, self._metrics = table, streams, metrics
        self._prefer, self._start, self._allocated = prefer, start, allocated
        self.own_streams = 0

    async def GetDevicePluginOptions(self, request: pb.Empty, context: _Context) -> pb.DevicePluginOptions:  # noqa: ARG002
        """Say that we want to be asked before allocation and before each start."""
        return OPTIONS

    async def ListAndWatch(self, request: pb.Empty, context: _Context) -> AsyncIterator[pb.ListAndWatchResponse]:  # noqa: ARG002
        """Send all ids with their health, again whenever something changes.

        No NUMA node is told: the kubelet would narrow the ids by it, while it is the scheduler who has chosen.
        """
        version, listed, began = 0, False, time.monotonic()
        self.own_streams += 1
        self._streams.opened()
        try:
            while await self._table.newer(version):
                version, ids = self._table.version, self._table.ids
                yield pb.ListAndWatchResponse(
                    devices=[pb.Device(ID=i, health="Healthy" if well else "Unhealthy") for i, well in ids.items()]
                )
                if not listed:
                    listed = True
                    self._streams.sent()
        finally:
            self.own_streams -= 1
            self._streams.closed(listed, began)

    async def GetPreferredAllocation(
        self,
        request: pb.PreferredAllocationRequest,
        context: _Context,  # noqa: ARG002
    ) -> pb.PreferredAllocationResponse:
        """Steer the kubelet towards ids of the devices that the scheduler chose."""
        with self._metrics.timed("GetPreferredAllocation"):
            answers = [
                await self._prefer(r.available_deviceIDs, r.must_include_deviceIDs, r.allocation_size)
                for r in request.container_requests
            ]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in answers]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:  # noqa: ARG002
        """Answer a fresh CDI name for each call; an error here would fail the pod for good."""
        with self._metrics.timed("Allocate"):
            answers = []
            for container in request.container_requests:
                name = secrets.token_hex(16)
                self._allocated(frozenset(container.devices_ids), name)
                answers.append(pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=f"{CDI_KIND}={name}")]))
        return pb.AllocateResponse(container_responses=answers)

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: _Context
    ) -> pb.PreStartContainerResponse:
        """Write what each container that holds these ids gets, or refuse with the reason."""
        try:
            with self._metrics.timed("PreStartContainer"):
                await self._start(frozenset(request.devices_ids))
        except StartRefused as refusal:
            await context.abort(refusal.code, str(refusal))
        return pb.PreStartContainerResponse()


class Endpoint:
    """Our socket, served; binds under a private name and renames it into place.

    Without the rename gRPC would unlink whatever lies at the path when a server stops: an old daemon that stops after
    a new one has begun would take the new one's socket away.
    """

    def __init__(self, directory: Path, make: Callable[[], DevicePlugin]) -> None:
        self.path = directory / SOCKET
        for left in directory.glob(f"{SOCKET}.*"):  # a crash between bind and rename
            left.unlink(missing_ok=True)
        self._make = make
        self._servers: list[tuple[grpc.aio.Server, DevicePlugin]] = []
        """All that have not been stopped, the one in place last."""
        self._inode = 0

    def in_place(self) -> bool:
        """Whether the socket at the path is ours."""
        try:
            return bool(self._inode) and self.path.stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    async def serve(self) -> None:
        """Put a socket of ours in place; streams on an earlier one go on, and it stops when they have ended.

        Raises:
            OSError: the directory is missing or not writable.
            RuntimeError: gRPC cannot listen there.
        """
        private = self.path.with_name(f"{SOCKET}.{secrets.token_hex(3)}")
        server, plugin = grpc.aio.server(), self._make()
        self._servers.append((server, plugin))
        pb_grpc.add_DevicePluginServicer_to_server(plugin, server)  # type: ignore[no-untyped-call]
        try:
            server.add_insecure_port(f"unix:{private}")
            await server.start()
            self._inode = private.stat().st_ino
            private.rename(self.path)
        except (OSError, RuntimeError):
            self._servers.remove((server, plugin))
            await server.stop(None)
            raise

    async def sweep(self) -> None:
        """Stop earlier servers that nobody listens to any more."""
        for earlier in self._servers[:-1]:
            if not earlier[1].own_streams:
                await earlier[0].stop(None)
                self._servers.remove(earlier)

    async def close(self) -> None:
        """Take the socket away and stop."""
        if self.in_place():
            self.path.unlink(missing_ok=True)
        self._inode = 0
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.stop(_GRACE) for server, _ in servers))
