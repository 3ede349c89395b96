"""`hamipy`: entry point, configuration file, logging, and how an error looks."""

import asyncio
import importlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from hamipy.core.errors import HamipyError

_COMMANDS = {
    "demo": "Play a small cluster in this process: mock devices, no Kubernetes, no GPU.",
    "inspect": "Show nodes and devices with what is allocated, and the pods on each device.",
    "node": "Run the node daemon: discover devices, publish them, hand them to containers.",
    "scheduler": "Run the scheduler's extender, webhook and publisher beside a kube-scheduler.",
    "uninstall": "Take published names, objects and labels out of the cluster.",
    "vendors": "Show the installed vendors and what each one finds on this machine.",
    "version": "Print the version.",
}


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
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="HAMIPY_LOG_LEVEL",
    default=None,
    help="How much to log.  [default: info]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="HAMIPY_LOG_FORMAT",
    default=None,
    help="How to log.  [default: text]",
)
@click.pass_context
def cli(ctx: click.Context, config: Path | None, log_level: str | None, log_format: str | None) -> None:
    """Share the accelerators of a Kubernetes cluster: fractions, whole devices, groups of devices.

    Every flag can also be an environment variable HAMIPY_<FLAG> and a key of the configuration file; a flag wins over
    the environment, the environment over the file.
    """
    from hamipy.cli.options import read_config_file

    file = read_config_file(config)
    ctx.meta["hamipy.config"] = file
    _configure_logging(
        log_level or str(file.get("log-level", "info")), log_format or str(file.get("log-format", "text"))
    )


class _JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _configure_logging(level: str, style: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if style == "json" else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


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
