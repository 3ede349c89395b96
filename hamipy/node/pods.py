"""The pods of this node as the API server tells them, reduced to what the daemon decides with."""

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from hamipy.core.codec import decode_allocation
from hamipy.core.errors import HamipyError
from hamipy.core.model import Allocation, ContainerKind
from hamipy.node.waiting import happened

_GONE_AFTER = 30.0
"""Seconds after which a pod that the API server does not know is gone: the kubelet may see a pod before we do."""


class PodRecord(Struct, frozen=True, gc=False):
    """One pod that was placed by us, or that asks for our kubelet resource.

    Attributes:
        kinds: kind of each container, in pod order (init containers first).
        wants: ids of ours that the kubelet gives each container that gets any.
        allocation: the decision; None when there is none that can be read, `problem` says why.
        finished: succeeded or failed: its shares are free.
        order: in which the kubelet sees pods: by the bind, pods of one list by creation time.
    """

    uid: str
    namespace: str
    name: str
    node: str
    created: str
    kinds: dict[str, ContainerKind]
    wants: dict[str, int]
    allocation: Allocation | None
    problem: str = ""
    finished: bool = False
    deleting: bool = False
    order: int = 0

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def read_allocation(annotation: str | None) -> tuple[Allocation | None, str]:
    """The allocation, or why there is none, as one sentence."""
    if annotation is None:
        return None, "it has no allocation: it was not placed by hamipy's scheduler"
    try:
        return decode_allocation(annotation), ""
    except HamipyError as error:
        return None, str(error)


class PodView:
    """The live pods of this node; fed by list and watch, asked by everything else."""

    def __init__(self) -> None:
        self._pods: dict[str, PodRecord] = {}
        self._sequence = itertools.count(1)
        self._changed = asyncio.Event()
        self._missing_since: dict[str, float] = {}
        self.synced = False

    def get(self, uid: str) -> PodRecord | None:
        """The pod with this uid, or None."""
        return self._pods.get(uid)

    def __iter__(self) -> Iterator[PodRecord]:
        """Pods in the order in which the kubelet sees them."""
        return iter(sorted(self._pods.values(), key=lambda pod: pod.order))

    def replace(self, pods: Iterable[PodRecord]) -> None:
        """Take a whole list: pods that are not in it are gone."""
        listed = {pod.uid: pod for pod in pods}
        for uid in self._pods.keys() - listed.keys():
            del self._pods[uid]
        for pod in sorted(listed.values(), key=lambda pod: (pod.created, pod.namespace, pod.name)):
            self._put(pod)
        self.synced = True
        self._tell()

    def upsert(self, pod: PodRecord) -> None:
        """Take one pod, new or changed."""
        self._put(pod)
        self._tell()

    def remove(self, uid: str) -> None:
        """One pod has left the API server."""
        self._pods.pop(uid, None)
        self._missing_since[uid] = float("-inf")
        self._tell()

    def gone(self, uid: str, contact: float) -> bool:
        """Whether the pod's shares are free for sure: finished, or unknown to the API server for a while.

        Args:
            uid: of a pod that the kubelet's checkpoint names.
            contact: time.monotonic() of the last word from the API server; while it is away nothing is gone.
        """
        known = self._pods.get(uid)
        if known is not None:
            self._missing_since.pop(uid, None)
            return known.finished
        since = self._missing_since.setdefault(uid, time.monotonic())
        return self.synced and contact - since > _GONE_AFTER

    def forget(self, named: Iterable[str]) -> None:
        """Keep notes on missing pods for those that the checkpoint still names only."""
        keep = set(named)
        self._missing_since = {uid: at for uid, at in self._missing_since.items() if uid in keep}

    async def changed(self, limit: float) -> bool:
        """Wait for the next change, at most `limit` seconds; whether there was one."""
        return await happened(self._changed, limit)

    def _put(self, pod: PodRecord) -> None:
        known = self._pods.get(pod.uid)
        order = known.order if known is not None else next(self._sequence)
        self._pods[pod.uid] = replace(pod, order=order)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
