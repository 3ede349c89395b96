"""The watch history of pods: what the API server says was true, at every moment of a test."""

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from .api import JSON, ApiError, path
from .books import allocation
from .daemons import wait_until
from .workloads import Space

_STEP = 5.0
"""Seconds after which a quiet watch is begun again, so that a history ends soon after it is asked to."""


@dataclass(frozen=True)
class Moment:
    """The pods that hold shares from one resource version on, until the next moment."""

    version: int
    holding: tuple[JSON, ...]

    def used(self, dimension: str) -> dict[str, int]:
        """Sum of the allocations by `node/device`, in bytes of "memory", percent of "cores", or "shares".

        For pods of app containers, which hold all their shares at the same time.
        """
        sums: dict[str, int] = {}
        for pod in self.holding:
            assert not pod["spec"].get("initContainers"), "a sum over a pod's life is not the peak of its life"
            for shares in allocation(pod).values():
                for share in shares:
                    device = f"{pod['spec']['nodeName']}/{share['device']}"
                    sums[device] = sums.get(device, 0) + (1 if dimension == "shares" else share[dimension])
        return sums


class History:
    """Records all events of a namespace's pods while the `with` block runs, across restarts of the API server.

    A pod holds its shares from the event in which it has a node until it has ended (Succeeded, Failed) or is gone;
    one that is being deleted holds them still.
    """

    def __init__(self, space: Space) -> None:
        self._space, self.events = space, list[JSON]()
        self._end = threading.Event()
        self._holes: list[tuple[int, int, int]] = []
        answer = json.loads(space.api.request("GET", path("pods", space.name)))
        self._version: str = answer["metadata"]["resourceVersion"]
        self._pods: dict[str, JSON] = {p["metadata"]["uid"]: p for p in answer["items"]}
        self._thread = threading.Thread(target=self._record, name="history", daemon=True)

    def __enter__(self) -> "History":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                last = max((int(p["metadata"]["resourceVersion"]) for p in self._space.pods()), default=0)
                wait_until(lambda: int(self._version) >= last, 30, "the watch to have seen it all")
        finally:
            self._end.set()
            self._thread.join(_STEP + 15)
        for position, after, until in reversed(self._holes):
            self.events[position:position] = self._between(after, until)

    def _record(self) -> None:
        while not self._end.is_set():
            try:
                for event in self._space.api.watch("pods", self._space.name, self._version, _STEP):
                    if event["type"] == "ERROR":
                        self._skip()
                        break
                    self.events.append(event)
                    self._version = event["object"]["metadata"]["resourceVersion"]
            except (OSError, ValueError, http.client.HTTPException):  # ValueError: half an event
                self._end.wait(0.1)  # the API server is away; it goes on from where it was
            except ApiError as e:
                if e.status == 410:
                    self._skip()
                self._end.wait(0.1)

    def _skip(self) -> None:
        """Go on from now, and note what is left out: the watch of a new API server begins with its own first list."""
        try:
            now = self._list()["metadata"]["resourceVersion"]
        except (OSError, http.client.HTTPException, ApiError):
            return
        self._holes.append((len(self.events), int(self._version), int(now)))
        self._version = now

    def _list(self, **params: str) -> JSON:
        return dict(json.loads(self._space.api.request("GET", path("pods", self._space.name), params=params)))

    def _between(self, after: int, until: int) -> list[JSON]:
        """The events of a hole, from etcd, which keeps every version for five minutes: one list at each of them.

        Raises:
            ApiError: etcd has forgotten them (410).
        """
        before: dict[str, JSON] | None = None
        found = []
        for version in range(after, until + 1):
            items = self._list(resourceVersion=str(version), resourceVersionMatch="Exact")["items"]
            pods = {p["metadata"]["uid"]: p for p in items}
            for uid, pod in pods.items() if before is not None else ():
                if pod["metadata"]["resourceVersion"] == str(version):
                    found.append({"type": "MODIFIED" if uid in (before or {}) else "ADDED", "object": pod})
            for uid in (before or {}).keys() - pods.keys():
                gone = (before or {})[uid]
                gone = gone | {"metadata": gone["metadata"] | {"resourceVersion": str(version)}}
                found.append({"type": "DELETED", "object": gone})
            before = pods
        return found

    def moments(self) -> Iterator[Moment]:
        """Every state that was ever true, in order."""
        pods = dict(self._pods)
        for event in self.events:
            pod = event["object"]
            uid = pod["metadata"]["uid"]
            if event["type"] == "DELETED":
                pods.pop(uid, None)
            else:
                pods[uid] = pod
            holding = tuple(p for p in pods.values() if holds(p))
            yield Moment(int(pod["metadata"]["resourceVersion"]), holding)


def holds(pod: JSON) -> bool:
    """Whether a pod holds shares: it has a node and has not ended."""
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in ("Succeeded", "Failed")


def capacity(space: Space, dimension: str) -> dict[str, int]:
    """What every device of every node has, by `node/device`: "memory" in bytes, "cores" in percent, "shares"."""
    field = {"shares": "slots"}.get(dimension, dimension)
    return {
        f"{found['metadata']['name']}/{device['id']}": device.get(field, 100)
        for found in space.api.list("nodedevices")
        for device in found["spec"]["devices"]
    }


def excesses(space: Space, history: History) -> list[str]:
    """Moments at which a device had given away more than it has, one line each; also a pod bound without allocation."""
    have = {dimension: capacity(space, dimension) for dimension in ("memory", "cores", "shares")}
    wrong = []
    for moment in history.moments():
        for dimension, total in have.items():
            for device, used in moment.used(dimension).items():
                if used > total.get(device, 0):
                    have_it = f"which has {total.get(device)}"
                    wrong.append(f"version {moment.version}: {used} {dimension} of {device}, {have_it}")
        wrong += [
            f"version {moment.version}: {pod['metadata']['name']} is bound without an allocation"
            for pod in moment.holding
            if pod["spec"].get("schedulerName") == "hamipy-scheduler" and not allocation(pod)
        ]
    return wrong
