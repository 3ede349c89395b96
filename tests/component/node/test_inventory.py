"""What the node publishes is what it has, and whether it serves."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hamipy.core.model import Device
from hamipy.core.vendor import Discovered, Vendor
from hamipy.node.discovery import Discovery
from hamipy.node.metrics import Metrics
from tests.component.node.conftest import NODE, Node

PATH = f"/apis/hamipy.io/v1alpha1/nodedevices/{NODE}"


async def test_object_is_owned_by_the_node_and_has_its_devices(node: Node) -> None:
    await node.start()
    found = node.api.get(PATH)
    (owner,) = found["metadata"]["ownerReferences"]
    assert owner["uid"] == node.api.get(f"/api/v1/nodes/{NODE}")["metadata"]["uid"]
    assert [d["id"] for d in found["spec"]["devices"]] == [d.id for d in node.devices]


async def test_sickness_is_published_with_its_reason_and_taken_back(node: Node) -> None:
    await node.start()
    health = node.directory / "s" / "mock-health.yaml"
    health.write_text("1: too hot\n")
    await node.until(lambda: node.api.get(PATH)["spec"]["devices"][1].get("reason") == "too hot")
    health.unlink()
    await node.until(lambda: "reason" not in node.api.get(PATH)["spec"]["devices"][1])


async def test_deleted_object_comes_back(node: Node) -> None:
    await node.start()
    node.api.delete(PATH)
    await node.until(lambda: node.object is not None)


async def test_object_changed_by_somebody_else_is_put_right(node: Node) -> None:
    await node.start()
    node.api.patch(PATH, {"spec": {"devices": []}})
    await node.until(lambda: len(node.api.get(PATH)["spec"]["devices"]) == 2)


async def test_object_follows_a_replaced_node(node: Node) -> None:
    await node.start()
    node.api.delete(f"/api/v1/nodes/{NODE}")
    await node.until(lambda: node.object is None)
    node.add_node_object()
    uid = node.api.get(f"/api/v1/nodes/{NODE}")["metadata"]["uid"]
    await node.until(lambda: node.object and node.object["metadata"]["ownerReferences"][0]["uid"] == uid)


async def test_nothing_is_published_again_and_again(node: Node) -> None:
    await node.start()
    api, counters = node.daemon._api, node.daemon.metrics.counters
    assert api is not None
    await node.until(lambda: api.published)
    before = counters["inventory_writes"]

    def looked(beat: str) -> bool:
        seen = api._node_object.item
        return seen is not None and seen.metadata.annotations.get("beat") == beat and not api._kicked.is_set()

    for beat in "abcde":
        node.api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {"beat": beat}}})
        await node.until(lambda beat=beat: looked(beat))  # type: ignore[misc]
    (node.directory / "s" / "mock-health.yaml").write_text("1: too hot\n")
    await node.until(lambda: node.api.get(PATH)["spec"]["devices"][1].get("reason") and api.published)
    assert counters["inventory_writes"] == before + 1


async def test_node_without_a_kubelet_does_not_serve(node: Node) -> None:
    await node.start()
    await node.kubelet.stop()
    await node.until(lambda: not node.serving)
    await node.kubelet.start()
    await node.until(lambda: node.serving)


async def test_stopping_daemon_says_so_before_its_socket_closes(node: Node) -> None:
    await node.start(drain_limit=0.3)
    seen: list[bool] = []

    async def follow() -> None:
        while node.kubelet.registered:
            seen.append(node.serving)
            await asyncio.sleep(0.005)

    task = asyncio.create_task(follow())
    await node.stop()
    await task
    assert seen[-1] is False


async def test_stopping_daemon_waits_for_pods_that_are_bound_already(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hamipy.node.daemon._SETTLE", 0.0)
    await node.start(drain_limit=10.0)
    pod = node.bind("p", {"main": (node.share(),)})
    await node.until(lambda: node.daemon.pods.get(pod["metadata"]["uid"]))
    looks: list[bool] = []
    unadmitted = node.daemon._unadmitted

    def look() -> bool:
        looks.append(unadmitted())
        return looks[-1]

    monkeypatch.setattr(node.daemon, "_unadmitted", look)
    stop = asyncio.create_task(node.stop())
    await until(lambda: len(looks) > 2)
    assert not node.serving
    assert not stop.done()
    await node.kubelet.admit(pod)
    await stop


async def test_published_once_the_definition_is_there(node: Node) -> None:
    node.api.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodedevices.hamipy.io")
    node.start_daemon()
    await node.kubelet.wait_for_devices(32)
    await node.until(lambda: node.daemon.metrics.counters["inventory_failures"])
    from hamipy.kube.nodedevices import crd_manifest

    node.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd_manifest())
    await node.until(lambda: node.serving)


@pytest.mark.parametrize("settings", [{"mock_profile": "t5"}, {"vendors": ("acme",)}])
async def test_what_a_vendor_lacks_is_published_as_one_sentence(node: Node, settings: dict[str, object]) -> None:
    node.start_daemon(**settings)
    await node.until(lambda: node.object and node.object["spec"].get("problems"))
    assert node.object is not None
    (problem,) = node.object["spec"]["problems"].values()
    assert "there are a100x8" in problem or problem == "not installed; installed are mock"


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the daemon's parts tell nobody but each other
            await asyncio.sleep(0.01)


def device(name: str, vendor: str) -> Device:
    return Device(id=name, index=0, vendor=vendor, model="M", memory=1, slots=1)


def discovery(
    directory: Path, changed: Callable[[], None] = lambda: None, limit: float = 0.2, **vendors: Vendor
) -> Discovery:
    return Discovery(
        vendors,
        {},
        node="n1",
        state=directory,
        boot="b",
        limit=0.2,
        interval=0.05,
        changed=lambda: None,
        metrics=Metrics(),
    )


async def test_vendor_that_hangs_is_off_by_name_and_the_others_go_on(directory: Path) -> None:
    released = threading.Event()

    def hang() -> Discovered:
        released.wait()
        return Discovered((device("late", "slow"),))

    slow = Vendor(name="slow", discover=hang)
    quick = Vendor(name="quick", discover=lambda: Discovered((device("q", "quick"),)))
    found = discovery(directory, slow=slow, quick=quick)
    task = asyncio.create_task(found.run())
    async with asyncio.timeout(5):
        await found.complete.wait()
        assert found.inventory.problems == {"slow": "discover took longer than 0.2 s"}
        assert [d.id for d in found.inventory.devices] == ["q"]
        released.set()
        await until(lambda: len(found.inventory.devices) == 2)
    assert found.inventory.problems == {}
    task.cancel()


async def test_vendor_that_raises_keeps_its_devices_as_sick(directory: Path) -> None:
    broken = threading.Event()

    def discover() -> Discovered:
        if broken.is_set():
            raise RuntimeError("driver mismatch")
        return Discovered((device("a", "acme"),))

    found = discovery(directory, acme=Vendor(name="acme", discover=discover))
    task = asyncio.create_task(found.run())
    async with asyncio.timeout(5):
        await found.complete.wait()
        assert found.inventory.devices[0].healthy
        broken.set()
        await until(lambda: not found.inventory.devices[0].healthy)
        assert found.inventory.devices[0].reason == "vendor acme: discover failed: RuntimeError: driver mismatch"
        broken.clear()
        await until(lambda: found.inventory.devices[0].healthy)
    task.cancel()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "answered NoneType, not Discovered"),
        (Discovered((device("a b", "acme"),)), "without blanks"),
        (Discovered((device("a", "acme"), device("a", "acme"))), "stands twice"),
        (Discovered((device("a", "other"),)), "said to be of vendor 'other'"),
        (Discovered(problem="no driver"), "no driver"),
        (Discovered(("x",)), "something else than devices"),  # type: ignore[arg-type]
    ],
)
async def test_answer_against_the_contract_switches_the_vendor_off(directory: Path, answer: object, why: str) -> None:
    found = discovery(directory, acme=Vendor(name="acme", discover=lambda: answer))  # type: ignore[arg-type]
    task = asyncio.create_task(found.run())
    async with asyncio.timeout(5):
        await found.complete.wait()
    assert why in found.inventory.problems["acme"]
    assert found.inventory.devices == ()
    task.cancel()


async def test_watch_that_raises_is_replaced_by_asking(directory: Path) -> None:
    count = 0

    def discover() -> Discovered:
        nonlocal count
        count += 1
        return Discovered((device(f"d{count}", "acme"),))

    def watch(changed: Callable[[], None], stopped: Callable[[], bool]) -> None:
        raise OSError("no such file")

    found = discovery(directory, acme=Vendor(name="acme", discover=discover, watch=watch))
    task = asyncio.create_task(found.run())
    await until(lambda: count >= 3)
    task.cancel()
