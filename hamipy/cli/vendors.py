"""`hamipy vendors`."""

import click

from hamipy.cli.options import settings_options
from hamipy.cli.tables import table
from hamipy.core import registry
from hamipy.core.quantity import format_size
from hamipy.core.vendor import Discovered, Vendor, VendorContext
from hamipy.node.settings import NodeSettings

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
    for vendor in found.vendors.values():
        answer = _discover(vendor)
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


def _discover(vendor: Vendor) -> Discovered:
    try:
        return vendor.discover()
    except Exception as error:  # noqa: BLE001 - whatever a third party's driver raises is what this command shows
        return Discovered(problem=f"{type(error).__name__}: {error}")
