"""Keeps us registered with the kubelet, whatever happens to it, to us or to another daemon of ours.

Registers when no ListAndWatch stream is open, and at once when `kubelet.sock` is another one. Never while a stream is
open: a kubelet that is given a second endpoint keeps the first stream, and its end would take the second one down.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from hamipy.core.names import KUBELET_RESOURCE
from hamipy.node._generated import deviceplugin_v1beta1_pb2 as pb
from hamipy.node._generated.deviceplugin_v1beta1_pb2_grpc import RegistrationStub
from hamipy.node.files import DirectoryWatch
from hamipy.node.metrics import Metrics
from hamipy.node.plugin import OPTIONS, SOCKET, Endpoint, Streams
from hamipy.node.waiting import happened

logger = logging.getLogger(__name__)

_POLL = 1.0
"""Seconds between looks at the sockets when the directory watch says nothing."""
_POLL_UNWATCHED = 0.2
_GRACE = 2.0
"""Seconds after a registration in which the kubelet should have opened its stream."""
_BACKOFF = (0.02, 2.0)
"""Seconds: first and longest pause after a failed registration."""
_DEADLINE = 10.0
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
"""Python would send the path as the authority; and the connection must be to the socket that lies there now."""


class Registrar:
    """See the module; `kick` makes it look at once.

    Args:
        directory: where the kubelet and its plugins meet.
        endpoint: our socket there.
        streams: the open ListAndWatch streams.
        appeared: told the name of each entry of the directory that appears or is replaced.
    """

    def __init__(
        self,
        directory: Path,
        endpoint: Endpoint,
        streams: Streams,
        metrics: Metrics,
        appeared: Callable[[str], None] = lambda name: None,  # noqa: ARG005
    ) -> None:
        self._directory, self._endpoint, self._streams, self._metrics = directory, endpoint, streams, metrics
        self._also = appeared
        self._kubelet = directory / "kubelet.sock"
        self._event = asyncio.Event()
        self.registered = asyncio.Event()
        self._asked: tuple[int, int] | None = None
        self._asked_at = 0.0
        self._failures = 0
        self._not_before = 0.0

    def kick(self) -> None:
        """Something changed: look now."""
        self._event.set()

    async def run(self) -> None:
        """Until cancelled."""
        watch = self._watch()
        try:
            while True:
                self._event.clear()
                pause = await self._look(_POLL if watch is not None else _POLL_UNWATCHED)
                await happened(self._event, pause)
        finally:
            if watch is not None:
                asyncio.get_running_loop().remove_reader(watch.descriptor)
                watch.close()

    def _watch(self) -> DirectoryWatch | None:
        try:
            watch = DirectoryWatch(self._directory, self._appeared)
        except OSError as error:
            logger.warning("the kubelet's directory is polled, it cannot be watched: %s", error)
            return None
        asyncio.get_running_loop().add_reader(watch.descriptor, watch.read)
        return watch

    def _appeared(self, name: str) -> None:
        if name in ("kubelet.sock", SOCKET):
            self.kick()
        self._also(name)

    async def _look(self, pause: float) -> float:
        """Do what is to be done now; seconds until the next look."""
        try:
            if not self._endpoint.in_place():
                await self._endpoint.serve()
            await self._endpoint.sweep()
        except (OSError, RuntimeError) as error:
            logger.warning("cannot serve in %s: %s", self._directory, error)
            return pause
        kubelet = self._identity()
        if kubelet is None:
            return pause
        now = time.monotonic()
        if kubelet == self._asked:
            if self._streams.open:
                self._failures = 0
                return pause
            if now < self._not_before:
                return min(pause, self._not_before - now)
        else:
            self._failures = 0
        self._asked, self._asked_at = kubelet, now
        try:
            await self._register()
        except grpc.aio.AioRpcError as error:
            self._metrics.count("registration_failures")
            logger.warning("the kubelet refused the registration: %s %s", error.code().name, error.details())
            longest = min(_BACKOFF[1], _BACKOFF[0] * 2 ** min(self._failures, 10))
            wait = random.uniform(longest / 2, longest)
            self._failures += 1
        else:
            self._metrics.count("registrations")
            logger.info("registered %s with the kubelet", KUBELET_RESOURCE)
            self.registered.set()
            wait = _GRACE
        self._not_before = time.monotonic() + wait
        return min(pause, wait)

    def stream_ended(self, began: float) -> None:
        """A ListAndWatch stream ended: register again, at once if the last registration has held for a while.

        Args:
            began: time.monotonic() at which it began; one from before the last registration says nothing about it.
        """
        self._metrics.count("streams_ended")
        if began < self._asked_at:
            return
        held = time.monotonic() - self._asked_at
        if held > _GRACE:
            self._not_before = 0.0
        else:
            self._not_before = min(self._not_before, time.monotonic() + _BACKOFF[0] * 2 ** min(self._failures, 7))
            self._failures += 1
        self.kick()

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self._kubelet.stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns

    async def _register(self) -> None:
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=_OPTIONS) as channel:
            kubelet = RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await kubelet.Register(
                pb.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=KUBELET_RESOURCE, options=OPTIONS),
                timeout=_DEADLINE,
            )
