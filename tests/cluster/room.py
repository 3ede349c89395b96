"""What of the devices is free, by the API server's objects alone: NodeDevices and the pods' allocations."""

from collections import Counter

from hamipy.core.quantity import parse_int

from .api import JSON
from .books import RESOURCE, allocation
from .history import capacity, holds
from .workloads import Space

MEMORY, SLOTS = "hamipy.io/memory", "slots"
_DIMENSIONS = {MEMORY: "memory", "hamipy.io/cores": "cores", SLOTS: "shares"}


def free(space: Space, pods: list[JSON]) -> dict[str, dict[str, int]]:
    """What is left of each device, by `node/device` and resource, by the API server's objects alone."""
    left = {resource: capacity(space, dimension) for resource, dimension in _DIMENSIONS.items()}
    for found in filter(holds, pods):
        for share in (s for shares in allocation(found).values() for s in shares):
            for resource, dimension in _DIMENSIONS.items():
                left[resource][f"{found['spec']['nodeName']}/{share['device']}"] -= (
                    1 if resource == SLOTS else share[dimension]
                )
    return {device: {resource: left[resource][device] for resource in left} for device in left[MEMORY]}


def would_fit(space: Space, pods: list[JSON]) -> list[str]:
    """Pods that wait although the devices they want have room on one node."""
    devices, said = free(space, pods), []
    for found in (p for p in pods if not p["spec"].get("nodeName")):
        limits = found["spec"]["containers"][0]["resources"]["limits"]
        wanted = {r: parse_int(limits[r]) for r in _DIMENSIONS if r in limits} | {SLOTS: 1}
        room = Counter(
            device.partition("/")[0]
            for device, left in devices.items()
            if all(left[resource] >= amount for resource, amount in wanted.items())
        )
        said += [f"{found['metadata']['name']} on {n}" for n, k in room.items() if k >= parse_int(limits[RESOURCE])]
    return said
