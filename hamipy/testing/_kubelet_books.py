# ruff: noqa: N802, ARG002 - the API names its methods and their arguments
"""The books of the fake kubelet: which container holds which ids, in its checkpoint and in podresources."""

import base64
import json
import os
import random
import secrets
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hamipy.core.quantity import parse_int
from hamipy.node._generated import deviceplugin_v1beta1_pb2 as dp
from hamipy.node._generated import podresources_v1_pb2 as pr
from hamipy.node._generated import podresources_v1_pb2_grpc as pr_grpc

CHECKPOINT = "kubelet_internal_checkpoint"

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True)
class KubeletContainer:
    """One container as the kubelet reads it.

    Attributes:
        count: ids it asks for, 0 for none.
        init: an init container; with `sidecar` a restartable one.
        env: what the pod's author wrote.
    """

    name: str
    count: int = 0
    init: bool = False
    sidecar: bool = False
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class KubeletPod:
    """One pod as the kubelet reads it; init containers first, as they are admitted."""

    uid: str
    namespace: str
    name: str
    containers: tuple[KubeletContainer, ...]

    @classmethod
    def of(cls, manifest: dict[str, Any], resource: str) -> "KubeletPod":
        """From a Kubernetes pod object."""

        def read(container: dict[str, Any], init: bool) -> KubeletContainer:
            limits = (container.get("resources") or {}).get("limits") or {}
            env = tuple((e["name"], e.get("value", "")) for e in container.get("env") or [])
            sidecar = init and container.get("restartPolicy") == "Always"
            return KubeletContainer(container["name"], parse_int(limits.get(resource, 0)), init, sidecar, env)

        meta, spec = manifest["metadata"], manifest["spec"]
        containers = [read(c, True) for c in spec.get("initContainers") or []]
        containers += [read(c, False) for c in spec.get("containers") or []]
        return cls(meta["uid"], meta.get("namespace", "default"), meta["name"], tuple(containers))


@dataclass
class Held:
    """What a container got."""

    ids: frozenset[str]
    answer: dp.ContainerAllocateResponse


class Books:
    """Ids by pod and container, kept in the checkpoint file."""

    def __init__(self, directory: Path, resource: str) -> None:
        self._path, self._resource = directory / CHECKPOINT, resource
        self.held: dict[str, dict[str, Held]] = {}

    @property
    def ids(self) -> set[str]:
        """All ids that are held."""
        return {i for containers in self.held.values() for h in containers.values() for i in h.ids}

    def write(self, registered: Iterable[str], shuffle: Callable[[Iterable[str]], list[str]]) -> None:
        """Replace the checkpoint, as the kubelet does after each Allocate and each list of devices."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": self._resource,
                "DeviceIDs": {"-1": shuffle(held.ids)},
                "AllocResp": base64.b64encode(held.answer.SerializeToString()).decode(),
            }
            for uid, containers in self.held.items()
            for container, held in containers.items()
        ]
        data = {"PodDeviceEntries": entries or None, "RegisteredDevices": {self._resource: shuffle(registered)}}
        checksum = zlib.crc32(json.dumps(data).encode())
        temporary = self._path.with_name(f".{CHECKPOINT}{secrets.randbelow(10**9)}")
        temporary.write_text(json.dumps({"Data": data, "Checksum": checksum}))
        temporary.replace(self._path)

    def read(self) -> None:
        """Take what the checkpoint says, as a starting kubelet does."""
        self.held = {}
        if not self._path.exists():
            return
        for entry in json.loads(self._path.read_text())["Data"]["PodDeviceEntries"] or []:
            ids = frozenset(i for part in entry["DeviceIDs"].values() for i in part)
            answer = dp.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            self.held.setdefault(entry["PodUID"], {})[entry["ContainerName"]] = Held(ids, answer)


class PodResources(pr_grpc.PodResourcesListerServicer):
    """podresources v1 with the kubelet's omissions and its rate limit (100 a second, burst 10, for all clients)."""

    def __init__(
        self, resource: str, pods: Callable[[], Iterable[KubeletPod]], books: Books, healthy: Callable[[], set[str]]
    ) -> None:
        self._resource, self._pods, self._books, self._healthy = resource, pods, books, healthy
        self._tokens, self._at = 10.0, time.monotonic()
        self.calls = 0

    async def List(self, request: pr.ListPodResourcesRequest, context: _Context) -> pr.ListPodResourcesResponse:
        """All active pods."""
        await self._limit(context)
        return pr.ListPodResourcesResponse(pod_resources=[self._of(p) for p in self._pods()])

    async def Get(self, request: pr.GetPodResourcesRequest, context: _Context) -> pr.GetPodResourcesResponse:
        """One pod by name."""
        await self._limit(context)
        for pod in self._pods():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return pr.GetPodResourcesResponse(pod_resources=self._of(pod))
        text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        return await context.abort(grpc.StatusCode.UNKNOWN, text)

    async def GetAllocatableResources(
        self, request: pr.AllocatableResourcesRequest, context: _Context
    ) -> pr.AllocatableResourcesResponse:
        """The healthy ids."""
        await self._limit(context)
        devices = [pr.ContainerDevices(resource_name=self._resource, device_ids=[i]) for i in sorted(self._healthy())]
        return pr.AllocatableResourcesResponse(devices=devices)

    def _of(self, pod: KubeletPod) -> pr.PodResources:
        held = self._books.held.get(pod.uid, {})
        listed = [c for c in pod.containers if not c.init or c.sidecar]
        return pr.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pr.ContainerResources(
                    name=c.name,
                    devices=[
                        pr.ContainerDevices(resource_name=self._resource, device_ids=[i])
                        for i in (
                            random.sample(sorted(held[c.name].ids), len(held[c.name].ids)) if c.name in held else []
                        )
                    ],
                )
                for c in listed
            ],
        )

    async def _limit(self, context: _Context) -> None:
        self.calls += 1
        now = time.monotonic()
        self._tokens = min(10.0, self._tokens + 100.0 * (now - self._at))
        self._at = now
        if self._tokens < 1:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self._tokens -= 1


def wipe_sockets(directory: Path) -> None:
    """Remove every socket of a directory, as a starting kubelet does."""
    directory.mkdir(parents=True, exist_ok=True)
    for entry in os.scandir(directory):
        if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
            Path(entry.path).unlink(missing_ok=True)
