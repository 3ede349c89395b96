"""A container gets exactly what the scheduler decided for it, whichever ids the kubelet picks."""

import asyncio
import random

from hamipy.core.names import device_of
from tests.component.node.conftest import GIB, Node, container


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


async def test_what_the_author_writes_into_env_does_not_count(node: Node) -> None:
    await node.start()
    evil = container("main", env=[{"name": "HAMIPY_DEVICES", "value": "evil"}])
    pod = node.bind("p", {"main": (node.share(),)}, containers=(evil,))
    assert (await node.kubelet.run_pod(pod))["main"].env["HAMIPY_DEVICES"] == node.share().device


async def test_kubelets_ids_are_of_the_scheduled_device(node: Node) -> None:
    await node.start()
    for number in range(6):
        share = node.share(number % 2)
        pod = node.bind(f"p{number}", {"main": (share,)})
        await node.kubelet.run_pod(pod)
        assert {device_of(i) for i in node.kubelet.ids_of(pod["metadata"]["uid"], "main")} == {share.device}
    assert node.daemon.metrics.counters["ids_swapped"] == 0


async def test_two_containers_and_two_devices_each_see_their_own(node: Node) -> None:
    await node.start()
    small, large = (node.share(0, 1),), (node.share(0, 5), node.share(1, 6))
    started = await node.kubelet.run_pod(node.bind("p", {"small": small, "large": large}))
    assert [d["memory"] for d in started["small"].limits["devices"]] == [1 * GIB]
    assert [d["memory"] for d in started["large"].limits["devices"]] == [5 * GIB, 6 * GIB]
    assert started["large"].env["HAMIPY_DEVICES"] == f"{large[0].device},{large[1].device}"


async def test_init_containers_and_sidecars_see_their_own_while_ids_go_round(node: Node) -> None:
    await node.start(mock_profile="a100x8")
    shares = {
        "i1": (node.share(0, 1), node.share(1, 1)),
        "side": (node.share(0, 2),),
        "i2": (node.share(1, 3),),
        "a": (node.share(1, 4),),
        "b": (node.share(2, 5), node.share(3, 5)),
    }
    init = (container("i1", 2), container("side", restartPolicy="Always"), container("i2"))
    pod = node.bind("p", shares, init=init)
    started = await node.kubelet.run_pod(pod)
    uid = pod["metadata"]["uid"]
    assert node.kubelet.ids_of(uid, "side") < node.kubelet.ids_of(uid, "i1")
    for name, own in shares.items():
        assert started[name].env["HAMIPY_DEVICES"] == ",".join(s.device for s in own), name
        assert started[name].limits["container"] == name
        assert [d["memory"] for d in started[name].limits["devices"]] == [s.memory for s in own]
    again = await node.kubelet.start_container(uid, "b")
    assert again == started["b"]


async def test_pod_whose_only_device_container_is_an_init_container(node: Node) -> None:
    await node.start()
    pod = node.bind("p", {"i": (node.share(0, 3),)}, init=(container("i"),), containers=({"name": "main"},))
    started = await node.kubelet.run_pod(pod)
    assert started["i"].limits["devices"][0]["memory"] == 3 * GIB
    assert "HAMIPY_DEVICES" not in started["main"].env


async def test_equal_pods_that_race_get_their_own(node: Node) -> None:
    await node.start()
    generator = random.Random(7)
    pods = {
        f"p{n}": node.bind(f"p{n}", {"main": (node.share(n % 2, 0, n + 1),)}, created="2026-01-01T00:00:00Z")
        for n in range(10)
    }
    order = list(pods)
    generator.shuffle(order)
    started = await asyncio.gather(*(node.kubelet.run_pod(pods[name]) for name in order))
    for name, containers in zip(order, started, strict=True):
        assert containers["main"].limits["pod"] == f"default/{name}"
        assert containers["main"].limits["devices"][0]["cores"] == int(name[1:]) + 1


async def test_ids_picked_against_our_wish_change_nothing_and_are_counted(node: Node) -> None:
    await node.start()
    node.kubelet.heeds_preferences = False
    swapped = 0
    for number in range(8):
        pod = node.bind(f"p{number}", {"main": (node.share(0, 1),)})
        started = await node.kubelet.run_pod(pod)
        assert started["main"].env["HAMIPY_DEVICES"] == node.share(0).device
        swapped += {device_of(i) for i in node.kubelet.ids_of(pod["metadata"]["uid"], "main")} != {node.share(0).device}
    assert swapped
    assert node.daemon.metrics.counters["ids_swapped"] == swapped


async def test_pod_created_again_under_its_name_gets_its_new_shares(node: Node) -> None:
    await node.start()
    first = node.bind("web-0", {"main": (node.share(0, 2),)})
    await node.kubelet.run_pod(first)
    node.gone(first)
    second = node.bind("web-0", {"main": (node.share(0, 3),)})
    started = await node.kubelet.run_pod(second)
    assert started["main"].limits["devices"][0]["memory"] == 3 * GIB


async def test_pod_that_the_watch_has_not_brought_yet_is_asked_for(node: Node) -> None:
    await node.start()
    node.api.faults.add(verb="watch", path="/api/v1/pods", delay=30.0)
    node.api.cut_watches("/api/v1/pods")
    pod = node.bind("p", {"main": (node.share(),)})
    assert (await node.kubelet.run_pod(pod))["main"].limits["pod"] == "default/p"
