"""Whether a container may start on the scheduler's devices: they exist, are well, and hold all that is bound."""

from collections.abc import Iterable, Mapping

from hamipy.core.fit import overcommitted, peak_use
from hamipy.core.model import Device, Share
from hamipy.core.names import device_of
from hamipy.node.pods import PodRecord


def refuse(
    pod: PodRecord,
    container: str,
    ids: frozenset[str],
    *,
    node: str,
    devices: Mapping[str, Device],
    before: Iterable[PodRecord],
) -> str:
    """Why this container may not start here, as one sentence; empty when it may.

    Args:
        ids: what the kubelet gave it.
        node: name of this node.
        devices: this node's devices by id.
        before: pods that hold, or will hold, shares here and come before this one.
    """
    who = f"pod {pod.full_name} container {container}"
    if pod.node != node:
        return f"{who}: is bound to node {pod.node or 'none'}, this is {node}"
    if pod.allocation is None:
        return f"{who}: {pod.problem}"
    shares = pod.allocation.containers.get(container)
    if shares is None:
        return f"{who}: is not in the pod's allocation, which has {', '.join(sorted(pod.allocation.containers))}"
    if len(shares) != len(ids):
        return f"{who}: the kubelet gave {len(ids)} ids, the allocation has {len(shares)} devices"
    for share in shares:
        device = devices.get(share.device)
        if device is None:
            return f"{who}: device {share.device} is not on node {node}"
        if not device.healthy:
            return f"{who}: device {share.device} is sick: {device.reason or 'no reason known'}"
    return _overcommit(pod, who, shares, devices, before)


def _overcommit(
    pod: PodRecord, who: str, shares: Iterable[Share], devices: Mapping[str, Device], before: Iterable[PodRecord]
) -> str:
    pods = [p for p in before if p.uid != pod.uid and p.allocation is not None and not p.finished]
    pods.append(pod)
    uses = [
        peak_use(p.allocation, p.kinds, lambda d: devices[d].slots if d in devices else 1)
        for p in pods
        if p.allocation is not None
    ]
    full = set(overcommitted(devices.values(), uses)) & {s.device for s in shares}
    if full:
        others = sorted(p.full_name for p in pods[:-1] if p.allocation and _on(p, full))
        return f"{who}: device {min(full)} has no room for it beside {', '.join(others) or 'nothing'}"
    return ""


def _on(pod: PodRecord, devices: set[str]) -> bool:
    assert pod.allocation is not None
    return any(s.device in devices for shares in pod.allocation.containers.values() for s in shares)


def swapped(shares: Iterable[Share], ids: Iterable[str]) -> bool:
    """Whether the kubelet's ids are of other devices than the shares."""
    return sorted(s.device for s in shares) != sorted(device_of(i) for i in ids)
