"""The view of this node's pods: their order, and when a pod is gone."""

import asyncio
import time

from msgspec.structs import replace

from hamipy.core.codec import encode_allocation
from hamipy.core.model import Allocation, ContainerKind, Share
from hamipy.core.names import ALLOCATION, KUBELET_RESOURCE
from hamipy.kube.objects import Container, ObjectMeta, Pod, PodSpec, PodStatus, Resources
from hamipy.node.api import record_of
from hamipy.node.pods import PodRecord, PodView


def record(uid: str, created: str = "") -> PodRecord:
    return PodRecord(uid, "ns", uid, "n1", created, {}, {}, None)


def test_listed_pods_come_by_creation_and_watched_ones_as_they_came() -> None:
    view = PodView()
    view.replace([record("b", "2026-01-02"), record("a", "2026-01-01")])
    view.upsert(record("late", "2025-01-01"))
    view.upsert(replace(record("b", "2026-01-02"), finished=True))
    assert [p.uid for p in view] == ["a", "b", "late"]
    view.replace([record("late"), record("b")])
    assert [p.uid for p in view] == ["b", "late"]


def test_finished_and_removed_pods_are_gone_and_unknown_ones_only_after_a_while() -> None:
    view = PodView()
    now = time.monotonic()
    assert not view.gone("x", now + 3600), "nothing has been listed yet"
    view.replace([record("running"), replace(record("done"), finished=True), record("deleted")])
    view.remove("deleted")
    assert not view.gone("running", now)
    assert view.gone("done", now)
    assert view.gone("deleted", now)
    assert not view.gone("never seen", now)
    assert view.gone("never seen", now + 3600)
    assert not view.gone("new", float("-inf")), "the API server is away"


def test_pod_that_comes_after_all_is_not_gone() -> None:
    view = PodView()
    view.replace([])
    assert not view.gone("x", time.monotonic())
    view.upsert(record("x"))
    assert not view.gone("x", time.monotonic() + 3600)


async def test_a_change_wakes_those_who_wait() -> None:
    view = PodView()
    waiting = asyncio.create_task(view.changed(5))
    await asyncio.sleep(0)
    view.upsert(record("a"))
    assert await waiting
    assert not await view.changed(0.001)


def kube_pod(annotation: str | None, limit: str | None = None) -> Pod:
    limits = {} if limit is None else {KUBELET_RESOURCE: limit}
    return Pod(
        ObjectMeta(
            name="p", namespace="ns", uid="u", annotations={} if annotation is None else {ALLOCATION: annotation}
        ),
        PodSpec(
            node_name="n1",
            init_containers=(Container("i"), Container("s", restart_policy="Always")),
            containers=(Container("m", Resources(limits)),),
        ),
        PodStatus(phase="Pending"),
    )


def test_what_is_kept_of_a_pod() -> None:
    allocation = Allocation({"m": (Share("a", 1, 0),)})
    found = record_of(kube_pod(encode_allocation(allocation), "1"))
    assert found is not None
    assert list(found.kinds.items()) == [
        ("i", ContainerKind.INIT),
        ("s", ContainerKind.SIDECAR),
        ("m", ContainerKind.APP),
    ]
    assert (found.allocation, found.problem, found.wants, found.finished) == (allocation, "", {"m": 1}, False)


def test_pods_of_others_are_not_kept_and_ours_without_allocation_say_why() -> None:
    assert record_of(kube_pod(None)) is None
    found = record_of(kube_pod(None, "2"))
    assert found is not None
    assert "was not placed by hamipy's scheduler" in found.problem
