"""What our components rely on, held to the real API server and to the one in memory alike.

A pretend server that promises something else than the real one would make every test on top of it worthless.
"""

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest

from hamipy.core.model import Device, Inventory, Link, Model, Nic, Partition
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import ApiError, BadRequest, Conflict, Gone, Invalid, NotFound, ServerError
from hamipy.kube.events import EventRecorder
from hamipy.kube.lease import LeaseView, lease_path, leases_path
from hamipy.kube.nodedevices import PATH, NodeDevices, apply_inventory, manifest
from hamipy.kube.objects import Lease, Node, ObjectReference, Pod
from hamipy.kube.reflector import Reflector
from tests.component.kube.conftest import Seen, eventually

NODES = "/api/v1/nodes"
NOBODY = "00000000-0000-0000-0000-000000000000"
INVENTORY = Inventory(
    node="contract",
    families=("hamipy.io", "nvidia.com"),
    allocation_version=1,
    topology_policy="single-numa-node",
    models={"A100": Model((Partition("1g.5gb", 5 << 30, 14, {"slices": 1}, (1, 2, 4)),), {"slices": 7})},
    devices=tuple(
        Device(f"GPU-{i}", i, "mock", "A100", 80 << 30, 10, numa=i, links={"GPU-9": Link("NV12", 300.5)})
        for i in range(2)
    ),
    nics=(Nic("mlx5_0", "rdma", 0, "0000:02:00.0", {"GPU-0": "PIX"}),),
    problems={"acme": "no driver"},
)


def pods_of(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def pod(name: str, **spec: object) -> dict[str, Any]:
    container = {"name": "main", "image": "local/none:1", "resources": {"limits": {"hamipy.io/device": "1"}}}
    return {
        "metadata": {"name": name},
        "spec": {"schedulerName": "hamipy-scheduler", "containers": [container], **spec},
    }


async def create(client: KubeClient, namespace: str, name: str, **spec: object) -> Pod:
    await client.create(pods_of(namespace), pod(name, **spec))
    return await client.get(f"{pods_of(namespace)}/{name}", Pod)


async def test_a_new_pod_is_pending_and_unbound(client: KubeClient, namespace: str) -> None:
    made = await create(client, namespace, "a")
    assert (made.status.phase, made.spec.node_name) == ("Pending", "")
    assert made.metadata.uid
    assert made.metadata.creation_timestamp
    with pytest.raises(Conflict, match="already exists"):
        await client.create(pods_of(namespace), pod("a"))
    with pytest.raises(NotFound):
        await client.get(f"{pods_of(namespace)}/b", Pod)


async def test_a_binding_writes_node_and_annotations_together(client: KubeClient, namespace: str) -> None:
    made = await create(client, namespace, "a")
    await client.bind(namespace, "a", made.metadata.uid, "n1", {"hamipy.io/allocation": "{}"}, timeout=10)
    bound = await client.get(f"{pods_of(namespace)}/a", Pod)
    assert bound.spec.node_name == "n1"
    assert bound.metadata.annotations["hamipy.io/allocation"] == "{}"


async def test_bindings_that_come_too_late_conflict(client: KubeClient, namespace: str) -> None:
    made = await create(client, namespace, "a")
    with pytest.raises(Conflict, match="UID in precondition"):
        await client.bind(namespace, "a", NOBODY, "n1", {}, timeout=10)
    await client.bind(namespace, "a", made.metadata.uid, "n1", {}, timeout=10)
    with pytest.raises(Conflict, match="already assigned"):
        await client.bind(namespace, "a", made.metadata.uid, "n1", {}, timeout=10)
    with pytest.raises(NotFound):
        await client.bind(namespace, "none", made.metadata.uid, "n1", {}, timeout=10)


async def test_deletion_waits_for_the_node_only_where_there_is_one(client: KubeClient, namespace: str) -> None:
    path = pods_of(namespace)
    waiting = await create(client, namespace, "waiting")
    bound = await create(client, namespace, "bound")
    await client.bind(namespace, "bound", bound.metadata.uid, "n1", {}, timeout=10)
    with pytest.raises(Conflict):
        await client.delete(f"{path}/waiting", uid=bound.metadata.uid)
    await client.delete(f"{path}/waiting", uid=waiting.metadata.uid)
    await client.delete(f"{path}/bound")
    with pytest.raises(NotFound):
        await client.get(f"{path}/waiting", Pod)
    assert (await client.get(f"{path}/bound", Pod)).metadata.deletion_timestamp
    await client.delete(f"{path}/bound", grace_period=0)
    with pytest.raises(NotFound):
        await client.get(f"{path}/bound", Pod)


async def test_a_reflector_follows_a_selection(client: KubeClient, namespace: str) -> None:
    made = await create(client, namespace, "a")
    seen = Seen()
    selector = f"spec.schedulerName=hamipy-scheduler,metadata.namespace={namespace}"
    reflector = Reflector(client, "/api/v1/pods", Pod, seen, field_selector=selector, name="pods")
    task = asyncio.create_task(reflector.run())
    await reflector.wait_synced()
    await create(client, namespace, "b")
    await create(client, namespace, "other", schedulerName="default-scheduler")
    await client.bind(namespace, "a", made.metadata.uid, "n1", {}, timeout=10)
    await client.delete(f"{pods_of(namespace)}/b")
    await eventually(lambda: seen.calls[-1] == ("remove", "b"))
    terminating = ("upsert", "b")  # a deletion is seen in two steps, even where the second follows at once
    assert seen.calls == [("replace", ["a"]), ("upsert", "b"), ("upsert", "a"), terminating, ("remove", "b")]
    await client.merge_patch(f"{pods_of(namespace)}/a", {"metadata": {"annotations": {"x": "y"}}})
    await reflector.relist()
    latest = await client.get(f"{pods_of(namespace)}/a", Pod)
    assert seen.now == {"a": latest.metadata.resource_version}
    assert reflector.errors == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_object_that_leaves_the_selection_is_removed(client: KubeClient, namespace: str) -> None:
    made = await create(client, namespace, "a")
    seen = Seen()
    reflector = Reflector(client, pods_of(namespace), Pod, seen, field_selector="spec.nodeName=", name="pods")
    task = asyncio.create_task(reflector.run())
    await reflector.wait_synced()
    before = reflector.resource_version
    await client.bind(namespace, "a", made.metadata.uid, "n1", {}, timeout=10)
    await eventually(lambda: seen.calls[-1] == ("remove", "a"))
    assert int(reflector.resource_version) > int(before), (
        "the removal carries its own version, not the object's old one"
    )
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_pages_are_of_one_moment(client: KubeClient, namespace: str) -> None:
    for i in range(5):
        await create(client, namespace, f"p{i}")
    names: list[str] = []
    versions: set[str] = set()
    async for page in client.pages(pods_of(namespace), Pod, limit=2):
        if not names:
            await create(client, namespace, "p00-late")
        names += [p.metadata.name for p in page.items]
        versions.add(page.resource_version)
    assert names == [f"p{i}" for i in range(5)]
    assert len(versions) == 1


async def test_an_empty_list_has_a_version(client: KubeClient, namespace: str) -> None:
    (page,) = [p async for p in client.pages(pods_of(namespace), Pod)]
    assert page.items == []
    assert int(page.resource_version) > 0


async def test_selectors_the_server_does_not_know_are_refused(client: KubeClient, namespace: str) -> None:
    with pytest.raises(BadRequest):
        await client.request("GET", pods_of(namespace), params={"fieldSelector": "spec.mood=good"})


@pytest.mark.parametrize("version", ["abc", "-1"])
async def test_a_version_that_is_none_is_refused(client: KubeClient, namespace: str, version: str) -> None:
    with pytest.raises(ApiError) as caught:
        await anext(client.watch(pods_of(namespace), Pod, resource_version=version))
    assert not isinstance(caught.value, Gone)


async def test_status_and_the_rest_are_written_apart(client: KubeClient, namespace: str) -> None:
    path = f"{NODES}/{namespace}"
    await client.create(NODES, {"metadata": {"name": namespace}})
    change = {"metadata": {"labels": {"a": "b"}}, "status": {"capacity": {"hamipy.io/device": "4"}}}
    await client.merge_patch(path, change)
    node = await client.get(path, Node)
    assert node.metadata.labels["a"] == "b"
    assert node.status.capacity == {}
    await client.merge_patch(f"{path}/status", {"status": {"capacity": {"hamipy.io/device": "4"}}})
    assert (await client.get(path, Node)).status.capacity == {"hamipy.io/device": "4"}
    await client.delete(path)


async def test_a_write_that_changes_nothing_keeps_the_version(client: KubeClient, namespace: str) -> None:
    made = await create(client, namespace, "a")
    await client.merge_patch(f"{pods_of(namespace)}/a", {"metadata": {"annotations": {}}})
    again = await client.get(f"{pods_of(namespace)}/a", Pod)
    assert again.metadata.resource_version == made.metadata.resource_version


async def test_patches_hold_to_the_uid_and_version_they_name(client: KubeClient, namespace: str) -> None:
    made = await create(client, namespace, "a")
    path, annotations = f"{pods_of(namespace)}/a", {"annotations": {"hamipy.io/retry": "1"}}
    with pytest.raises(Invalid):
        await client.merge_patch(path, {"metadata": {"uid": NOBODY, **annotations}})
    await client.merge_patch(path, {"metadata": {"uid": made.metadata.uid, **annotations}})
    stale = {"resourceVersion": made.metadata.resource_version, "annotations": {"x": "y"}}
    with pytest.raises(Conflict):
        await client.merge_patch(path, {"metadata": stale})


async def test_a_pod_cannot_be_moved_by_a_patch(client: KubeClient, namespace: str) -> None:
    await create(client, namespace, "a")
    with pytest.raises(Invalid):
        await client.merge_patch(f"{pods_of(namespace)}/a", {"spec": {"nodeName": "n1"}})


@pytest.mark.usefixtures("with_crd")
async def test_an_inventory_is_published_unchanged_and_once(client: KubeClient) -> None:
    await client.create(NODES, {"metadata": {"name": "contract"}})
    uid = (await client.get(f"{NODES}/contract", Node)).metadata.uid
    first = await apply_inventory(client, INVENTORY, uid)
    assert first.inventory() == INVENTORY
    again = await apply_inventory(client, INVENTORY, uid)
    assert again.metadata.resource_version == first.metadata.resource_version
    fewer = Inventory("contract", devices=INVENTORY.devices[:1], serving=False)
    await apply_inventory(client, fewer, uid)
    assert (await client.get(f"{PATH}/contract", NodeDevices)).inventory() == fewer
    (page,) = [p async for p in client.pages(PATH, NodeDevices)]
    assert [item.inventory() for item in page.items] == [fewer]
    await client.delete(f"{NODES}/contract")
    with contextlib.suppress(NotFound):
        await client.delete(f"{PATH}/contract")


@pytest.mark.usefixtures("with_crd")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "serving"), "yes"),
        (("spec", "devices", 0, "memory"), -1),
        (("spec", "devices", 0, "memory"), 2**51),
        (("spec", "devices", 0, "cores"), 101),
        (("spec", "devices", 0, "slots"), 0),
        (("spec", "devices", 0, "numa"), -2),
        (("spec", "devices", 0, "id"), "a::b"),
        (("spec", "devices", 0, "id"), "a b"),
        (("spec", "devices", 0, "id"), "x" * 58),
        (("spec", "devices", 0, "id"), None),
        (("spec", "serving"), None),
    ],
)
async def test_the_schema_refuses_what_contradicts_it(client: KubeClient, path: tuple[Any, ...], value: object) -> None:
    obj: Any = _plain(manifest(INVENTORY, NOBODY))
    at = obj
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    with pytest.raises(ApiError) as caught:
        await client.apply(f"{PATH}/contract", obj, field_manager="contract")
    assert isinstance(caught.value, Invalid | ServerError | BadRequest)
    with pytest.raises(NotFound):
        await client.get(f"{PATH}/contract", NodeDevices)


@pytest.mark.usefixtures("with_crd")
async def test_a_field_nobody_declared_is_refused(client: KubeClient) -> None:
    obj: Any = _plain(manifest(INVENTORY, NOBODY))
    obj["spec"]["devices"][0]["mood"] = "good"
    with pytest.raises(ServerError, match=r"mood: field not declared in schema"):
        await client.apply(f"{PATH}/contract", obj)


@pytest.mark.usefixtures("with_crd")
@pytest.mark.parametrize("identity", ["GPU-8d5f", "a:b", ":a", "a:", "0000:01:00.0"])
async def test_the_schema_takes_every_id_that_the_model_takes(client: KubeClient, identity: str) -> None:
    inventory = Inventory("ids", devices=(Device(identity, 0, "mock", "X", 1, 1),))
    applied = await apply_inventory(client, inventory, NOBODY)
    assert applied.inventory() == inventory
    await client.delete(f"{PATH}/ids")


async def test_an_event_is_accepted(client: KubeClient, namespace: str) -> None:
    made = await create(client, namespace, "a")
    recorder = EventRecorder(client, "hamipy-contract")
    about = ObjectReference("v1", "Pod", "a", made.metadata.uid, namespace)
    assert await recorder.emit(about, "Tested", "x" * 2000, "Warning")
    events = json.loads(await client.request("GET", f"/api/v1/namespaces/{namespace}/events"))["items"]
    assert [(e["reason"], e["type"], e["involvedObject"]["uid"]) for e in events] == [
        ("Tested", "Warning", made.metadata.uid)
    ]


async def test_a_lease_is_followed(client: KubeClient, namespace: str) -> None:
    def lease(holder: str, renewed: str) -> dict[str, Any]:
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 3, "renewTime": renewed}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": spec}

    with pytest.raises(NotFound):
        await client.get(lease_path(namespace, "l"), Lease)
    await client.create(leases_path(namespace), lease("pod-a_1", "2026-01-01T00:00:00.000000Z"))
    view = LeaseView("l")
    reflector: Reflector[Lease] = Reflector(
        client, leases_path(namespace), Lease, view, field_selector="metadata.name=l", name="lease"
    )
    task = asyncio.create_task(reflector.run())
    await reflector.wait_synced()
    assert view.holder == "pod-a_1"
    assert not view.held_by("pod-a_", within=60, same_clock=False)
    await client.merge_patch(lease_path(namespace, "l"), lease("pod-a_1", "2026-01-01T00:00:01.000000Z"))
    await eventually(lambda: view.held_by("pod-a_", within=60, same_clock=False))
    await client.merge_patch(lease_path(namespace, "l"), lease("pod-b_1", "2026-01-01T00:00:02.000000Z"))
    await eventually(lambda: view.holder == "pod-b_1")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _plain(value: Any) -> Any:
    """Tuples as JSON has them."""
    return msgspec.json.decode(msgspec.json.encode(value))
