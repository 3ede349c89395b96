"""Registered with the kubelet whatever happens to it, and no running pod dies of what happens to devices."""

import shutil

import pytest

from hamipy.core.names import device_of
from hamipy.node.advertise import Table
from hamipy.node.daemon import Daemon
from hamipy.testing.kubelet import FakeKubelet
from tests.component.node.conftest import Node


async def test_daemon_that_is_up_before_the_kubelet_registers_when_it_comes(node: Node) -> None:
    await node.kubelet.stop()
    (node.kubelet.plugin_dir / "kubelet.sock").unlink(missing_ok=True)
    node.start_daemon()
    await node.until(lambda: (node.kubelet.plugin_dir / "hamipy.sock").exists())
    await node.kubelet.start()
    await node.kubelet.wait_for_devices(32)


async def test_three_kubelet_restarts_in_a_row(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)})
    started = await node.kubelet.run_pod(pod)
    for _ in range(3):
        await node.kubelet.restart()
        await node.kubelet.wait_for_devices(32)
    assert await node.kubelet.readmit() == {}
    assert await node.kubelet.start_container(pod["metadata"]["uid"], "main") == started["main"]
    await node.until(lambda: node.serving)


async def test_kubelet_restarts_faster_than_anyone_can_register(node: Node) -> None:
    await node.start()
    for _ in range(3):
        await node.kubelet.restart()
    await node.kubelet.wait_for_devices(32)


async def test_container_restarts_by_its_old_spec_while_nobody_is_registered(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)})
    started = await node.kubelet.run_pod(pod)
    await node.stop()
    await node.kubelet.restart()
    assert await node.kubelet.start_container(pod["metadata"]["uid"], "main") == started["main"]


async def test_own_socket_removed_comes_back_without_a_gap(node: Node) -> None:
    await node.start()
    (node.kubelet.plugin_dir / "hamipy.sock").unlink()
    await node.until(lambda: (node.kubelet.plugin_dir / "hamipy.sock").exists())
    assert node.kubelet.registered
    assert node.kubelet.registrations == 1


async def test_endpoint_taken_down_by_another_ones_end_registers_again(node: Node) -> None:
    """What a kubelet does when an old plugin stops after the new one has registered."""
    await node.start()
    assert node.kubelet._plugin is not None
    await node.kubelet._plugin.channel.close(None)
    await node.kubelet.wait_for(lambda: node.kubelet.registrations == 2)
    await node.kubelet.wait_for_devices(32)


async def test_old_daemon_that_stops_late_leaves_the_new_one_serving(node: Node) -> None:
    await node.start()
    old, node._task = node._task, None
    stop_old = node._stopped
    await node.kubelet.restart()  # so that the new one registers while the old one lives
    node.start_daemon()
    await node.kubelet.wait_for_devices(32)
    await node.until(node.daemon.registrar.registered.is_set)
    stop_old.set()
    assert old is not None
    await old
    await node.until(lambda: (node.kubelet.plugin_dir / "hamipy.sock").exists())
    await node.kubelet.wait_for_devices(32)
    await node.until(lambda: node.serving)
    pod = node.bind("p", {"main": (node.share(),)})
    assert (await node.kubelet.run_pod(pod))["main"].limits["pod"] == "default/p"


async def test_restart_of_the_daemon_keeps_pods_and_takes_new_ones(node: Node) -> None:
    await node.start()
    first = node.bind("first", {"main": (node.share(0, 3),)})
    started = await node.kubelet.run_pod(first)
    await node.restart()
    assert await node.kubelet.start_container(first["metadata"]["uid"], "main") == started["main"]
    second = node.bind("second", {"main": (node.share(0, 4),)})
    assert (await node.kubelet.run_pod(second))["main"].limits["pod"] == "default/second"


async def test_free_ids_of_a_sick_device_are_unhealthy_and_those_in_use_are_not(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(0),)})
    await node.kubelet.run_pod(pod)
    (held,) = node.kubelet.ids_of(pod["metadata"]["uid"], "main")
    health = node.directory / "s" / "mock-health.yaml"
    health.write_text(f"{node.devices[0].id}: too hot\n")
    await node.kubelet.wait_for(lambda: len(node.kubelet.unhealthy) == 15)
    assert held in node.kubelet.healthy
    assert node.kubelet.allocatable == 17
    await node.kubelet.restart()
    await node.kubelet.wait_for_devices(17)
    node.kubelet._running.clear()
    assert await node.kubelet.readmit() == {}
    node.gone(pod)
    await node.kubelet.wait_for(lambda: len(node.kubelet.unhealthy) == 16)
    health.write_text("")
    await node.kubelet.wait_for(lambda: node.kubelet.allocatable == 32)


async def test_pod_is_placed_on_the_healthy_device_beside_a_full_sick_one(node: Node) -> None:
    await node.start()
    for number in range(16):
        await node.kubelet.run_pod(node.bind(f"p{number}", {"main": (node.share(0, 0),)}))
    (node.directory / "s" / "mock-health.yaml").write_text("0: gone bad\n")
    await node.until(lambda: not node.devices[0].healthy)
    assert node.kubelet.allocatable == 32
    started = await node.kubelet.run_pod(node.bind("new", {"main": (node.share(1),)}))
    assert started["main"].env["HAMIPY_DEVICES"] == node.share(1).device


@pytest.mark.parametrize("what", ["1: removed", "t4x1", "none", "nonsense"])
async def test_no_running_pod_dies_when_devices_go_and_the_kubelet_restarts(node: Node, what: str) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(1),)})
    started = await node.kubelet.run_pod(pod)
    (held,) = node.kubelet.ids_of(pod["metadata"]["uid"], "main")
    if ":" in what:
        (node.directory / "s" / "mock-health.yaml").write_text(what)
    else:
        (node.directory / "s" / "mock-profile").write_text(what)
    await node.until(lambda: device_of(held) not in {d.id for d in node.devices if d.healthy})
    await node.kubelet.restart()
    await node.kubelet.wait_for_devices(1)
    node.kubelet._running.clear()
    assert await node.kubelet.readmit() == {}
    assert await node.kubelet.start_container(pod["metadata"]["uid"], "main") == started["main"]


async def test_daemon_without_devices_keeps_the_ids_of_running_pods(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(1),)})
    await node.kubelet.run_pod(pod)
    await node.stop()
    await node.kubelet.restart()
    await node.start(mock_profile="none")
    await node.kubelet.wait_for(lambda: node.kubelet.allocatable == 1)
    node.kubelet._running.clear()
    assert await node.kubelet.readmit() == {}


async def test_cached_devices_are_registered_before_a_slow_vendor_answers(node: Node) -> None:
    await node.start()
    await node.stop()
    await node.kubelet.restart()
    daemon = Daemon(node.settings())
    assert daemon.discovery.cached
    daemon.refresh_table()
    assert len(daemon.table.ids) == 32


async def test_another_boot_drops_the_cached_devices_and_the_grants(node: Node) -> None:
    await node.start()
    await node.kubelet.run_pod(node.bind("p", {"main": (node.share(),)}))
    await node.stop()
    boot = node.directory / "boot"
    boot.write_text("another\n")
    daemon = Daemon(node.settings(boot_id_file=boot))
    assert not daemon.discovery.cached
    (grant,) = daemon.grants
    assert daemon.grants.get(grant.name, grant.uid, grant.container) is None


async def test_equal_ids_are_not_sent_twice() -> None:
    table = Table()
    table.set({"a::0": True})
    table.set({"a::0": True})
    assert table.version == 1


async def test_ten_thousand_ids_fit_in_one_message(node: Node, directory: object) -> None:
    profile = node.directory / "many.yaml"
    profile.write_text("devices: [{count: 10, model: Many, memory: 80Gi, slots: 1000}]")
    await node.start(mock_profile=str(profile))
    await node.kubelet.wait_for_devices(10_000)
    assert isinstance(node.kubelet, FakeKubelet)


async def test_directory_that_is_not_there_yet_is_waited_for(node: Node) -> None:
    await node.kubelet.stop()
    node.start_daemon()
    shutil.rmtree(node.kubelet.plugin_dir)
    await node.until(lambda: node.daemon.registrar.registered.is_set() or not node.kubelet.plugin_dir.exists())
    await node.kubelet.start()
    await node.kubelet.wait_for_devices(32)
