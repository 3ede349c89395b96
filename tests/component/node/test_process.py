"""The daemon as the process that a DaemonSet runs: killed at any moment, started again."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.component.node.conftest import Node


class Process:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        settings = self.node.settings()
        flags = {
            "node-name": settings.node_name,
            "kubeconfig": settings.kubeconfig,
            "mock-profile": "t4x2",
            "kubelet-dir": settings.kubelet_dir,
            "cdi-dir": settings.cdi_dir,
            "state-dir": settings.state_dir,
            "health-port": 0,
            "drain-limit": 0.0,
        }
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hamipy.cli.main", "node", *(f"--{k}={v}" for k, v in flags.items())
        )

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.process.wait()


@pytest.fixture
async def process(node: Node) -> AsyncIterator[Process]:
    process = Process(node)
    try:
        yield process
    finally:
        if process.process is not None:
            await process.end(signal.SIGKILL)


async def test_process_serves_and_leaves_nothing_on_sigterm(node: Node, process: Process) -> None:
    await process.start()
    await node.kubelet.wait_for_devices(32, limit=30)
    await node.until(lambda: node.serving, limit=30)
    assert await process.end(signal.SIGTERM) == 0
    assert not node.serving
    assert sorted(p.name for p in node.kubelet.plugin_dir.glob("hamipy*")) == []


async def test_kill_at_any_moment_loses_nothing(node: Node, process: Process) -> None:
    await process.start()
    await node.kubelet.wait_for_devices(32, limit=30)
    await node.until(lambda: node.serving, limit=30)
    assert node.object is not None
    devices = [d["id"] for d in node.object["spec"]["devices"]]

    from hamipy.core.model import Share

    pods: list[dict[str, Any]] = []
    uids: list[str] = []
    for number in range(6):
        pods.append(node.bind(f"p{number}", {"main": (Share(devices[number % 2], 2**30, number),)}))
        uids.append((await node.kubelet.admit(pods[-1])).uid)
    starts = [asyncio.create_task(node.kubelet.start_until(uid, "main", 30)) for uid in uids]
    for pause in (0.0, 0.005, 0.05):
        await asyncio.sleep(pause)
        await process.end(signal.SIGKILL)
        await process.start()
        await node.kubelet.wait_for_devices(32, limit=30)
    for number, started in enumerate(await asyncio.gather(*starts)):
        assert started.limits["pod"] == f"default/p{number}"
        assert started.limits["devices"][0]["cores"] == number
