"""All books agree: our annotation, the kubelet's podresources and checkpoint, what containers see, our ledgers."""

from hamipy.core.quantity import parse_int

from .api import JSON
from .books import allocation, cdi_specs, checkpoint, disagreements, ledgers
from .daemons import wait_until
from .workloads import Space, container, pod

MEMORY, CORES, DEVICE = "hamipy.io/memory", "hamipy.io/cores", "hamipy.io/device"


def _on(node: str) -> dict[str, str]:
    return {"kubernetes.io/hostname": node}


def _restart(space: Space, name: str, container: str) -> None:
    """Kill a container's first process, and wait until the kubelet has started it again."""

    def status() -> JSON:
        found = space.pod(name)["status"]
        both = found["containerStatuses"] + found.get("initContainerStatuses", [])
        return next(dict(s) for s in both if s["name"] == container)

    count = status()["restartCount"]
    space.cluster.kubectl("-n", space.name, "exec", name, "-c", container, "--", "kill", "1", check=False)

    def restarted() -> bool:
        now = status()
        return now["restartCount"] == count + 1 and "running" in now["state"]

    wait_until(restarted, 60, f"{container} of {name} to restart")


def test_books_agree_about_pods_of_one_and_of_several_containers(space: Space) -> None:
    space.create(pod("one", container(limits={MEMORY: "3Gi", CORES: 20})))
    space.create(pod("two", container(limits={MEMORY: "2Gi"}), container("other", {MEMORY: "1Gi", CORES: 10})))
    space.create(pod("beside", container(limits={"hamipy.io/memory-percentage": 10}), container("plain")))
    pods = space.wait_running(3)
    assert disagreements(space, *pods) == []
    assert set(allocation(space.pod("beside"))) == {"main"}
    assert space.sees("beside", "plain") == (None, [])


def test_books_agree_about_init_containers_sidecars_and_several_devices(big_node: str, space: Space) -> None:
    space.create(
        pod(
            "multi",
            container("a", {MEMORY: "4Gi"}),
            container("b", {DEVICE: 2, MEMORY: "20Gi", CORES: 30}),
            init=[
                container("i1", {DEVICE: 2, MEMORY: "10Gi"}, ends=True),
                container("side", {MEMORY: "5Gi"}, restartPolicy="Always"),
                container("i2", {MEMORY: "8Gi", CORES: 50}, ends=True),
            ],
            nodeSelector=_on(big_node),
        )
    )
    (found,) = space.wait_running(1)
    decided = allocation(found)
    assert {c: len(shares) for c, shares in decided.items()} == {"i1": 2, "side": 1, "i2": 1, "a": 1, "b": 2}
    assert disagreements(space, found) == []
    names = [h.cdi for h in checkpoint(space.cluster.nodes[big_node]) if h.pod == found["metadata"]["uid"]]
    assert len(set(names)) == len(names) == 5
    for name in ("b", "side"):
        _restart(space, "multi", name)
    assert disagreements(space, space.pod("multi")) == []
    assert [h.cdi for h in checkpoint(space.cluster.nodes[big_node]) if h.pod == found["metadata"]["uid"]] == names


def test_a_container_that_restarts_sees_its_own_share_again(space: Space) -> None:
    space.create(pod("again", container(limits={MEMORY: "2Gi"}), container("other", {MEMORY: "1Gi"})))
    (found,) = space.wait_running(1)
    _restart(space, "again", "main")
    assert disagreements(space, found) == []


def test_two_whole_devices_are_taken_from_everyone_else(big_node: str, space: Space) -> None:
    space.create(pod("whole", container(limits={DEVICE: 6}), nodeSelector=_on(big_node)))
    space.create(pod("shared", container(limits={DEVICE: 2, MEMORY: "1Gi"}), nodeSelector=_on(big_node)))
    pods = space.wait_running(2)
    assert disagreements(space, *pods) == []
    mine, other = ({s["device"] for s in allocation(space.pod(n))["main"]} for n in ("whole", "shared"))
    assert (len(mine), len(other), mine & other) == (6, 2, set())


def test_what_a_dead_pod_held_is_free_in_every_book_and_its_files_are_gone(space: Space) -> None:
    space.create(pod("gone", container(limits={MEMORY: "14Gi"})))
    (found,) = space.wait_running(1)
    uid, node = found["metadata"]["uid"], space.cluster.nodes[found["spec"]["nodeName"]]
    assert cdi_specs(node)
    space.api.delete("pods", space.name, "gone")
    wait_until(lambda: not space.pods(), 30, "the pod to go")

    def free() -> bool:
        shots = ledgers(space.cluster).values()
        return all(d["memory"]["allocated"] == 0 for s in shots for n in s["nodes"] for d in n["devices"])

    wait_until(free, 20, "the ledgers to be empty", 0.5)
    # the kubelet forgets a pod when it admits the next one
    space.create(pod("next", container(limits={MEMORY: "1Gi"}), nodeSelector=_on(node.name)))
    space.wait_running(1)
    assert [h.pod for h in checkpoint(node) if h.pod == uid] == []
    wait_until(lambda: len(cdi_specs(node)) == 1, 90, "the CDI specs of the dead pod to go", 0.5)
    published = space.api.get("nodes", None, node.name)["status"]["allocatable"]
    assert parse_int(published[MEMORY]) == 14 * 2**30
