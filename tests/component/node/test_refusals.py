"""What is not ours, or has no room, does not start; its owner is told why, and nothing is left behind."""

import msgspec
import pytest

from hamipy.core.model import Share
from hamipy.core.vendor import ContainerEdits, ContainerShares, Vendor
from hamipy.testing.kubelet import CreateContainerError
from tests.component.node.conftest import Node, container


async def refused(node: Node, pod: dict[str, object], why: str, event: bool = True) -> None:
    admitted = await node.kubelet.admit(pod)
    with pytest.raises(CreateContainerError, match=why) as caught:
        await node.kubelet.start_container(admitted.uid, "main")
    assert node.specs() == []
    if event:
        await node.until(lambda: any(message in str(caught.value) for message in node.events()))


async def test_pod_without_allocation(node: Node) -> None:
    await node.start()
    await refused(node, node.bind("p", None, containers=(container("main"),)), "has no allocation.*hamipy's scheduler")


async def test_allocation_of_an_unknown_version(node: Node) -> None:
    await node.start()
    pod = node.bind("p", None, containers=(container("main"),), annotation='{"v":2,"containers":{}}')
    await refused(node, pod, "has version 2, this build reads 1: upgrade the reader")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"v":1}', '{"v":1,"containers":{"main":[]}}', '{"v":1,"containers":3}']
)
async def test_allocation_that_is_none(node: Node, text: str) -> None:
    await node.start()
    await refused(node, node.bind("p", None, containers=(container("main"),), annotation=text), "allocation")


async def test_device_of_another_node(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (Share("mock-n2-00000000-0", 1, 0),)})
    await refused(node, pod, "device mock-n2-00000000-0 is not on node n1")


async def test_container_that_the_allocation_does_not_name(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"other": (node.share(),)}, containers=(container("main"),))
    await refused(node, pod, "container main: is not in the pod's allocation, which has other")


async def test_count_other_than_allocated(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)}, containers=(container("main", 2),))
    await refused(node, pod, "the kubelet gave 2 ids, the allocation has 1 devices")


async def test_pod_that_the_api_server_does_not_know(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)})
    node.api.delete("/api/v1/namespaces/default/pods/p")
    await refused(node, pod, "is not on this node, says the API server", event=False)


async def test_device_without_room_beside_pods_bound_before(node: Node) -> None:
    await node.start()
    first = node.bind("first", {"main": (node.share(0, 10),)})
    second = node.bind("second", {"main": (node.share(0, 10),)})
    admitted = await node.kubelet.admit(second)
    with pytest.raises(CreateContainerError, match="has no room for it beside default/first"):
        await node.kubelet.start_container(admitted.uid, "main")
    await node.kubelet.run_pod(first)
    node.gone(first)
    assert (await node.kubelet.start_until(admitted.uid, "main")).limits["pod"] == "default/second"


async def test_sick_device_takes_no_new_container_but_restarts_one(node: Node) -> None:
    await node.start()
    running = node.bind("running", {"main": (node.share(0),)})
    started = await node.kubelet.run_pod(running)
    new = node.bind("new", {"main": (node.share(0),)})
    admitted = await node.kubelet.admit(new)
    health = node.directory / "s" / "mock-health.yaml"
    health.write_text("0: fell off the bus\n")
    await node.until(lambda: not node.devices[0].healthy)
    with pytest.raises(CreateContainerError, match="is sick: fell off the bus"):
        await node.kubelet.start_container(admitted.uid, "main")
    assert await node.kubelet.start_container(running["metadata"]["uid"], "main") == started["main"]
    health.unlink()
    assert (await node.kubelet.start_until(admitted.uid, "main")).limits["pod"] == "default/new"


async def test_one_bad_container_keeps_the_others_of_its_pod_out(node: Node) -> None:
    """An init container whose ids went on to a container without shares: neither starts, so the reason is seen."""
    await node.start()
    pod = node.bind("p", {"i": (node.share(),)}, init=(container("i"),), containers=(container("main"),))
    admitted = await node.kubelet.admit(pod)
    with pytest.raises(CreateContainerError, match="container main: is not in the pod's allocation"):
        await node.kubelet.start_container(admitted.uid, "i")


async def test_ids_that_nobody_holds(node: Node) -> None:
    await node.start()
    pod = await node.kubelet.admit(node.bind("p", {"main": (node.share(),)}))
    checkpoint = node.kubelet.plugin_dir / "kubelet_internal_checkpoint"
    data = msgspec.json.decode(checkpoint.read_bytes())
    data["Data"]["PodDeviceEntries"] = None
    checkpoint.write_bytes(msgspec.json.encode(data))
    node.kubelet.podresources._pods = list
    with pytest.raises(CreateContainerError, match="no container in the kubelet's checkpoint"):
        await node.kubelet.start_container(pod.uid, "main")


async def test_checkpoint_in_an_unknown_format_falls_back_to_podresources(node: Node) -> None:
    await node.start()
    pod = await node.kubelet.admit(node.bind("p", {"main": (node.share(0, 4),)}))
    (node.kubelet.plugin_dir / "kubelet_internal_checkpoint").write_text('{"Data":{"PodDeviceEntries":"v9"}}')
    started = await node.kubelet.start_container(pod.uid, "main")
    assert started.limits["pod"] == "default/p"


async def test_podresources_that_refuses_for_rate_is_asked_again(node: Node) -> None:
    await node.start()
    pod = await node.kubelet.admit(node.bind("p", {"main": (node.share(0, 4),)}))
    (node.kubelet.plugin_dir / "kubelet_internal_checkpoint").write_text("not json")
    node.kubelet.podresources._tokens = -10.0
    started = await node.kubelet.start_container(pod.uid, "main")
    assert started.limits["pod"] == "default/p"
    assert node.kubelet.podresources.calls > 1


async def test_vendor_that_fails_keeps_new_containers_out_and_lets_running_ones_restart(node: Node) -> None:
    await node.start()
    running = node.bind("running", {"main": (node.share(0),)})
    started = await node.kubelet.run_pod(running)

    def edits(container: ContainerShares) -> ContainerEdits:
        raise RuntimeError(f"no driver for {container.container}")

    mock = node.daemon.discovery.vendors["mock"]
    failing = Vendor(name="mock", discover=mock.discover, edits=edits)
    node.daemon.starter._vendors = {"mock": failing}
    assert await node.kubelet.start_container(running["metadata"]["uid"], "main") == started["main"]
    new = await node.kubelet.admit(node.bind("new", {"main": (node.share(0),)}))
    with pytest.raises(CreateContainerError, match="vendor mock: edits failed: RuntimeError: no driver for main"):
        await node.kubelet.start_container(new.uid, "main")
    node.daemon.starter._vendors = {"mock": mock}
    assert (await node.kubelet.start_container(new.uid, "main")).limits["pod"] == "default/new"


async def test_container_of_a_vendor_that_is_no_longer_loaded_restarts(node: Node) -> None:
    await node.start()
    running = node.bind("running", {"main": (node.share(0),)})
    started = await node.kubelet.run_pod(running)
    await node.stop()
    await node.kubelet.restart()
    node.start_daemon(vendors=("acme",))
    await node.kubelet.wait_for_devices(1)
    assert await node.kubelet.start_container(running["metadata"]["uid"], "main") == started["main"]
