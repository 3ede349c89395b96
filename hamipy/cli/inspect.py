"""`hamipy inspect`: nodes x devices, allocated of total, and who sits where."""

import asyncio
from typing import Literal

import click
import msgspec
from msgspec import Struct

from hamipy.cli.options import settings_options
from hamipy.cli.tables import table
from hamipy.core.quantity import format_size
from hamipy.scheduler.inspect import NodeShot, Snapshot

_GIB = 2**30


class InspectSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `hamipy inspect` is told."""

    kubeconfig: str | None = None
    """Path of a kubeconfig; without it the pod's own account, else the user's default."""
    context: str | None = None
    """Context of the kubeconfig; without it the current one."""
    details: bool = False
    """The pods on each device too."""
    output: Literal["table", "json"] = "table"
    """How to print it."""


@click.command("inspect")
@settings_options(InspectSettings)
@click.argument("nodes", nargs=-1)
def command(settings: InspectSettings, *, nodes: tuple[str, ...]) -> None:
    """Show what is allocated of every device, as the API server's objects say it; NODES limits it to these.

    Memory is in GiB. A device that takes no new pods is marked: `!` sick, `-` its node takes none.
    """
    shot = asyncio.run(_look(settings))
    if nodes:
        known = {n.name for n in shot.nodes}
        if missing := [n for n in nodes if n not in known]:
            raise click.ClickException(
                f"no node {missing[0]!r} with devices; there are: {', '.join(sorted(known)) or 'none'}"
            )
        shot = msgspec.structs.replace(shot, nodes=tuple(n for n in shot.nodes if n.name in nodes))
    if settings.output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(shot)))
    else:
        click.echo(render(shot, details=settings.details))


async def _look(settings: InspectSettings) -> Snapshot:
    from hamipy.kube.client import KubeClient
    from hamipy.kube.config import load_config
    from hamipy.scheduler.inspect import look

    async with KubeClient(load_config(settings.kubeconfig, settings.context)) as client:
        return await look(client)


def render(shot: Snapshot, *, details: bool = False) -> str:
    """The snapshot as text.

    Args:
        shot: what to show.
        details: list the pods of each device too.
    """
    blocks = [_nodes(shot)]
    if details:
        blocks += [_details(node) for node in shot.nodes]
    total = sum(d.memory.total for n in shot.nodes for d in n.devices)
    allocated = sum(d.memory.allocated for n in shot.nodes for d in n.devices)
    blocks.append(f"Allocated memory: {_of(allocated, total)} GiB ({_percent(allocated, total)})")
    remarks = [f"{n.name}: {text}" for n in shot.nodes for text in _remarks(n)]
    remarks += [f"pending {p.namespace}/{p.name}" + (f": {p.reason}" if p.reason else "") for p in shot.pending]
    return "\n\n".join(blocks) + ("\n\n" + "\n".join(remarks) if remarks else "")


def _nodes(shot: Snapshot) -> str:
    widest = max((len(n.devices) for n in shot.nodes), default=0)
    header = ["NODE", *(f"DEVICE {i}" for i in range(widest)), "MEMORY", "CORES", "SHARES"]
    rows = []
    for node in shot.nodes:
        mark = "-" if node.closed or not node.schedulable else ""
        cells = [_of(d.memory.allocated, d.memory.total) + (mark if d.healthy else "!") for d in node.devices]
        sums = {
            name: [sum(getattr(getattr(d, name), part) for d in node.devices) for part in ("allocated", "total")]
            for name in ("memory", "cores")
        }
        shares = sum(len(d.pods) for d in node.devices)
        rows.append(
            (
                node.name,
                *cells,
                *[""] * (widest - len(cells)),
                _of(*sums["memory"]),
                f"{sums['cores'][0]}/{sums['cores'][1]}%",
                shares,
            )
        )
    return table(header, rows)


def _details(node: NodeShot) -> str:
    rows: list[tuple[object, ...]] = []
    for device in node.devices:
        state = "ok" if device.healthy else f"sick: {device.reason}"
        rows.append((device.id, device.model, _of(device.memory.allocated, device.memory.total), state))
        rows += [
            (
                f"  {pod.namespace}/{pod.name}",
                ",".join(pod.containers) or "unknown",
                format_size(pod.memory),
                f"{pod.cores}% cores" if pod.cores else "",
            )
            for pod in device.pods
        ]
    return f"{node.name}\n{table(('DEVICE / POD', 'MODEL / CONTAINERS', 'MEMORY', 'STATE'), rows)}"


def _remarks(node: NodeShot) -> list[str]:
    remarks = [node.problem] if node.problem else []
    if node.closed:
        remarks.append(
            {"serving": "its daemon is not serving", "node": "its Node or inventory is missing"}[node.closed]
        )
    if not node.schedulable:
        remarks.append("cordoned")
    remarks += [f"vendor {vendor}: {why}" for vendor, why in node.vendor_problems.items()]
    return remarks + [f"unknown pod {p.namespace}/{p.name}: {p.reason}" for p in node.unknown]


def _of(allocated: int, total: int) -> str:
    return f"{_gib(allocated)}/{_gib(total)}"


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f}".rstrip("0").rstrip(".")


def _percent(allocated: int, total: int) -> str:
    return f"{100 * allocated / total:.0f}%" if total else "-"
