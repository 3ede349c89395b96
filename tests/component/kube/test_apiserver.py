"""The in-memory API server keeps the real one's promises; where it could not, a test of ours would prove nothing."""

import base64
import json
from typing import Any

import msgspec
import pytest

from hamipy.kube.client import APPLY_PATCH, KubeClient
from hamipy.kube.errors import ApiError, BadRequest, Conflict, Forbidden, Invalid, NotFound, ServerError
from hamipy.kube.objects import Pod
from hamipy.testing.apiserver import InMemoryApiServer, Refused

from .conftest import PODS, pod

IN_DEFAULT = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
NODES = "/api/v1/nodes"


async def read(client: KubeClient, path: str, **params: str) -> Any:
    return json.loads(await client.request("GET", path, params=params))


async def names(client: KubeClient, path: str, **params: str) -> list[str]:
    return [item["metadata"]["name"] for item in (await read(client, path, **params))["items"]]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"fieldSelector": "metadata.name=a"}, ["a"]),
        ({"fieldSelector": "spec.nodeName="}, ["c"]),
        ({"fieldSelector": "spec.nodeName!=,status.phase!=Failed"}, ["a"]),
        ({"fieldSelector": "spec.schedulerName==hamipy-scheduler"}, ["a", "c"]),
        ({"fieldSelector": "metadata.namespace=default"}, ["a", "b"]),
        ({"labelSelector": "app=x"}, ["a", "b"]),
        ({"labelSelector": "app in (y, z),tier!=back"}, ["c"]),
        ({"labelSelector": "tier"}, ["b"]),
        ({"labelSelector": "!tier,app notin (y)"}, ["a"]),
    ],
)
async def test_selectors_select(
    api: InMemoryApiServer, client: KubeClient, params: dict[str, str], expected: list[str]
) -> None:
    ours = {"schedulerName": "hamipy-scheduler"}
    for name, namespace, labels, spec, phase in (
        ("a", "default", {"app": "x"}, {**ours, "nodeName": "n1"}, "Running"),
        ("b", "default", {"app": "x", "tier": "back"}, {"nodeName": "n1"}, "Failed"),
        ("c", "other", {"app": "y"}, ours, "Pending"),
    ):
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        api.create(PODS, {"metadata": metadata, "spec": spec, "status": {"phase": phase}})
    assert await names(client, PODS, **params) == expected


async def test_an_unknown_field_selector_is_refused(client: KubeClient) -> None:
    with pytest.raises(BadRequest, match="field label not supported"):
        await names(client, PODS, fieldSelector="spec.mood=good")


async def test_a_namespace_shows_its_own_objects_only(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, pod("a"))
    api.create("/api/v1/namespaces/other/pods", {"metadata": {"name": "b"}})
    assert await names(client, IN_DEFAULT) == ["a"]
    assert await names(client, PODS) == ["a", "b"]


async def test_lists_of_built_in_types_hold_items_without_kind(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, pod("a"))
    api.create("/apis/hamipy.io/v1alpha1/nodedevices", {"metadata": {"name": "n1"}, "spec": {"serving": True}})
    pods = await read(client, PODS)
    assert pods["kind"] == "PodList"
    assert "kind" not in pods["items"][0]
    assert (await read(client, f"{IN_DEFAULT}/a"))["kind"] == "Pod"
    devices = await read(client, "/apis/hamipy.io/v1alpha1/nodedevices")
    assert devices["items"][0]["kind"] == "NodeDevices"


async def test_a_pod_is_completed_at_creation_and_its_status_is_not_the_creators(client: KubeClient) -> None:
    created = json.loads(await client.create(IN_DEFAULT, {**pod("a"), "status": {"phase": "Running"}}))
    assert created["status"]["phase"] == "Pending"
    assert created["spec"]["schedulerName"] == "default-scheduler"
    assert created["metadata"]["uid"]
    assert created["metadata"]["creationTimestamp"].endswith("Z")
    generated = json.loads(await client.create(IN_DEFAULT, {"metadata": {"generateName": "web-"}, "spec": {}}))
    assert generated["metadata"]["name"].startswith("web-")


async def test_status_and_the_rest_are_written_apart(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(NODES, {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "1"}}})
    change = {"metadata": {"labels": {"a": "b"}}, "status": {"capacity": {"hamipy.io/device": "4"}}}
    await client.merge_patch(f"{NODES}/n1/status", change)
    node = api.get(f"{NODES}/n1")
    assert node["status"]["capacity"] == {"cpu": "1", "hamipy.io/device": "4"}
    assert "labels" not in node["metadata"]
    await client.merge_patch(f"{NODES}/n1", {**change, "status": {"capacity": None}})
    node = api.get(f"{NODES}/n1")
    assert node["metadata"]["labels"] == {"a": "b"}
    assert "capacity" in node["status"]


async def test_patches_of_each_kind(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, {**pod("a"), "metadata": {"name": "a", "annotations": {"x": "1", "y/z": "2"}}})
    await client.merge_patch(f"{IN_DEFAULT}/a", {"metadata": {"annotations": {"x": None, "w": "3"}}})
    patch = [
        {"op": "test", "path": "/metadata/annotations/w", "value": "3"},
        {"op": "replace", "path": "/metadata/annotations/y~1z", "value": "4"},
        {"op": "add", "path": "/spec/containers/0/env", "value": [{"name": "A"}]},
        {"op": "add", "path": "/spec/containers/0/env/-", "value": {"name": "B"}},
        {"op": "remove", "path": "/metadata/annotations/w"},
    ]
    await client.request("PATCH", f"{IN_DEFAULT}/a", body=patch, content_type="application/json-patch+json")
    found = api.get(f"{IN_DEFAULT}/a")
    assert found["metadata"]["annotations"] == {"y/z": "4"}
    assert [e["name"] for e in found["spec"]["containers"][0]["env"]] == ["A", "B"]
    failing = [{"op": "test", "path": "/metadata/name", "value": "b"}]
    with pytest.raises(Invalid):
        await client.request("PATCH", f"{IN_DEFAULT}/a", body=failing, content_type="application/json-patch+json")
    with pytest.raises(ApiError, match="unknown format"):
        await client.request("PATCH", f"{IN_DEFAULT}/a", body={}, content_type="text/plain")


async def test_writes_hold_to_the_version_and_uid_they_name(api: InMemoryApiServer, client: KubeClient) -> None:
    lease = api.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    taken = {**lease, "spec": {"holderIdentity": "b"}}
    await client.request("PUT", f"{LEASES}/l", body=taken)
    with pytest.raises(Conflict, match="modified"):
        await client.request("PUT", f"{LEASES}/l", body=taken)
    with pytest.raises(Invalid, match="uid"):
        await client.merge_patch(f"{LEASES}/l", {"metadata": {"uid": "x"}})
    with pytest.raises(NotFound):
        await client.request("PUT", f"{LEASES}/m", body=taken)


async def test_a_write_that_changes_nothing_keeps_the_version(api: InMemoryApiServer, client: KubeClient) -> None:
    before = api.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    await client.merge_patch(f"{LEASES}/l", {"spec": {"holderIdentity": "a"}})
    assert api.get(f"{LEASES}/l") == before


async def test_apply_owns_what_it_says_and_conflicts_with_other_managers(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    def lease(**spec: object) -> dict[str, object]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l"},
            "spec": spec,
        }

    await client.apply(f"{LEASES}/l", lease(holderIdentity="a", leaseDurationSeconds=3))
    await client.apply(f"{LEASES}/l", lease(holderIdentity="a"))
    assert api.get(f"{LEASES}/l")["spec"] == {"holderIdentity": "a"}
    with pytest.raises(Conflict, match=r'conflict with "hamipy": \.spec\.holderIdentity'):
        await client.apply(f"{LEASES}/l", lease(holderIdentity="b"), field_manager="other", force=False)
    await client.apply(f"{LEASES}/l", lease(leaseDurationSeconds=5), field_manager="other", force=False)
    await client.apply(f"{LEASES}/l", lease(), field_manager="hamipy")
    assert api.get(f"{LEASES}/l")["spec"] == {"leaseDurationSeconds": 5}
    with pytest.raises(BadRequest, match="fieldManager"):
        await client.request("PATCH", f"{LEASES}/l", body=lease(), content_type=APPLY_PATCH)
    with pytest.raises(BadRequest, match="invalid object type"):
        await client.apply(f"{LEASES}/l", {"kind": "Pod", "apiVersion": "v1"})


async def test_an_undeclared_field_is_refused_by_apply(client: KubeClient) -> None:
    body = {
        "apiVersion": "hamipy.io/v1alpha1",
        "kind": "NodeDevices",
        "metadata": {"name": "n1"},
        "spec": {"serving": True, "mood": "good"},
    }
    with pytest.raises(ServerError, match=r"spec\.mood: field not declared in schema"):
        await client.apply("/apis/hamipy.io/v1alpha1/nodedevices/n1", body)


async def test_a_running_pod_terminates_and_a_waiting_one_goes_at_once(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    for name, spec in (("bound", {"nodeName": "n1"}), ("waiting", {}), ("done", {"nodeName": "n1"})):
        api.create(IN_DEFAULT, pod(name, **spec))
    api.patch(f"{IN_DEFAULT}/done", {"status": {"phase": "Succeeded"}})
    for name in ("bound", "waiting", "done"):
        await client.delete(f"{IN_DEFAULT}/{name}")
    assert await names(client, PODS) == ["bound"]
    assert (await client.get(f"{IN_DEFAULT}/bound", Pod)).metadata.deletion_timestamp
    with pytest.raises(Conflict, match="is being deleted"):
        await client.bind("default", "bound", api.get(f"{IN_DEFAULT}/bound")["metadata"]["uid"], "n2", {}, timeout=5)
    api.finish_deletion("default", "bound")
    assert await names(client, PODS) == []


async def test_deletion_without_grace_is_at_once(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(IN_DEFAULT, pod("a", nodeName="n1"))
    await client.delete(f"{IN_DEFAULT}/a", grace_period=0)
    api.graceful = False
    api.create(IN_DEFAULT, pod("b", nodeName="n1"))
    await client.create(f"{IN_DEFAULT}/b/eviction", {"metadata": {"name": "b"}})
    assert api.list(PODS) == []


async def test_a_finalizer_holds_an_object_until_it_is_taken_off(api: InMemoryApiServer, client: KubeClient) -> None:
    api.create(NODES, {"metadata": {"name": "n1", "finalizers": ["x"]}})
    await client.delete(f"{NODES}/n1")
    assert api.get(f"{NODES}/n1")["metadata"]["deletionTimestamp"]
    await client.merge_patch(f"{NODES}/n1", {"metadata": {"finalizers": None}})
    with pytest.raises(Refused):
        api.get(f"{NODES}/n1")


async def test_admission_changes_and_refuses_new_pods(api: InMemoryApiServer, client: KubeClient) -> None:
    async def admit(review: dict[str, Any]) -> dict[str, Any]:
        request = review["request"]
        answer: dict[str, Any] = {"uid": request["uid"], "allowed": request["object"]["metadata"]["name"] != "bad"}
        if answer["allowed"]:
            patch = [{"op": "replace", "path": "/spec/schedulerName", "value": "hamipy-scheduler"}]
            answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
        else:
            answer["status"] = {"code": 403, "message": "bad is bad"}
        return {"response": answer}

    api.admission = admit
    await client.create(IN_DEFAULT, pod("good"))
    assert (await client.get(f"{IN_DEFAULT}/good", Pod)).spec.scheduler_name == "hamipy-scheduler"
    with pytest.raises(Forbidden, match="denied the request: bad is bad"):
        await client.create(IN_DEFAULT, pod("bad"))

    async def broken(review: dict[str, Any]) -> dict[str, Any]:
        raise ConnectionRefusedError("nobody there")

    api.admission = broken
    with pytest.raises(ServerError, match=r"failed calling webhook.*nobody there"):
        await client.create(IN_DEFAULT, pod("other"))
    assert await names(client, PODS) == ["good"]


async def test_twenty_thousand_pods_are_served_as_loaded(api: InMemoryApiServer, client: KubeClient) -> None:
    assert api.preload(PODS, (msgspec.json.encode(pod(f"p{i}", nodeName="n1")) for i in range(20_000))) == 20_000
    count = 0
    async for page in client.pages(PODS, Pod, params={"fieldSelector": "spec.nodeName=n1"}):
        count += len(page.items)
    assert count == 20_000


@pytest.mark.parametrize("path", ["/apis/example.org/v1/things", "/api/v1/things/x", "/somewhere"])
async def test_what_is_not_served_is_not_found(client: KubeClient, path: str) -> None:
    with pytest.raises(NotFound):
        await client.request("GET", path)


async def test_a_wrong_method_or_body_is_refused(client: KubeClient) -> None:
    with pytest.raises(ApiError, match="405"):
        await client.request("PUT", IN_DEFAULT, body=b"{}")
    with pytest.raises(BadRequest):
        await client.create(IN_DEFAULT, b"{")
