"""`hamipy uninstall`."""

import click

from hamipy.cli.main import run_async
from hamipy.cli.options import settings_options
from hamipy.scheduler.settings import UninstallSettings


@click.command("uninstall")
@settings_options(UninstallSettings)
def command(settings: UninstallSettings) -> None:
    """Take what hamipy wrote out of the cluster: published names and NodeDevices objects.

    The chart runs it before `helm uninstall` deletes the rest. Running containers live on. Safe to repeat.
    """
    from hamipy.scheduler.uninstall import run

    run_async(run(settings))
