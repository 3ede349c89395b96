"""`helm upgrade` while people create pods: none is refused, none fails, none that runs is touched."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from . import chart
from .api import JSON
from .books import allocation, disagreements, seen
from .cluster import Cluster
from .daemons import wait_until
from .history import History, excesses
from .workloads import Space, container, each, pod, runs

MEMORY = "hamipy.io/memory"
AT_A_TIME = 5
"""Bare pods under way at the same time; about what two cores start in a second."""


class _Burst:
    """Creates bare pods that end at once, a new one for each that has ended."""

    def __init__(self, space: Space) -> None:
        self._space, self._end = space, threading.Event()
        self.created: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for number in itertools.count():
                manifest = pod(
                    f"bare-{number:03}",
                    container(limits={MEMORY: f"{100 + number}Mi"}, ends=True),
                    restartPolicy="Never",
                )
                self._space.create(manifest)
                self.created.append(manifest["metadata"]["name"])
                while not self._end.wait(0.05) and self._under_way() >= AT_A_TIME:
                    pass
                if self._end.is_set():
                    return
        except BaseException as e:  # noqa: BLE001 # told by the test
            self.failure = e

    def _under_way(self) -> int:
        return len(_open(self._space))

    @contextmanager
    def going_on(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run, name="burst")
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join(60)
        assert self.failure is None, f"after {len(self.created)} pods: {self.failure!r}"


def _bare(space: Space) -> list[JSON]:
    return sorted((p for p in space.pods() if p["metadata"]["name"] != "stays"), key=lambda p: p["metadata"]["name"])


def _open(space: Space) -> list[str]:
    return [p["metadata"]["name"] for p in _bare(space) if p["status"].get("phase") not in ("Succeeded", "Failed")]


def _pods_of_the_chart(cluster: Cluster) -> set[str]:
    return {p["metadata"]["uid"] for p in cluster.api.list("pods", chart.NAMESPACE)}


@pytest.mark.timeout(300, func_only=True)
def test_no_bare_pod_is_refused_or_fails_during_helm_upgrade(space: Space, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = space.cluster
    space.create(pod("stays", container(limits={MEMORY: "2Gi"})))
    (stays,) = space.wait_running(1)
    before = _pods_of_the_chart(cluster)
    # every scheduler and every daemon is replaced
    new: JSON = {"podAnnotations": {"example.com/upgraded": stays["metadata"]["uid"]}}
    burst = _Burst(space)
    with History(space) as history:
        with burst.going_on():
            wait_until(lambda: len(burst.created) > AT_A_TIME or burst.failure, 60, "the burst to have begun")
            chart.apply(cluster, "upgrade", {"scheduler": new, "node": new})
            # helm waits until the new ones are Ready, not until the old ones have gone
            wait_until(lambda: not before & _pods_of_the_chart(cluster), 90, "the old pods of the chart to go", 0.5)
        wait_until(lambda: not _open(space), 60, lambda: f"all bare pods to end ({_open(space)})", 0.3)
    with capsys.disabled():
        print(f"\nhelm upgrade: {len(burst.created)} bare pods created meanwhile")
    found = _bare(space)
    assert [(p["metadata"]["name"], p["status"]) for p in found if p["status"]["phase"] == "Failed"] == []
    assert [p["metadata"]["name"] for p in found] == burst.created
    assert len(found) > 3 * AT_A_TIME
    assert excesses(space, history) == []

    def wrong(ended: JSON) -> list[str]:
        name = ended["metadata"]["name"]
        limits, devices = space.given(name)
        shares = [seen(s) for s in allocation(ended)["main"]]
        wanted = {"pod": f"{space.name}/{name}", "container": "main", "devices": shares}
        return [] if (limits, devices) == (wanted, [s["id"] for s in shares]) else [f"{name}: {limits}"]

    assert [line for lines in each(wrong, found) for line in lines] == []
    after = space.pod("stays")
    assert runs(after)
    now, then = (p["status"]["containerStatuses"][0] for p in (after, stays))
    assert (now["containerID"], now["restartCount"]) == (then["containerID"], 0)
    assert disagreements(space, after) == []
    chart.wait_devices(cluster)
