"""`hamipy node`."""

import click

from hamipy.cli.main import run_async
from hamipy.cli.options import settings_options
from hamipy.node.settings import NodeSettings


@click.command("node")
@settings_options(NodeSettings)
def command(settings: NodeSettings) -> None:
    """Run the node daemon: discover devices, publish them, hand them to containers.

    Runs until it is told to stop (SIGTERM). Needs root, the kubelet's device-plugin directory and a container runtime
    with CDI.
    """
    from hamipy.node.daemon import run

    run_async(run(settings))
