"""A container gets exactly what the scheduler decided for it."""

from hamipy.testing.kubelet import CreateContainerError
from tests.component.node.conftest import GIB, Node, container
import pytest


async def test_container_sees_the_shares_of_its_allocation(node: Node) -> None:
    await node.start()
    share = node.share(1, 8, 30)
    pod = node.bind("p", {"main": (share,)})
    main = (await node.kubelet.run_pod(pod))["main"]
    assert main.env["HAMIPY_DEVICES"] == share.device
    assert main.limits == {
        "pod": "default/p",
        "container": "main",
        "devices": [{"id": share.device, "memory": 8 * GIB, "cores": 30, "partition": None}],
    }
    assert "ro" in main.mounts["/run/hamipy/limits.json"][1]


async def test_kubelets_ids_are_of_the_scheduled_device(node: Node) -> None:
    await node.start()
    for number in range(6):
        share = node.share(number % 2)
        pod = node.bind(f"p{number}", {"main": (share,)})
        await node.kubelet.run_pod(pod)
        assert {i.rpartition("::")[0] for i in node.kubelet.ids_of(pod["metadata"]["uid"], "main")} == {share.device}
    assert node.daemon.metrics.counters["ids_swapped"] == 0
