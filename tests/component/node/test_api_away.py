"""Restarts of containers need no API server; first starts wait for it."""

import pytest

from hamipy.core.model import Share
from hamipy.testing.kubelet import CreateContainerError
from tests.component.node.conftest import Node, container


async def test_container_restarts_while_the_api_server_is_away(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)})
    started = await node.kubelet.run_pod(pod)
    await node.api.pause()
    assert await node.kubelet.start_container(pod["metadata"]["uid"], "main") == started["main"]


async def test_restarted_daemon_serves_restarts_while_the_api_server_is_away(node: Node) -> None:
    await node.start()
    shares: dict[str, tuple[Share, ...]] = {"i": (node.share(0, 1),), "main": (node.share(1, 3),)}
    pod = node.bind("p", shares, init=(container("i"),))
    uid = (await node.kubelet.admit(pod)).uid
    init = await node.kubelet.start_container(uid, "i")
    await node.api.pause()
    await node.stop()
    (node.directory / "cdi").rename(node.directory / "lost")
    node.start_daemon()
    await node.kubelet.wait_for_devices(32)
    assert await node.kubelet.start_container(uid, "i") == init
    main = await node.kubelet.start_container(uid, "main")  # never started before: by what its pod's grant says
    assert main.env["HAMIPY_DEVICES"] == shares["main"][0].device
    await node.api.resume()


async def test_first_start_waits_for_the_api_server(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)})
    await node.stop()
    await node.api.pause()
    node.start_daemon()
    await node.kubelet.wait_for_devices(32)
    admitted = await node.kubelet.admit(pod)
    await node.until(lambda: node.daemon._api is not None)
    with pytest.raises(CreateContainerError, match=r"UNAVAILABLE.*the API server does not answer"):
        await node.kubelet.start_container(admitted.uid, "main")
    await node.api.resume()
    assert (await node.kubelet.start_until(admitted.uid, "main")).limits["pod"] == "default/p"


async def test_no_id_of_a_running_pod_is_given_up_while_the_api_server_is_away(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)})
    await node.kubelet.run_pod(pod)
    await node.stop()
    await node.api.pause()
    node.start_daemon(mock_profile="none")
    await node.kubelet.wait_for(lambda: node.kubelet.allocatable == 1)
    await node.daemon.cleaner.clean()
    assert len(node.specs()) == 1
    await node.api.resume()
