"""PreStartContainer: proves which containers hold the ids, checks them, and writes what each one gets.

The proof is the kubelet's own checkpoint. What is granted once is granted for all restarts of that container; so
those are served from local state, whatever the API server, the device or the pod's object have become.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import groupby
from weakref import WeakValueDictionary

import grpc
import grpc.aio
import msgspec

from hamipy.core.errors import HamipyError
from hamipy.core.model import Device, Share
from hamipy.core.vendor import ContainerEdits, ContainerShares, Mount, Vendor
from hamipy.node.cdi import Specs, merge
from hamipy.node.checkpoint import Checkpoint, CheckpointUnreadable, Holding
from hamipy.node.grants import LIMITS, Grant, Grants
from hamipy.node.metrics import Metrics
from hamipy.node.plugin import StartRefused
from hamipy.node.podresources import PodResources
from hamipy.node.pods import PodRecord, PodView
from hamipy.node.room import refuse, swapped
from hamipy.node.workers import Worker

logger = logging.getLogger(__name__)

LIMITS_PATH = "/run/hamipy/limits.json"
"""Where a container finds its limits."""

_VENDOR_LIMIT = 20.0
"""Seconds for one role of a vendor; the kubelet waits 30 for the whole call."""
_REMEMBERED = 4096
"""Allocate calls whose ids and names are remembered, for a kubelet whose checkpoint cannot be read."""

_Code = grpc.StatusCode


class Starter:
    """See the module.

    Args:
        node: name of this node.
        boot: id of the machine's boot.
        devices: the node's devices by id, now.
        refresh: list this node's pods anew; False when the API server did not answer.
        report: tell a pod's owner why it does not start.
    """

    def __init__(
        self,
        *,
        node: str,
        boot: str,
        checkpoint: Checkpoint,
        podresources: PodResources,
        pods: PodView,
        devices: Callable[[], Mapping[str, Device]],
        refresh: Callable[[], Awaitable[bool]],
        report: Callable[[PodRecord, str], None],
        grants: Grants,
        specs: Specs,
        vendors: Mapping[str, Vendor],
        workers: Mapping[str, Worker],
        metrics: Metrics,
    ) -> None:
        self._node, self._boot, self._checkpoint, self._podresources = node, boot, checkpoint, podresources
        self._pods, self._devices, self._refresh, self._report = pods, devices, refresh, report
        self._grants, self._specs, self._vendors, self._workers = grants, specs, vendors, workers
        self._metrics = metrics
        self._answered: dict[frozenset[str], str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def allocated(self, ids: frozenset[str], name: str) -> None:
        """Remember what Allocate answered."""
        self._answered.pop(ids, None)
        self._answered[ids] = name
        if len(self._answered) > _REMEMBERED:
            del self._answered[next(iter(self._answered))]

    async def start(self, ids: frozenset[str]) -> None:
        """Write what every container that holds exactly these ids gets.

        Raises:
            StartRefused: none of them may start; the reason is also told to the pod's owner.
        """
        refusals: list[StartRefused] = []
        started = False
        holdings = sorted(await self._holdings(ids), key=lambda h: h.uid)
        for uid, of_pod in groupby(holdings, key=lambda h: h.uid):
            try:
                async with self._locks.setdefault(uid, asyncio.Lock()):
                    for holding in of_pod:
                        await self._start(holding)
                started = True
            except StartRefused as refusal:
                refusals.append(refusal)
        if not started:
            self._metrics.count("starts_refused")
            raise refusals[0]

    async def _holdings(self, ids: frozenset[str]) -> tuple[Holding, ...]:
        try:
            found = self._checkpoint.read().holding(ids)
            if any(h.name for h in found):
                return tuple(h for h in found if h.name)
            problem = "no container in the kubelet's checkpoint holds them under a name of ours"
        except CheckpointUnreadable as error:
            problem = str(error)
        logger.warning("ids %s: %s; asking podresources", ", ".join(sorted(ids)), problem)
        return (await self._witness(ids, problem),)

    async def _witness(self, ids: frozenset[str], problem: str) -> Holding:
        """The holder by podresources: it proves the pod alone, so the pod must have one device container only."""
        try:
            listed = await self._podresources.list()
        except grpc.aio.AioRpcError as error:
            raise StartRefused(_Code.UNAVAILABLE, f"{problem}; podresources: {error.details()}") from error
        names = {(c.namespace, c.pod) for c in listed if c.ids == ids}
        name = self._answered.get(ids)
        if name is None or len(names) != 1:
            raise StartRefused(_Code.NOT_FOUND, f"{problem}, and podresources names {len(names)} pods for them")
        pod = self._named(*min(names))
        if pod is None and await self._refresh():
            pod = self._named(*min(names))
        if pod is None or pod.allocation is None or len(pod.allocation.containers) != 1:
            raise StartRefused(_Code.FAILED_PRECONDITION, f"{problem}; podresources alone does not prove the container")
        return Holding(pod.uid, next(iter(pod.allocation.containers)), ids, name)

    def _named(self, namespace: str, name: str) -> PodRecord | None:
        return next((p for p in self._pods if (p.namespace, p.name) == (namespace, name)), None)

    async def _start(self, holding: Holding) -> None:
        grant = self._grants.get(holding.name, holding.uid, holding.container)
        if grant is not None:
            self._metrics.count("starts_local")
            await self._again(grant)
            return
        pod = await self._checked(holding)
        assert pod.allocation is not None
        shares = pod.allocation.containers[holding.container]
        if swapped(shares, holding.ids):
            self._metrics.count("ids_swapped")
            logger.info(
                "pod %s container %s: the kubelet's books say %s, it gets %s",
                pod.full_name,
                holding.container,
                ", ".join(sorted(holding.ids)),
                ", ".join(s.device for s in shares),
            )
        devices = self._devices()
        grant = Grant(
            name=holding.name,
            boot=self._boot,
            uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            node=pod.node,
            container=holding.container,
            ids=tuple(sorted(holding.ids)),
            shares=shares,
            devices=tuple(devices[s.device] for s in shares),
            kinds=pod.kinds,
            containers=pod.allocation.containers,
        )
        try:
            await self._write(grant)
        except StartRefused as refusal:
            self._report(pod, str(refusal))
            raise

    async def _again(self, grant: Grant) -> None:
        """Write anew what a restarting container gets; where that fails, what it had before serves it again."""
        try:
            await self._write(grant)
        except StartRefused as refusal:
            if not self._specs.path(grant.name).exists():
                self._report(grant.pod_record(), str(refusal))
                raise
            logger.warning("%s; it starts with what it had before", refusal)

    async def _checked(self, holding: Holding) -> PodRecord:
        """The pod, if this container of it may start; asks the API server once before it refuses."""
        asked = answered = False
        problem = ""
        while True:
            pod = self._pods.get(holding.uid)
            if pod is None and (other := self._grants.of_pod(holding.uid)) is not None and not self._pods.synced:
                pod = other.pod_record()
            if pod is not None:
                problem = refuse(
                    pod,
                    holding.container,
                    holding.ids,
                    node=self._node,
                    devices=self._devices(),
                    before=self._before(pod),
                )
                if not problem:
                    return pod
            if asked:
                break
            asked, answered = True, await self._refresh()
        if pod is None:
            if answered:
                raise StartRefused(_Code.NOT_FOUND, f"pod uid {holding.uid} is not on this node, says the API server")
            text = f"the allocation of pod uid {holding.uid} is not known: the API server does not answer"
            raise StartRefused(_Code.UNAVAILABLE, text)
        self._report(pod, problem)
        raise StartRefused(_Code.FAILED_PRECONDITION, problem)

    def _before(self, pod: PodRecord) -> list[PodRecord]:
        """Pods whose room comes before this one's: those with a container started, and those bound earlier."""
        granted = {g.uid: g for g in self._grants if g.boot == self._boot}
        if not self._pods.synced:
            return [g.pod_record() for g in granted.values()]
        return [p for p in self._pods if p.uid in granted or p.order < pod.order]

    async def _write(self, grant: Grant) -> None:
        """Write grant and limits, prepare, and at last write the spec, which then stands alone."""
        by_vendor: dict[str, list[tuple[Share, Device]]] = {}
        for share, device in zip(grant.shares, grant.devices, strict=True):
            by_vendor.setdefault(device.vendor, []).append((share, device))
        try:
            busy = [name for name in by_vendor if self._has_work(name)]
            edits = [self._told(grant)]
            if busy:  # what they make has to be released one day, so the grant is on disk before it
                await asyncio.to_thread(self._grants.write, grant, limits_of(grant))
                for name in busy:
                    edits += await self._of_vendor(name, grant, by_vendor[name])
            await asyncio.to_thread(self._store, grant, limits_of(grant), merge(edits))
        except OSError as error:
            raise StartRefused(_Code.UNAVAILABLE, f"files of {grant.container} cannot be written: {error}") from error
        except HamipyError as error:
            text = f"pod {grant.namespace}/{grant.pod} container {grant.container}: {error}"
            raise StartRefused(_Code.UNAVAILABLE, text) from error
        self._grants.complete(grant.name)

    def _store(self, grant: Grant, limits: bytes, edits: ContainerEdits) -> None:
        self._grants.write(grant, limits)
        self._specs.write(grant.name, edits)

    def _has_work(self, name: str) -> bool:
        """Whether a vendor has something to do for a container."""
        vendor = self._vendors.get(name)
        if vendor is None:
            raise HamipyError(f"vendor {name} is not loaded in this daemon")
        return vendor.prepare is not None or vendor.edits is not None

    def _told(self, grant: Grant) -> ContainerEdits:
        """What every container gets, whatever its vendor."""
        limits = Mount(str(self._grants.home(grant.name) / LIMITS), LIMITS_PATH)
        return ContainerEdits({"HAMIPY_DEVICES": ",".join(s.device for s in grant.shares)}, (limits,))

    async def _of_vendor(self, name: str, grant: Grant, pairs: list[tuple[Share, Device]]) -> list[ContainerEdits]:
        vendor, worker = self._vendors[name], self._workers[name]
        container = container_shares(grant, name, pairs, self._grants)
        container.directory.mkdir(parents=True, exist_ok=True)
        found: list[ContainerEdits] = []
        if vendor.prepare is not None:
            await worker.call("prepare", partial(vendor.prepare, container), _VENDOR_LIMIT)
        if vendor.edits is not None:
            found.append(await worker.call("edits", partial(vendor.edits, container), _VENDOR_LIMIT))
        return found


def container_shares(grant: Grant, vendor: str, pairs: list[tuple[Share, Device]], grants: Grants) -> ContainerShares:
    """What a vendor is told of a container: its shares of that vendor's devices."""
    shares, devices = zip(*pairs, strict=True)
    return ContainerShares(
        grant.uid, grant.namespace, grant.pod, grant.container, shares, devices, grants.home(grant.name) / vendor
    )


def limits_of(grant: Grant) -> bytes:
    """The text of limits.json: memory in bytes, cores in percent."""
    devices = [{"id": s.device, "memory": s.memory, "cores": s.cores, "partition": s.partition} for s in grant.shares]
    return msgspec.json.encode(
        {"pod": f"{grant.namespace}/{grant.pod}", "container": grant.container, "devices": devices}
    )
