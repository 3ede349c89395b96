"""Pods bound per second on a real control plane: kube-scheduler alone, with an echo extender, and with hamipy.

200 fake nodes with eight devices each; 2,000 pods of half a device are pending when kube-scheduler starts, as the chart
configures it, and the rate is that from the first to the last bound pod. Everything shares this machine. Afterwards
hamipy goes on to 95 % of the memory, and a last burst fills the cluster: `refused` are binds that hamipy turned down,
in percent. API writes are those of the API server's audit log.
"""

import argparse
import asyncio
import contextlib
import http.client
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from benchmarks import objects
from benchmarks.controlplane import ControlPlane, Process, retried
from benchmarks.processes import free_port, wait_ready
from benchmarks.report import loaded, parser, rss_mb, show
from hamipy.kube.client import KubeClient
from hamipy.kube.nodedevices import apply_crd
from hamipy.kube.objects import Pod
from hamipy.kube.reflector import Handler, Reflector

REACH = {
    "share_of_echo_percent": ">= 85",
    "refused_percent.empty": "<= 1",
    "refused_percent.full": "<= 1",
    "writes_per_pod": "1",
}
_DEVICES, _PODS_PER_DEVICE = 8, 2
_PODS = "/api/v1/namespaces/default/pods"
_CREATORS = 16
_LIMIT = 120.0


class _Extender(Struct):
    """One extender process."""

    process: Process
    port: int
    metrics: int


class _Run(Struct):
    """One burst.

    Attributes:
        rate: pods bound per second.
        cpu_ms: processor time of the extender per pod, in milliseconds; 0 without one.
    """

    rate: float
    cpu_ms: float


class Bench:
    """The cluster and its bursts."""

    def __init__(self, plane: ControlPlane, nodes: int) -> None:
        self.plane, self.client, self.nodes = plane, plane.client, nodes
        self._number = 0

    async def prepare(self) -> None:
        """Nodes with inventories, and what the namespace needs before it takes pods."""
        client = self.client
        await apply_crd(client)
        await client.create("/api/v1/namespaces", {"metadata": {"name": "hamipy-system"}})
        for node in objects.bare_nodes(self.nodes, _DEVICES):
            await client.create("/api/v1/nodes", node)
        for inventory in objects.inventories(self.nodes, _DEVICES):
            del inventory["metadata"]["uid"]
            await client.create("/apis/hamipy.io/v1alpha1/nodedevices", inventory)
        await retried(lambda: client.request("GET", "/api/v1/namespaces/default/serviceaccounts/default"))

    @contextlib.asynccontextmanager
    async def extender(self, kind: str) -> AsyncIterator[_Extender]:
        """`echo` or `hamipy`, ready."""
        port, metrics = free_port(), free_port()
        kubeconfig = str(self.plane.kubeconfig(kind, ("system:masters",)))
        if kind == "echo":
            metrics = port
            command = ["-m", "benchmarks.echo", "--kubeconfig", kubeconfig, "--port", str(port)]
        else:
            command = [
                *("-m", "hamipy", "--log-level", "warning", "scheduler", "--no-leadership"),
                *("--kubeconfig", kubeconfig, "--extender-port", str(port), "--metrics-port", str(metrics)),
                *("--webhook-port", str(free_port())),
            ]
        async with self.plane.process(kind, sys.executable, *command) as process:
            await asyncio.to_thread(wait_ready, metrics, process.pid)
            if kind == "hamipy":
                await self._published()
            yield _Extender(process, port, metrics)

    async def _published(self) -> None:
        """Wait until the names are on every node: they belong to the start, not to the pods."""
        async with asyncio.timeout(_LIMIT):
            while True:
                body = await self.client.request("GET", "/api/v1/nodes")
                if body.count(b'"hamipy.io/memory"') >= 2 * self.nodes:
                    return
                await asyncio.sleep(0.1)

    async def burst(self, count: int, extender: _Extender | None) -> _Run:
        """Create `count` pods, then start kube-scheduler and wait until all are bound."""
        names = [f"pod-{self._number + i}" for i in range(count)]
        self._number += count
        await self._create(names)
        before = extender.process.cpu_seconds if extender is not None else 0.0
        async with (
            Bound(self.client, set(names)) as bound,
            self.plane.scheduler(extender.port if extender is not None else None) as scheduler,
        ):
            try:
                await bound.wait(_LIMIT)
            except TimeoutError:
                self.plane.check(scheduler, *([extender.process] if extender is not None else []))
                raise SystemExit(
                    f"{len(bound.times)} of {count} pods are bound after {_LIMIT:g} s:\n"
                    f"{scheduler.log.read_text()[-2000:]}"
                ) from None
        times = bound.times
        used = extender.process.cpu_seconds - before if extender is not None else 0.0
        return _Run((count - 1) / (times[-1] - times[0]), used / count * 1e3)

    async def _create(self, names: list[str]) -> None:
        left = iter(names)

        async def create() -> None:
            for name in left:
                pod = objects.pending_pod(name, memory="40Gi")
                del pod["metadata"]["uid"], pod["status"]
                await self.client.create(_PODS, pod)

        async with asyncio.TaskGroup() as group:
            for _ in range(_CREATORS):
                group.create_task(create())

    async def clear(self) -> None:
        """Delete all pods; there is no kubelet that would end them."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self.client.request("DELETE", _PODS, body=options, timeout=_LIMIT)


class Bound(Handler[Pod]):
    """Times at which pods were seen bound; an async context manager around a list and watch of bound pods."""

    def __init__(self, client: KubeClient, names: set[str]) -> None:
        self._left = names
        self.times: list[float] = []
        self._all = asyncio.Event()
        self._reflector = Reflector(client, _PODS, Pod, self, field_selector="spec.nodeName!=", name="bound")

    async def __aenter__(self) -> "Bound":
        self._task = asyncio.create_task(self._reflector.run())
        await self._reflector.wait_synced()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self, limit: float) -> None:
        """Return when all are bound. Raises TimeoutError."""
        async with asyncio.timeout(limit):
            await self._all.wait()

    def replace(self, items: list[Pod]) -> None:
        for item in items:
            self.upsert(item)

    def upsert(self, item: Pod) -> None:
        if item.metadata.name in self._left:
            self._left.discard(item.metadata.name)
            self.times.append(time.perf_counter())
            if not self._left:
                self._all.set()

    def remove(self, item: Pod) -> None:
        """Nobody removes a pod while it is waited for."""


def _refused(extender: _Extender) -> Counter[str]:
    """Answered binds by outcome."""
    connection = http.client.HTTPConnection("127.0.0.1", extender.metrics, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.findall(r'^hamipy_binds_total\{outcome="(\w+)"\} ([\d.]+)', text, re.MULTILINE)
    return Counter({outcome: int(float(count)) for outcome, count in found})


def _percent(binds: Counter[str]) -> float:
    return round(100 * binds["refused"] / max(1, binds.total() - binds["joined"]), 2)


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    async with ControlPlane() as plane:
        bench = Bench(plane, options.nodes)
        await bench.prepare()
        runs: dict[str, list[_Run]] = {"bare": [], "echo": [], "hamipy": []}
        runs["bare"].append(await bench.burst(options.pods, None))
        await bench.clear()
        for last in [False] * (options.rounds - 1) + [True]:
            async with bench.extender("echo") as echo:
                runs["echo"].append(await bench.burst(options.pods, echo))
            await bench.clear()
            async with bench.extender("hamipy") as hamipy:
                await asyncio.sleep(options.settle)
                before = plane.writes("hamipy")
                runs["hamipy"].append(await bench.burst(options.pods, hamipy))
                empty = _refused(hamipy)
                if last:
                    return await _fill(bench, options, hamipy, runs, before, empty)
            await bench.clear()
        raise AssertionError


async def _fill(
    bench: Bench,
    options: argparse.Namespace,
    hamipy: _Extender,
    runs: dict[str, list[_Run]],
    before: Counter[str],
    empty: Counter[str],
) -> dict[str, Any]:
    """Go on to 95 % and then to the last place; all figures."""
    capacity = options.nodes * _DEVICES * _PODS_PER_DEVICE
    filled = int(capacity * 0.95)
    await bench.burst(filled - options.pods, hamipy)
    until = _refused(hamipy)
    full = await bench.burst(capacity - filled, hamipy)
    written = await _written(bench.plane, before, capacity)
    rate = {kind: round(statistics.median(r.rate for r in of)) for kind, of in runs.items()}
    cpu = {kind: round(statistics.median(r.cpu_ms for r in of), 2) for kind, of in runs.items() if kind != "bare"}
    echo, mine = (statistics.median(r.rate for r in runs[kind]) for kind in ("echo", "hamipy"))
    wakeups, published = written.pop("patch pods", 0), written.pop("patch nodes/status", 0)
    return {
        "pods_per_s": {**rate, "hamipy_last_5_percent": round(full.rate)},
        "share_of_echo_percent": round(100 * mine / echo, 1),
        "extender_cpu_ms_per_pod": cpu,
        "refused_percent": {"empty": _percent(empty), "full": _percent(_refused(hamipy) - until)},
        "writes_per_pod": round(written.total() / capacity, 3),
        "wakeups": wakeups,
        "published_names": published,
        "rss_mb": rss_mb(hamipy.process.pid),
        "load_average": loaded(),
    }


async def _written(plane: ControlPlane, before: Counter[str], pods: int) -> Counter[str]:
    """Writes of hamipy since `before`, once the audit log has them."""
    async with asyncio.timeout(40):  # it is written in batches of half a minute at most
        while True:
            written = plane.writes("hamipy")
            written.subtract(before)
            if written["create pods/binding"] >= pods:
                return +written
            await asyncio.sleep(0.5)


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, default=200)
    arguments.add_argument("--pods", type=int, default=2000)
    arguments.add_argument(
        "--rounds", type=int, default=2, help="bursts with echo and hamipy in turn; the median counts"
    )
    arguments.add_argument("--settle", type=float, default=1.0, help="seconds between hamipy's start and its burst")
    options = arguments.parse_args()
    if options.pods > 0.95 * options.nodes * _DEVICES * _PODS_PER_DEVICE:
        raise SystemExit(f"pods: {options.pods}: {options.nodes} nodes are more than 95 % full with them")
    figures = asyncio.run(_measure(options))
    show(options.output, f"burst: {options.pods} pods on {options.nodes} nodes", figures, REACH)


if __name__ == "__main__":
    main()
