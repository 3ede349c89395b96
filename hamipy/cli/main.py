"""`hamipy`: entry point, configuration file, and how an error looks."""

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from hamipy.cli.logs import LogSettings, configure
from hamipy.cli.options import build, options, read_config_file
from hamipy.core.errors import HamipyError

_COMMANDS = {
    "demo": "Play a small cluster in this process: mock devices, no Kubernetes, no GPU.",
    "inspect": "Show nodes and devices with what is allocated, and the pods on each device.",
    "node": "Run the node daemon: discover devices, publish them, hand them to containers.",
    "scheduler": "Run the scheduler's extender, webhook and publisher beside a kube-scheduler.",
    "uninstall": "Take published names and objects out of the cluster.",
    "vendors": "Show the installed vendors and what each one finds on this machine.",
    "version": "Print the version.",
}
_LOG_LEVELS = {"demo": "warning"}
"""Default of a command whose own words are what is to be read."""


class _Commands(click.Group):
    """Loads a command's module when it is asked for, so that the node daemon never imports the scheduler."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        cmd_name: str,
    ) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"hamipy.cli.{cmd_name}").command
        return command

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    envvar="HAMIPY_CONFIG",
    help="Configuration file (YAML): any flag of any command as a key.",
)
@options(LogSettings)
@click.pass_context
def cli(ctx: click.Context, /, config: Path | None, **log: Any) -> None:
    """Share the accelerators of a Kubernetes cluster: fractions, whole devices, groups of devices.

    Every flag can also be an environment variable HAMIPY_<FLAG> and a key of the configuration file; a flag wins over
    the environment, the environment over the file.
    """
    file = read_config_file(config)
    ctx.meta["hamipy.config"] = file
    level = {"log-level": _LOG_LEVELS[name]} if (name := ctx.invoked_subcommand) in _LOG_LEVELS else {}
    configure(build(LogSettings, log, {**level, **file}))


def run_async(main: Any, *, uvloop: bool = False) -> None:
    """Run a role's coroutine to its end, on uvloop where asked."""
    if uvloop:
        from uvloop import new_event_loop

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main)
    else:
        asyncio.run(main)


def main() -> None:
    """Run the command line; errors of ours are one sentence and exit code 1, wrong usage is 2."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except HamipyError as error:
        click.echo(f"hamipy: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
