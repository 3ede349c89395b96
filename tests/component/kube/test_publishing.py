"""NodeDevices and Events as the server stores them."""

import msgspec
import pytest

from hamipy.core.model import Device, Inventory, Link
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import Invalid, NotFound
from hamipy.kube.events import EventRecorder, emit
from hamipy.kube.nodedevices import PATH, NodeDevices, apply_crd, apply_inventory
from hamipy.kube.objects import ObjectReference
from hamipy.testing.apiserver import InMemoryApiServer

EVENTS = "/api/v1/namespaces/default/events"
POD = ObjectReference("v1", "Pod", "p", "u", "default")


def device(name: str, **changes: object) -> Device:
    return msgspec.structs.replace(Device(name, 0, "mock", "T4", 14 << 30, 4), **changes)


async def read(client: KubeClient, node: str) -> NodeDevices | None:
    try:
        return await client.get(f"{PATH}/{node}", NodeDevices)
    except NotFound:
        return None


@pytest.fixture
def uid(api: InMemoryApiServer) -> str:
    return str(api.create("/api/v1/nodes", {"metadata": {"name": "n1"}})["metadata"]["uid"])


async def test_an_inventory_is_published_and_read_back(api: InMemoryApiServer, client: KubeClient, uid: str) -> None:
    inventory = Inventory("n1", devices=(device("a", links={"b": Link("NV12", 300.0)}),))
    published = await apply_inventory(client, inventory, uid)
    assert published.inventory() == inventory
    found = await read(client, "n1")
    assert found is not None
    assert found.inventory() == inventory
    assert api.get(f"{PATH}/n1")["metadata"]["ownerReferences"][0]["uid"] == uid
    assert client.writes == {"patch nodedevices": 1}


async def test_publishing_the_same_again_changes_nothing(client: KubeClient, uid: str) -> None:
    inventory = Inventory("n1", devices=(device("a"),))
    first = await apply_inventory(client, inventory, uid)
    second = await apply_inventory(client, inventory, uid)
    assert first.metadata.resource_version == second.metadata.resource_version


async def test_what_is_no_longer_published_goes(client: KubeClient, uid: str) -> None:
    before = Inventory("n1", devices=(device("a", healthy=False, reason="hot"), device("b")), problems={"x": "y"})
    after = Inventory("n1", devices=(device("a"),), serving=False)
    await apply_inventory(client, before, uid)
    published = await apply_inventory(client, after, uid)
    assert published.inventory() == after


async def test_an_object_goes_with_its_node_and_comes_back_with_the_new_one(
    api: InMemoryApiServer, client: KubeClient, uid: str
) -> None:
    inventory = Inventory("n1", devices=(device("a"),))
    await apply_inventory(client, inventory, uid)
    api.delete("/api/v1/nodes/n1")
    assert await read(client, "n1") is None
    new = api.create("/api/v1/nodes", {"metadata": {"name": "n1"}})["metadata"]["uid"]
    await apply_inventory(client, inventory, uid)
    assert await read(client, "n1") is None, "the owner's uid is stale"
    await apply_inventory(client, inventory, new)
    assert await read(client, "n1") is not None


async def test_the_schema_holds_at_the_server(client: KubeClient, uid: str) -> None:
    with pytest.raises(Invalid, match=r"spec\.devices\[0\]\.slots"):
        await apply_inventory(client, Inventory("n1", devices=(device("a", slots=0),)), uid)


async def test_the_definition_is_applied_before_objects_are(client: KubeClient) -> None:
    async with InMemoryApiServer(crds=False) as bare, KubeClient(bare.config()) as to_bare:
        with pytest.raises(NotFound):
            await apply_inventory(to_bare, Inventory("n1"), "uid")
        await apply_crd(to_bare)
        await apply_crd(to_bare)
        assert isinstance(await apply_inventory(to_bare, Inventory("n1"), "uid"), NodeDevices)


async def test_an_event_tells_who_says_what_about_what(api: InMemoryApiServer, client: KubeClient) -> None:
    assert await emit(client, POD, "Refused", "no room on device a", "Warning", component="hamipy-node")
    (event,) = api.list(EVENTS)
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "p",
        "uid": "u",
        "namespace": "default",
    }
    assert (event["reason"], event["message"], event["type"]) == ("Refused", "no room on device a", "Warning")
    assert event["source"]["component"] == "hamipy-node"
    assert event["count"] == 1


async def test_the_same_event_is_sent_once_and_then_with_its_count(
    api: InMemoryApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("hamipy.kube.events.time.monotonic", lambda: now[0])
    assert await emit(client, POD, "Refused", "no room", component="c")
    for _ in range(5):
        assert not await emit(client, POD, "Refused", "no room", component="c")
    assert await emit(client, POD, "Refused", "another reason", component="c")
    now[0] += 301
    assert await emit(client, POD, "Refused", "no room", component="c")
    assert [e["count"] for e in api.list(EVENTS) if e["message"] == "no room"] in ([1, 6], [6, 1])
    assert client.writes == {"create events": 3}


async def test_a_flood_of_events_is_limited(api: InMemoryApiServer, client: KubeClient) -> None:
    recorder = EventRecorder(client, "c")
    for i in range(100):
        await recorder.emit(POD, "Reason", f"message {i}")
    assert recorder.sent + recorder.suppressed == 100
    assert recorder.sent < 50
    assert len(api.list(EVENTS)) == recorder.sent


async def test_an_event_that_cannot_be_sent_stops_nobody(api: InMemoryApiServer, client: KubeClient) -> None:
    api.faults.add("create", "*/events", status=403, times=None)
    recorder = EventRecorder(client, "c")
    assert not await recorder.emit(POD, "Reason", "message")
    assert recorder.failed == 1


async def test_events_about_nodes_stand_in_the_default_namespace_and_long_messages_are_cut(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    await emit(client, ObjectReference("v1", "Node", "n1", "n1"), "Reason", "x" * 5000, component="c")
    (event,) = api.list(EVENTS)
    assert len(event["message"]) == 1024
