"""`hamipy vendors`."""

import asyncio
from collections.abc import Iterable

import click

from hamipy.cli.options import settings_options
from hamipy.cli.tables import table
from hamipy.core import registry
from hamipy.core.errors import VendorError
from hamipy.core.quantity import format_size
from hamipy.core.vendor import Discovered, Vendor, VendorContext
from hamipy.node.settings import NodeSettings
from hamipy.node.workers import Worker

_OPTIONAL_ROLES = ("watch", "edits", "prepare", "release", "usage")


@click.command("vendors")
@settings_options(NodeSettings, defaults={"node_name": "this-machine"})
def command(settings: NodeSettings) -> None:
    """Show the installed vendors, the roles they play, and what each one finds on this machine."""

    def context(name: str) -> VendorContext:
        state = settings.state_dir / "vendors" / name
        return VendorContext(settings=settings.of_vendor(name), state=state, node=settings.node_name)

    found = registry.load(context, only=settings.vendors or None)
    rows, devices = [], []
    answers = asyncio.run(_ask(found.vendors.values(), settings.discovery_limit))
    for vendor, answer in zip(found.vendors.values(), answers, strict=True):
        roles = ["discover", *(role for role in _OPTIONAL_ROLES if getattr(vendor, role) is not None)]
        state = answer.problem or f"{len(answer.devices)} device{'' if len(answer.devices) == 1 else 's'}"
        rows.append((vendor.name, ", ".join(roles), state))
        devices += [
            (
                d.id,
                d.vendor,
                d.model,
                format_size(d.memory),
                d.slots,
                d.numa,
                d.reason or ("ok" if d.healthy else "sick"),
            )
            for d in answer.devices
        ]
    rows += [(name, "-", f"off: {why}") for name, why in found.problems.items()]
    click.echo(table(("VENDOR", "ROLES", "HERE"), rows))
    if devices:
        click.echo("\n" + table(("DEVICE", "VENDOR", "MODEL", "MEMORY", "SLOTS", "NUMA", "HEALTH"), devices))


async def _ask(vendors: Iterable[Vendor], limit: float) -> list[Discovered]:
    return await asyncio.gather(*(_discover(vendor, limit) for vendor in vendors))


async def _discover(vendor: Vendor, limit: float) -> Discovered:
    """The vendor's answer, or why there is none: a third party's driver may raise anything, or hang."""
    try:
        answer: object = await Worker(vendor.name).call("discover", vendor.discover, limit)
    except VendorError as error:
        return Discovered(problem=str(error).removeprefix(f"vendor {vendor.name}: "))
    if not isinstance(answer, Discovered):
        return Discovered(problem=f"discover answered {type(answer).__name__}, not Discovered")
    return answer
