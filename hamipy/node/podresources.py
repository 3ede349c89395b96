"""The kubelet's podresources API: which containers hold which ids, by pod name.

A second witness beside the checkpoint. It names neither pod uids nor plain init containers, and all its clients share
100 requests a second: so one call at a time serves everyone who waits, and refusals for rate are tried again.
"""

import asyncio
import logging
import random
from pathlib import Path

import grpc
import grpc.aio
from msgspec import Struct

from hamipy.core.names import KUBELET_RESOURCE

logger = logging.getLogger(__name__)

_ATTEMPTS = 6
_PAUSE = 0.05
_DEADLINE = 5.0
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", 16 * 2**20),
)


class Listed(Struct, frozen=True, gc=False):
    """One container as podresources lists it."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]


class PodResources:
    """Client of the podresources socket below `kubelet_dir`."""

    def __init__(self, kubelet_dir: Path) -> None:
        self._target = f"unix:{kubelet_dir}/pod-resources/kubelet.sock"
        self._flight: asyncio.Task[tuple[Listed, ...]] | None = None
        self._next: asyncio.Task[tuple[Listed, ...]] | None = None

    async def list(self) -> tuple[Listed, ...]:
        """The containers that hold ids of ours, as of a call that began after this one.

        Raises:
            grpc.aio.AioRpcError: the kubelet does not answer, or refuses for longer than we try.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._flight))
        return await asyncio.shield(self._next)

    async def _after(self, current: "asyncio.Task[tuple[Listed, ...]] | None") -> tuple[Listed, ...]:
        if current is not None:
            await asyncio.wait([current])
        self._flight, self._next = self._next, None
        return await self._call()

    async def _call(self) -> tuple[Listed, ...]:
        from hamipy.node._generated import podresources_v1_pb2 as pb  # rarely needed, and memory otherwise
        from hamipy.node._generated.podresources_v1_pb2_grpc import PodResourcesListerStub

        async with grpc.aio.insecure_channel(self._target, options=_OPTIONS) as channel:
            stub = PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            for attempt in range(_ATTEMPTS):
                try:
                    answer = await stub.List(pb.ListPodResourcesRequest(), timeout=_DEADLINE)
                    break
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or attempt == _ATTEMPTS - 1:
                        raise
                    await asyncio.sleep(_PAUSE * 2**attempt * random.uniform(0.5, 1.5))
        return tuple(
            Listed(pod.namespace, pod.name, container.name, frozenset(ids))
            for pod in answer.pod_resources
            for container in pod.containers
            if (ids := [i for d in container.devices if d.resource_name == KUBELET_RESOURCE for i in d.device_ids])
        )
