"""The node daemon with 100 pods on its node: the kubelet's calls, memory, and start to registered.

The daemon runs as its own process against the fake kubelet and the in-memory API server of this process; times are
the kubelet's, over the unix socket. Pods come and go one after the other: each PreStartContainer is a pod's first one,
with the other pods on the node, until all files of the container are written; `restart` is a container's later one.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.processes import kubeconfig
from benchmarks.report import loaded, milliseconds, parser, rss_mb, show
from hamipy.core.codec import encode_allocation
from hamipy.core.model import Allocation, Share
from hamipy.core.names import ALLOCATION, KUBELET_RESOURCE
from hamipy.testing.apiserver import InMemoryApiServer
from hamipy.testing.kubelet import FakeKubelet

REACH = {
    "allocate.p99_ms": "<= 2",
    "pre_start.p99_ms": "<= 25",
    "rss_mb": "<= 60",
    "start_s.median": "<= 0.5",
}
NODE = "bench"
GIB = 2**30
_PATH = "/api/v1/namespaces/default/pods"


class _Node:
    """One node in a directory of its own."""

    def __init__(self, directory: Path, api: InMemoryApiServer, kubelet: FakeKubelet, config: Path) -> None:
        self.directory, self.api, self.kubelet, self.config = directory, api, kubelet, config
        self._numbers = itertools.count()
        self.pods: deque[dict[str, Any]] = deque()

    @contextlib.asynccontextmanager
    async def daemon(self) -> AsyncIterator[tuple[asyncio.subprocess.Process, float]]:
        """The daemon as a process, and the seconds from its start until the kubelet had its devices."""
        flags = {
            "node-name": NODE,
            "kubeconfig": self.config,
            "vendors": "mock",
            "mock-profile": "a100x8",
            "kubelet-dir": self.directory / "k",
            "cdi-dir": self.directory / "cdi",
            "state-dir": self.directory / "s",
            "health-port": 0,
            "drain-limit": 0.0,
        }
        command = [sys.executable, "-m", "hamipy", "--log-level", "error", "node"]
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(*command, *(f"--{k}={v}" for k, v in flags.items()))
        try:
            await self.kubelet.wait_for_devices(limit=60)
            yield process, time.perf_counter() - began
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()
            await self.kubelet.wait_for(lambda: not self.kubelet.registered)

    async def devices(self) -> list[str]:
        """Ids of the devices, once the daemon has published them as served."""
        async with asyncio.timeout(30):
            while True:
                for found in self.api.list("/apis/hamipy.io/v1alpha1/nodedevices"):
                    if found["spec"]["serving"]:
                        return [d["id"] for d in found["spec"]["devices"]]
                await asyncio.sleep(0.01)

    async def add(self, devices: list[str]) -> None:
        """Bind one pod here, admit it, and start its container."""
        number = next(self._numbers)
        share = Share(devices[number % len(devices)], 4 * GIB, 5)
        container = {"name": "main", "resources": {"limits": {KUBELET_RESOURCE: "1"}}}
        annotation = encode_allocation(Allocation({"main": (share,)}))
        metadata = {"name": f"pod-{number}", "namespace": "default", "annotations": {ALLOCATION: annotation}}
        spec = {"nodeName": NODE, "containers": [container]}
        pod = self.api.create(_PATH, {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})
        started = await self.kubelet.run_pod(pod)
        if started["main"].limits["devices"][0]["id"] != share.device:
            raise SystemExit(f"{metadata['name']} was not given {share.device}: {started['main'].limits}")
        self.pods.append(pod)

    def remove(self) -> None:
        """The oldest pod ends and is deleted."""
        pod = self.pods.popleft()
        self.kubelet.finish(pod["metadata"]["uid"])
        self.api.delete(f"{_PATH}/{pod['metadata']['name']}")


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="hb-", dir="/tmp"))  # short: it holds unix sockets
    try:
        async with InMemoryApiServer() as api, FakeKubelet(directory / "k", directory / "cdi") as kubelet:
            api.create("/api/v1/nodes", {"metadata": {"name": NODE}})
            with kubeconfig(api.url) as config:
                return await _measure(_Node(directory, api, kubelet, config), options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _measure(node: _Node, options: argparse.Namespace) -> dict[str, Any]:
    _drop_file_cache()
    async with node.daemon() as (_, cold):
        await node.devices()
    starts = []
    for _ in range(options.starts):
        async with node.daemon() as (_, seconds):
            starts.append(seconds)
    async with node.daemon() as (process, _):
        devices = await node.devices()
        empty = rss_mb(process.pid)
        for _ in range(options.pods):
            await node.add(devices)
        node.kubelet.seconds.clear()
        for _ in range(options.requests):
            node.remove()
            await node.add(devices)
        first = {name: milliseconds(took) for name, took in node.kubelet.seconds.items()}
        node.kubelet.seconds.clear()
        for pod in list(node.pods):
            await node.kubelet.start_container(pod["metadata"]["uid"], "main")
        return {
            "allocate": first["Allocate"],
            "preferred": first["GetPreferredAllocation"],
            "pre_start": first["PreStartContainer"],
            "restart": milliseconds(node.kubelet.seconds["PreStartContainer"]),
            "rss_mb": rss_mb(process.pid),
            "rss_empty_mb": empty,
            "start_s": {
                "median": round(statistics.median(starts), 3),
                "worst": round(max(starts), 3),
                "first_cold": round(cold, 3),
            },
            "load_average": loaded(),
        }


def _drop_file_cache() -> None:
    """Forget what the kernel keeps of Python and its packages, except files that running processes have mapped."""
    for root in {Path(os.__file__).parent, *(Path(p) for p in sys.path if p)}:
        for path in root.rglob("*") if root.is_dir() else ():
            if path.suffix in (".py", ".pyc", ".so"):
                with contextlib.suppress(OSError):
                    descriptor = os.open(path, os.O_RDONLY)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--pods", type=int, default=100, help="pods on the node")
    arguments.add_argument("--requests", type=int, default=500, help="measured pods that come while one goes")
    arguments.add_argument("--starts", type=int, default=7, help="measured starts of the daemon")
    options = arguments.parse_args()
    figures = asyncio.run(_run(options))
    show(options.output, f"node: {options.pods} pods on 8 devices", figures, REACH)


if __name__ == "__main__":
    main()
