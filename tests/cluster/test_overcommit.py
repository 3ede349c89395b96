"""No device ever gives away more than it has, however many ask at the same time."""

import re
import threading

from .api import JSON
from .books import disagreements
from .daemons import wait_until
from .history import History, capacity, excesses, holds
from .room import would_fit
from .workloads import Space, container, each, pod, runs

CREATORS = 64
MEMORY, CORES, DEVICE = "hamipy.io/memory", "hamipy.io/cores", "hamipy.io/device"


def _create_at_once(space: Space, pods: list[JSON]) -> None:
    """One creator for each pod, all let go in the same moment."""
    gate = threading.Barrier(len(pods))

    def create(manifest: JSON) -> None:
        gate.wait(30)
        space.create(manifest)

    each(create, pods, workers=len(pods))


def _refused(found: JSON) -> str:
    """Why the scheduler refused a pod the last time; empty when it has not."""
    conditions = found["status"].get("conditions", [])
    return next(
        (c.get("message", "") for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), ""
    )


def _settled(space: Space, count: int, timeout: float = 60) -> tuple[list[JSON], list[JSON]]:
    """Wait until all that fits runs and all else has been refused; the running and the waiting pods."""

    def open_questions() -> list[str]:
        found = space.pods()
        if len(found) != count or any("deletionTimestamp" in p["metadata"] for p in found):
            return [f"{len(found)} pods"]
        undecided = [p["metadata"]["name"] for p in found if not (runs(p) if holds(p) else _refused(p))]
        return undecided or would_fit(space, found)

    wait_until(lambda: not open_questions(), timeout, lambda: f"pods to run or be refused ({open_questions()})", 0.3)
    found = space.pods()
    return [p for p in found if holds(p)], [p for p in found if not holds(p)]


def test_64_creators_of_more_pods_than_fit_never_overcommit_a_device(space: Space) -> None:
    sizes: list[JSON] = [{MEMORY: "2Gi", CORES: 5}, {MEMORY: "3Gi"}, {MEMORY: "1Gi", CORES: 30}, {MEMORY: "5Gi"}]
    pods = [pod(f"p{n:02}", container(limits=sizes[n % len(sizes)])) for n in range(CREATORS)]
    with History(space) as history:
        _create_at_once(space, pods)
        running, waiting = _settled(space, CREATORS)
        assert len(running) >= 6
        assert len(waiting) >= 32
        told = {_refused(p) for p in waiting}
        assert [
            text for text in told if not re.search(r"without \S+ (percent )?free (memory|compute) on one device", text)
        ] == []
        events = {e["message"] for e in space.api.list("events", space.name) if e["reason"] == "FailedScheduling"}
        assert [text for text in events if "%" in text] == []  # what kube-scheduler could not format
        # room made again is fought for by all who wait; a pod that is being deleted holds its share until it has ended
        gone = running[::2]
        each(lambda p: space.api.delete("pods", space.name, p["metadata"]["name"]), gone)
        still, _ = _settled(space, CREATORS - len(gone))
        assert len(still) > len(running) - len(gone)
    assert excesses(space, history) == []
    peak = max(sum(moment.used("memory").values()) for moment in history.moments())
    assert peak >= 0.8 * sum(capacity(space, "memory").values())
    assert disagreements(space, *still) == []
    assert {p["metadata"]["uid"] for p in running if p not in gone} <= {p["metadata"]["uid"] for p in still}


def test_64_creators_of_pods_with_two_devices_each_never_overcommit_a_device(big_node: str, space: Space) -> None:
    limits = {DEVICE: 2, MEMORY: "50Gi", CORES: 40}
    node = {"kubernetes.io/hostname": big_node}
    with History(space) as history:
        _create_at_once(space, [pod(f"p{n:02}", container(limits=limits), nodeSelector=node) for n in range(CREATORS)])
        running, waiting = _settled(space, CREATORS)
        assert (len(running), len(waiting)) == (4, CREATORS - 4)
    assert excesses(space, history) == []
    assert disagreements(space, *running) == []
