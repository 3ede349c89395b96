"""`hamipy demo`: the whole path of a pod, on mock devices, with everything in this process tree."""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hamipy.cli.inspect import render
from hamipy.core.quantity import format_size
from hamipy.scheduler.inspect import Snapshot, look
from hamipy.testing.cluster import MiniCluster
from hamipy.testing.kubescheduler import Unschedulable

_NODES = {"node-a": "t4x1", "node-b": "t4x1"}
_PODS = (("app-1", "2Gi"), ("app-2-a", "8Gi"), ("app-2-b", "8Gi"), ("app-3", "2Gi"), ("app-4", "5Gi"))
_TOO_MUCH = ("app-5", "3Gi")


@click.command("demo")
def command() -> None:
    """Play a small cluster: two nodes with one 14 GiB mock card each, and pods that ask for parts of them.

    Real are the webhook, the extender, the published names and the device plugin, over HTTPS, HTTP and gRPC; the API
    server, the kubelets and kube-scheduler are stand-ins in this process.
    """
    asyncio.run(_play())


async def _play() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hamipy-") as directory:
        async with MiniCluster(Path(directory), _NODES) as cluster:
            _say("Two nodes with one mock card each; the cluster policy is binpack.")
            await _show(cluster)
            for name, memory in _PODS:
                node, containers = await cluster.run_pod(_pod(name, memory))
                main = containers["main"]
                (given,) = main.limits["devices"]
                seen = f"{main.env['HAMIPY_DEVICES']}, {format_size(given['memory'])}"
                _say(f"{name} asks for {memory}: it runs on {node} and sees {seen}.")
                await _show(cluster)
            name, memory = _TOO_MUCH
            try:
                await cluster.run_pod(_pod(name, memory))
            except Unschedulable as refusal:
                _say(f"{name} asks for {memory} and stays pending: {refusal}")
                click.echo(_free(await look(cluster.client)))
    click.echo(f"\nDone in {time.perf_counter() - began:.1f} s.")


def _say(text: str) -> None:
    click.secho(f"\n{text}\n", bold=True)


async def _show(cluster: MiniCluster) -> None:
    click.echo(render(await look(cluster.client)))


def _free(shot: Snapshot) -> str:
    free = (
        f"{format_size(device.memory.total - device.memory.allocated)} on {device.id}"
        for node in shot.nodes
        for device in node.devices
    )
    return f"Free memory: {', '.join(free)}."


def _pod(name: str, memory: str) -> Mapping[str, Any]:
    """A pod as its author writes it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [{"name": "main", "image": "busybox", "resources": {"limits": {"hamipy.io/memory": memory}}}]
        },
    }
