"""The books that must agree about a pod: the kubelet's podresources and checkpoint, our annotation, our ledger."""

import base64
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import grpc

from hamipy.node._generated import deviceplugin_v1beta1_pb2 as dp
from hamipy.node._generated import podresources_v1_pb2 as pr
from hamipy.node._generated.podresources_v1_pb2_grpc import PodResourcesListerStub

from .api import JSON
from .node import Node

ALLOCATION = "hamipy.io/allocation"
RESOURCE = "hamipy.io/device"


@dataclass(frozen=True)
class Held:
    """Ids of our kubelet resource that one container holds; `pod` is `namespace/name`, or the uid in the checkpoint."""

    pod: str
    container: str
    ids: tuple[str, ...]
    cdi: str = ""

    @property
    def devices(self) -> Counter[str]:
        """How many ids of each device."""
        return Counter(i.rpartition("::")[0] for i in self.ids)


def podresources(node: Node) -> list[Held]:
    """What the kubelet tells its clients, asked on its real socket (plain init containers are not listed there)."""
    socket = node.fs("/var/lib/kubelet") / "pod-resources" / "kubelet.sock"
    with grpc.insecure_channel(f"unix://{socket}", options=[("grpc.default_authority", "localhost")]) as channel:
        stub = PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
        answer = stub.List(pr.ListPodResourcesRequest(), timeout=10)
    found: dict[tuple[str, str], list[str]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name == RESOURCE:
                    found.setdefault((f"{pod.namespace}/{pod.name}", container.name), []).extend(devices.device_ids)
    return [Held(pod, container, tuple(sorted(ids))) for (pod, container), ids in sorted(found.items())]


def checkpoint(node: Node) -> list[Held]:
    """What the kubelet has written down: init containers too, with the CDI name that Allocate answered."""
    file = node.fs("/var/lib/kubelet") / "device-plugins" / "kubelet_internal_checkpoint"
    entries = json.loads(file.read_bytes())["Data"]["PodDeviceEntries"] or []
    found = []
    for entry in entries:
        if entry["ResourceName"] == RESOURCE:
            by_numa = entry["DeviceIDs"]
            ids = [i for part in (by_numa.values() if isinstance(by_numa, dict) else [by_numa]) for i in part]
            answer = dp.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))
            cdi = answer.cdi_devices[0].name if answer.cdi_devices else ""
            found.append(Held(entry["PodUID"], entry["ContainerName"], tuple(sorted(ids)), cdi))
    return found


def cdi_specs(node: Node) -> list[Path]:
    """CDI spec files of ours on a node."""
    return sorted(node.fs("/var/run/cdi").glob("hamipy.io-share-*.json"))


def allocation(pod: JSON) -> dict[str, list[JSON]]:
    """Shares per container from a pod's annotation; empty without one."""
    text = pod["metadata"].get("annotations", {}).get(ALLOCATION)
    return dict(json.loads(text)["containers"]) if text else {}
