"""`/filter` over HTTP with all nodes fitting and with none, start to ready, and memory of the scheduler process.

The scheduler runs as its own process against the in-memory API server, which serves pre-encoded pages over HTTP from
this process; requests go one after the other over one connection, as kube-scheduler's do.
"""

import argparse
import asyncio
import http.client
import json
import os
import signal
import socket
import sys
import time
from typing import Any

import msgspec

from benchmarks import objects
from benchmarks.processes import free_port, kubeconfig, wait_ready
from benchmarks.report import milliseconds, parser, rss_mb, show
from hamipy.testing.apiserver import InMemoryApiServer

REACH = {
    1000: {"fit.p50_ms": "<= 1", "fit.p99_ms": "<= 2", "none.p50_ms": "<= 2", "none.p99_ms": "<= 4"},
    5000: {
        "fit.p50_ms": "<= 3",
        "fit.p99_ms": "<= 6",
        "none.p50_ms": "<= 3",
        "none.p99_ms": "<= 6",
        "rss_mb": "<= 300",
    },
}


class _Connection:
    """One keep-alive connection with TCP_NODELAY, as Go's client has it."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port)
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def post(self, path: str, body: bytes) -> tuple[float, bytes]:
        began = time.perf_counter()
        self._http.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._http.getresponse().read()
        return time.perf_counter() - began, answer


def _measure(port: int, names: list[str], requests: int) -> dict[str, Any]:
    connection = _Connection(port)

    def run(memory: str, fits: bool) -> dict[str, float]:
        times = []
        # a few pods in turn: each filtered pod holds its best node for a while, and nobody binds these
        pods = [objects.pending_pod(f"asks-{memory}-{index}", memory=memory) for index in range(4)]
        bodies = [msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": names}) for pod in pods]
        for index in range(requests + 20):
            body = bodies[index % len(bodies)]
            took, answer = connection.post("/filter", body)
            if index >= 20:
                times.append(took)
            decoded = json.loads(answer) if index in (0, requests) else None
            if decoded is not None:
                found = len(decoded.get("NodeNames") or ())
                expected = len(names) if fits else 0
                if decoded.get("Error") or found != expected:
                    raise SystemExit(f"{found} of {len(names)} nodes fit {memory}, {expected} should: {answer[:300]!r}")
        return milliseconds(times)

    return {"fit": run("8Gi", True), "none": run("200Gi", False)}


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    async with InMemoryApiServer() as api:
        api.preload("/api/v1/nodes", objects.nodes(options.nodes, options.devices))
        api.preload("/apis/hamipy.io/v1alpha1/nodedevices", objects.inventories(options.nodes, options.devices))
        api.preload("/api/v1/pods", objects.bound_pods(options.pods, options.nodes, options.devices))
        extender, metrics = free_port(), free_port()
        with kubeconfig(api.url) as config:
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hamipy", "--log-level", "warning", "scheduler", "--no-leadership"),
                *("--kubeconfig", str(config), "--extender-port", str(extender)),
                *("--webhook-port", str(free_port()), "--metrics-port", str(metrics)),
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            try:
                await asyncio.to_thread(wait_ready, metrics, process.pid)
                ready = time.perf_counter() - began
                names = [objects.node_name(i) for i in range(options.nodes)]
                figures = await asyncio.to_thread(_measure, extender, names, options.requests)
                return {**figures, "ready_s": round(ready, 2), "rss_mb": rss_mb(process.pid)}
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                await process.wait()


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, default=1000)
    arguments.add_argument("--devices", type=int, default=8)
    arguments.add_argument("--pods", type=int, default=5000)
    arguments.add_argument("--requests", type=int, default=1000, help="measured requests of each kind")
    options = arguments.parse_args()
    figures = asyncio.run(_run(options))
    title = f"extender: {options.nodes} nodes x {options.devices} devices, {options.pods} pods"
    show(options.output, title, figures, {"ready_s": "<= 2", **REACH.get(options.nodes, {})})


if __name__ == "__main__":
    main()
