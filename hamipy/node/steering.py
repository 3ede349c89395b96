"""GetPreferredAllocation: which ids the kubelet should pick, so that its books name the scheduler's devices.

A wish, nothing depends on it: what a container gets is bound to its identity later. So any doubt ends in a sensible
answer, never in an error, which would fail the pod.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from hamipy.core.model import Share
from hamipy.core.names import device_of
from hamipy.node.checkpoint import CheckpointUnreadable, Holding, Holdings
from hamipy.node.metrics import Metrics
from hamipy.node.pods import PodRecord, PodView

logger = logging.getLogger(__name__)

_PATIENCE = 0.2
"""Seconds to wait for word of the pod that the kubelet is admitting: its watch may be ahead of ours."""


def expected(pods: Iterable[PodRecord], by_pod: Mapping[str, Mapping[str, Holding]], size: int) -> tuple[Share, ...]:
    """Shares of the container that the kubelet is most likely asking for; empty when there is none of that size.

    The kubelet admits pods one after the other and a pod's containers in order; what it has allocated stands in the
    checkpoint. So it asks for the first container without an entry, of a pod that has begun, else of the first that
    has not.
    """
    waiting = []
    for pod in pods:
        if pod.allocation is None or pod.finished or pod.deleting:
            continue
        held = by_pod.get(pod.uid, {})
        following = next((c for c in pod.kinds if c in pod.allocation.containers and c not in held), None)
        if following is not None and len(pod.allocation.containers[following]) == size:
            waiting.append((not held, pod.order, pod.allocation.containers[following]))
    return min(waiting, key=lambda w: w[:2])[2] if waiting else ()


def choose(available: Sequence[str], must: Sequence[str], size: int, wanted: Iterable[str]) -> list[str]:
    """`size` of the available ids: those that must be, then one on each wanted device, then on the emptiest devices.

    Args:
        available: ids the kubelet may pick from.
        must: ids it has picked already.
        size: how many it needs in all.
        wanted: device ids.
    """
    free: dict[str, list[str]] = {}
    for i in sorted(set(available) - set(must), key=_slot):
        free.setdefault(device_of(i), []).append(i)
    chosen = list(must)[:size]
    taken = {device_of(i) for i in chosen}
    for device in wanted:
        if len(chosen) < size and device not in taken and free.get(device):
            chosen.append(free[device].pop(0))
            taken.add(device)
    while len(chosen) < size and any(free.values()):
        device = min((d for d in free if free[d]), key=lambda d: (d in taken, -len(free[d]), d))
        chosen.append(free[device].pop(0))
        taken.add(device)
    return chosen


def _slot(name: str) -> tuple[str, int, str]:
    device, _, slot = name.rpartition("::")
    return device, int(slot) if slot.isdecimal() and slot.isascii() else -1, slot


class Steering:
    """Answers the kubelet from the pods of the node and the checkpoint."""

    def __init__(self, pods: PodView, holdings: Callable[[], Holdings], metrics: Metrics) -> None:
        self._pods, self._holdings, self._metrics = pods, holdings, metrics

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Ids for a container that needs `size`; see `choose`."""
        deadline = time.monotonic() + _PATIENCE
        try:
            shares = expected(self._pods, self._holdings().by_pod, size)
            while not shares and await self._pods.changed(deadline - time.monotonic()):
                shares = expected(self._pods, self._holdings().by_pod, size)
        except CheckpointUnreadable as error:
            logger.warning("ids are not steered: %s", error)
            shares = ()
        except Exception:  # an error here would fail the pod for good, for the sake of a wish
            logger.exception("ids are not steered")
            shares = ()
        self._metrics.count("steered" if shares else "unsteered")
        return choose(available, must, size, [s.device for s in shares])
