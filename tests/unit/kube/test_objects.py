"""Kubernetes objects as we read them."""

import json
from typing import Any, TypeVar

import msgspec
import pytest

from hamipy.core.model import ContainerKind
from hamipy.kube.objects import Lease, Node, Pod

T = TypeVar("T")


def decode(obj: dict[str, Any], type_: type[T]) -> T:
    return msgspec.json.decode(json.dumps(obj), type=type_)


def test_a_pod_keeps_what_scheduling_needs_and_nothing_else() -> None:
    pod = decode(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "p",
                "namespace": "ns",
                "uid": "u",
                "resourceVersion": "7",
                "annotations": {"a": "b"},
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-02T00:00:00Z",
                "managedFields": [{"manager": "x"}],
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o"}],
            },
            "spec": {
                "nodeName": "n1",
                "schedulerName": "hamipy-scheduler",
                "priority": -5,
                "containers": [{"name": "main", "resources": {"limits": {"hamipy.io/memory": "8Gi"}}}],
                "initContainers": [
                    {"name": "init"},
                    {"name": "side", "restartPolicy": "Always", "env": [{"name": "A", "value": "b"}]},
                ],
            },
            "status": {"phase": "Running", "nominatedNodeName": "n2", "containerStatuses": [{"name": "main"}]},
        },
        Pod,
    )
    assert pod.metadata.resource_version == "7"
    assert pod.metadata.deletion_timestamp == "2026-01-02T00:00:00Z"
    assert pod.metadata.owner_references[0].uid == "o"
    assert pod.spec.node_name == "n1"
    assert pod.spec.priority == -5
    assert pod.spec.containers[0].resources.limits == {"hamipy.io/memory": "8Gi"}
    assert [(c.name, kind) for c, kind in pod.containers] == [
        ("init", ContainerKind.INIT),
        ("side", ContainerKind.SIDECAR),
        ("main", ContainerKind.APP),
    ]
    assert [e.name for e in pod.spec.init_containers[1].env] == ["A"]
    assert pod.status.nominated_node_name == "n2"


@pytest.mark.parametrize(
    ("phase", "finished"), [("", False), ("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True)]
)
def test_a_pod_has_finished_in_two_phases(phase: str, finished: bool) -> None:
    assert decode({"status": {"phase": phase}}, Pod).finished is finished


def test_absent_fields_have_their_zero_value() -> None:
    pod = decode({"metadata": {"name": "p", "creationTimestamp": None}}, Pod)
    assert pod.spec.node_name == ""
    assert pod.spec.containers == ()
    assert pod.metadata.creation_timestamp is None
    assert pod.metadata.deletion_timestamp is None


@pytest.mark.parametrize("value", [2, "2"])
def test_bare_numbers_in_quantities_become_text(value: object) -> None:
    limits = {"resources": {"limits": {"hamipy.io/device": value, "cpu": "500m"}, "requests": {"x": value}}}
    pod = decode({"spec": {"containers": [limits]}}, Pod)
    resources = pod.spec.containers[0].resources
    assert resources.limits == {"hamipy.io/device": "2", "cpu": "500m"}
    assert resources.requests == {"x": "2"}


def test_a_node_shows_capacity_and_cordon() -> None:
    node = decode(
        {"metadata": {"name": "n"}, "spec": {"unschedulable": True}, "status": {"capacity": {"a": 1}, "images": []}},
        Node,
    )
    assert node.spec.unschedulable
    assert node.status.capacity == {"a": "1"}
    assert node.status.allocatable == {}


def test_a_lease_shows_its_holder() -> None:
    lease = decode(
        {
            "metadata": {"name": "l"},
            "spec": {"holderIdentity": "pod_1", "leaseDurationSeconds": 3, "renewTime": "2026-01-01T00:00:00.123456Z"},
        },
        Lease,
    )
    assert lease.spec.holder_identity == "pod_1"
    assert lease.spec.lease_transitions == 0
