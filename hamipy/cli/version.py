"""`hamipy version`."""

import click

from hamipy import __version__


@click.command("version")
def command() -> None:
    """Print the version."""
    click.echo(f"hamipy {__version__}")
