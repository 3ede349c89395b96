"""What dead pods and crashes left goes; what may still be needed stays."""

import os
import time
from pathlib import Path

from hamipy.core.vendor import ContainerShares
from tests.component.node.conftest import Node


def age(path: Path) -> None:
    os.utime(path, (time.time() - 120,) * 2)


async def test_files_go_when_the_pod_has_left_checkpoint_and_api_server(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)})
    await node.kubelet.run_pod(pod)
    assert len(node.specs()) == 1
    node.gone(pod)
    await node.daemon.cleaner.clean()
    assert len(node.specs()) == 1, "the kubelet's checkpoint still names it"
    other = node.bind("q", {"main": (node.share(),)})
    await node.kubelet.run_pod(other)
    await node.until(lambda: [g.uid for g in node.daemon.grants] == [other["metadata"]["uid"]])
    assert len(node.specs()) == 1
    assert len(list((node.directory / "s" / "containers").iterdir())) == 1


async def test_files_of_a_pod_in_the_api_server_stay_when_the_checkpoint_is_lost(node: Node) -> None:
    await node.start()
    await node.kubelet.run_pod(node.bind("p", {"main": (node.share(),)}))
    (node.kubelet.plugin_dir / "kubelet_internal_checkpoint").unlink()
    await node.daemon.cleaner.clean()
    assert len(node.specs()) == 1


async def test_what_a_crash_left_goes_once_it_is_old(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"main": (node.share(),)})
    await node.kubelet.run_pod(pod)
    kept = set(node.specs())
    cdi, containers = node.directory / "cdi", node.directory / "s" / "containers"
    strays = [cdi / "hamipy.io-share-dead.json", cdi / ".hamipy.io-share-dead.json.00.tmp", containers / "dead"]
    strays[0].write_text("{}")
    strays[1].write_text("{")
    (containers / "dead").mkdir()
    foreign = cdi / "other-vendor.json"
    foreign.write_text("{}")
    await node.daemon.cleaner.clean()
    assert all(s.exists() for s in strays), "its container may be starting"
    for path in (*strays, foreign):
        age(path)
    await node.daemon.cleaner.clean()
    assert not any(s.exists() for s in strays)
    assert set(node.specs()) == kept | {"other-vendor.json"}


async def test_partitions_are_prepared_before_the_start_and_released_until_it_succeeds(node: Node) -> None:
    await node.start(clean_interval=3600.0)
    made: list[str] = []
    fails = 1

    def prepare(container: ContainerShares) -> None:
        made.append(container.container)
        (container.directory / "partition").write_text("1")

    def release(container: ContainerShares) -> None:
        nonlocal fails
        if fails:
            fails -= 1
            raise OSError("busy")
        made.remove(container.container)

    mock = node.daemon.discovery.vendors["mock"]
    node.daemon.discovery.vendors["mock"] = type(mock)(
        name="mock", discover=mock.discover, watch=mock.watch, prepare=prepare, release=release
    )
    node.daemon.starter._vendors = node.daemon.cleaner._vendors = node.daemon.discovery.vendors
    pod = node.bind("p", {"main": (node.share(),)})
    await node.kubelet.run_pod(pod)
    assert made == ["main"]
    node.gone(pod)
    await node.kubelet.admit(node.bind("next", {"other": (node.share(),)}))  # the kubelet forgets the first
    await node.until(lambda: node.daemon.pods.get(pod["metadata"]["uid"]) is None)
    await node.daemon.cleaner.clean()
    assert (made, len(node.specs())) == (["main"], 1)
    await node.daemon.cleaner.clean()
    assert (made, len(node.specs())) == ([], 0)
