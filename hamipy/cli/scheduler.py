"""`hamipy scheduler`."""

import click

from hamipy.cli.main import run_async
from hamipy.cli.options import settings_options
from hamipy.scheduler.settings import SchedulerSettings


@click.command("scheduler")
@settings_options(SchedulerSettings)
def command(settings: SchedulerSettings) -> None:
    """Run the scheduler role beside a kube-scheduler: extender, webhook, published names, wake-ups.

    Runs until it is told to stop (SIGTERM). The kube-scheduler of the same pod asks the extender on 127.0.0.1; its
    Lease decides which replica binds.
    """
    from hamipy.scheduler.service import run

    run_async(run(settings), uvloop=True)
