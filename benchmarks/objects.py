"""Synthetic Kubernetes objects of realistic size: nodes of about 10 kB, bound pods of about 3 kB."""

import uuid
from collections.abc import Iterator
from typing import Any

from hamipy.core.codec import INVENTORY_VERSION, encode_allocation, encode_inventory
from hamipy.core.model import Allocation, Device, Inventory, Share
from hamipy.core.names import ALLOCATION, SCHEDULER_NAME

GIB = 2**30
MEMORY = 80 * GIB


def node_name(index: int) -> str:
    """Name of the n-th node."""
    return f"node-{index:05d}"


def device_id(node: int, device: int) -> str:
    """Id of a node's device."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{node}/{device}')}"


def nodes(count: int, devices: int) -> Iterator[dict[str, Any]]:
    """Node objects as a cluster has them: images, labels and managed fields make most of their size."""
    images = [
        {
            "names": [f"registry.example/image-{i}@sha256:{i:064x}", f"registry.example/image-{i}:v1"],
            "sizeBytes": 1234567,
        }
        for i in range(30)
    ]
    for index in range(count):
        published = {
            "cpu": "128",
            "memory": "1Ti",
            "pods": "110",
            "hamipy.io/device": str(devices * 16),
            "hamipy.io/memory": str(devices * MEMORY),
            "hamipy.io/memory-total": str(devices * MEMORY),
            "hamipy.io/memory-percentage": str(devices * 100),
            "hamipy.io/cores": str(devices * 100),
        }
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": node_name(index),
                "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, node_name(index))),
                "labels": {f"example.com/label-{i}": "value" for i in range(20)},
                "managedFields": _managed_fields(20),
            },
            "spec": {},
            "status": {
                "capacity": published,
                "allocatable": published,
                "conditions": [{"type": t, "status": "False", "message": "kubelet is fine"} for t in ("Disk", "PID")],
                "images": images,
            },
        }


def bare_nodes(count: int, devices: int) -> Iterator[dict[str, Any]]:
    """Node objects for a real API server, Ready, with what a kubelet reports and nothing else."""
    offered = {"cpu": "128", "memory": "1Ti", "pods": "110", "hamipy.io/device": str(devices * 16)}
    for index in range(count):
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node_name(index), "labels": {"kubernetes.io/hostname": node_name(index)}},
            "status": {
                "capacity": offered,
                "allocatable": offered,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }


def inventories(count: int, devices: int) -> Iterator[dict[str, Any]]:
    """NodeDevices objects: large cards, two NUMA nodes."""
    for index in range(count):
        inventory = Inventory(
            node_name(index),
            devices=tuple(
                Device(
                    device_id(index, d),
                    d,
                    "mock",
                    "Mock A100",
                    MEMORY,
                    16,
                    numa=d * 2 // devices,
                    pci=f"0000:{d:02x}:00.0",
                )
                for d in range(devices)
            ),
        )
        yield {
            "apiVersion": INVENTORY_VERSION,
            "kind": "NodeDevices",
            "metadata": {"name": node_name(index), "uid": str(uuid.uuid4())},
            "spec": encode_inventory(inventory),
        }


def bound_pods(count: int, node_count: int, devices: int, *, memory: int = 8 * GIB) -> Iterator[dict[str, Any]]:
    """Running pods with one share each, spread over all devices."""
    for index in range(count):
        node = index % node_count
        share = Share(device_id(node, index // node_count % devices), memory, 10)
        pod = pending_pod(f"bound-{index}", memory=str(memory))
        pod["metadata"]["annotations"] = {ALLOCATION: encode_allocation(Allocation({"main": (share,)}))}
        pod["metadata"]["managedFields"] = _managed_fields(10)
        pod["spec"]["nodeName"] = node_name(node)
        pod["status"] = {"phase": "Running"}
        yield pod


def pending_pod(name: str, **limits: str) -> dict[str, Any]:
    """A pod as it leaves the webhook; `limits` by the last part of our names, `memory_percentage` for a dash."""
    written = {f"hamipy.io/{k.replace('_', '-')}": v for k, v in limits.items()}
    written.setdefault("hamipy.io/device", "1")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": str(uuid.uuid4())},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/image:v1",
                    "env": [{"name": f"SETTING_{i}", "value": "some value or other"} for i in range(20)],
                    "resources": {"limits": written, "requests": written},
                }
            ],
        },
        "status": {"phase": "Pending"},
    }


def _managed_fields(count: int) -> list[dict[str, Any]]:
    fields: dict[str, Any] = {f"f:field-{i}": {".": {}, "f:value": {}, "f:type": {}} for i in range(count)}
    return [{"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": fields}}]
