"""Flags, environment and configuration file: one declaration, in that order of precedence."""

from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner
from msgspec import Struct

from hamipy.cli.inspect import InspectSettings
from hamipy.cli.logs import LogSettings
from hamipy.cli.main import _COMMANDS, cli
from hamipy.cli.options import ConfigurationError, described, settings_options
from hamipy.core.errors import HamipyError, InvalidField
from hamipy.node.settings import NodeSettings
from hamipy.scheduler.settings import SchedulerSettings, UninstallSettings


class _Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a command.

    Attributes:
        size: how large it is,
            in bytes.
    """

    size: int = 1
    node_name: str = ""
    """Name of the node."""
    vendors: tuple[str, ...] = ()
    """Which vendors."""
    no_check: bool = False
    """Skip the check."""
    path: Path | None = None
    """A path."""
    details: bool = False
    """Whether to say more."""
    output: Literal["table", "json"] = "table"
    """How to say it."""


@click.command()
@settings_options(_Settings)
def _command(settings: _Settings) -> None:
    click.echo(repr(settings))


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def _with_file(file: dict[str, object]) -> click.Group:
    @click.group()
    @click.pass_context
    def root(ctx: click.Context) -> None:
        ctx.meta["hamipy.config"] = file

    root.add_command(_command, "run")
    return root


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(runner: CliRunner) -> None:
    root = _with_file({"size": 2, "node-name": "from-file"})
    env = {"HAMIPY_SIZE": "3"}
    assert "size=4" in runner.invoke(root, ["run", "--size", "4"], env=env).output
    assert "size=3" in runner.invoke(root, ["run"], env=env).output
    assert "size=2" in runner.invoke(root, ["run"]).output
    assert "node_name='from-file'" in runner.invoke(root, ["run"], env=env).output


def test_lists_are_comma_separated_and_bare_flags_take_no_value(runner: CliRunner) -> None:
    output = runner.invoke(_command, ["--vendors", "a, b", "--no-check", "--path", "/x"]).output
    assert "vendors=('a', 'b')" in output
    assert "no_check=True" in output
    assert "path=PosixPath('/x')" in output


def test_an_unknown_key_of_the_file_is_refused_with_the_nearest_one(runner: CliRunner) -> None:
    result = runner.invoke(_with_file({"extender-prot": 1}), ["run"])
    assert isinstance(result.exception, ConfigurationError)
    assert str(result.exception) == (
        "configuration file: 'extender-prot' is not a setting; did you mean 'extender-port'?"
    )


def test_a_key_of_another_command_is_no_error(runner: CliRunner) -> None:
    assert runner.invoke(_with_file({"extender-port": 1}), ["run"]).exit_code == 0


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ({"size": "large"}, "size: 'large': must be a whole number"),
        ({"node-name": 5}, "node-name: 5: must be text"),
        ({"vendors": 5}, "vendors: 5: must be a list"),
        ({"no-check": "perhaps"}, "no-check: 'perhaps': must be true or false"),
        ({"path": 5}, "path: 5: must be a path"),
        ({"output": "yaml"}, "output: 'yaml': must be one of table, json"),
    ],
)
def test_a_value_of_the_wrong_type_names_its_key(runner: CliRunner, file: dict[str, object], complaint: str) -> None:
    result = runner.invoke(_with_file(file), ["run"])
    assert isinstance(result.exception, InvalidField)
    assert str(result.exception) == complaint


def test_one_of_several_words_and_a_short_flag_are_settings_like_others(runner: CliRunner) -> None:
    root = _with_file({"details": True, "output": "json"})
    assert "details=True, output='json'" in runner.invoke(root, ["run"]).output
    assert "details=False, output='table'" in runner.invoke(root, ["run", "--no-details", "-o", "table"]).output
    env = {"HAMIPY_DETAILS": "1", "HAMIPY_OUTPUT": "json"}
    assert "details=True, output='json'" in runner.invoke(_command, [], env=env).output
    assert "details=True, output='table'" in runner.invoke(_command, ["-d"]).output
    assert runner.invoke(_command, ["-o", "yaml"]).exit_code == 2


@pytest.mark.parametrize("settings", [LogSettings, InspectSettings, NodeSettings, SchedulerSettings, UninstallSettings])
def test_every_setting_is_described(settings: type[Struct]) -> None:
    meanings = described(settings)
    assert [f for f in settings.__struct_fields__ if not meanings.get(f)] == []


@pytest.mark.parametrize("command", list(_COMMANDS))
def test_help_of_every_command_says_what_it_does_and_which_variables_it_reads(runner: CliRunner, command: str) -> None:
    result = runner.invoke(cli, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 4


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n- b\n", "must be a mapping of settings such as 'node-name: n1'"),
        ("a: [", "line 1, column 5: expected the node content, but found '<stream end>'"),
        ("a: \0", "special characters are not allowed"),
        ("log-level: nonsense", "log-level: 'nonsense': must be one of debug, info, warning, error"),
        ("log-format: xml", "log-format: 'xml': must be one of text, json"),
    ],
)
def test_a_configuration_file_that_cannot_be_used_is_refused_in_one_sentence(
    runner: CliRunner, tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    result = runner.invoke(cli, ["--config", str(path), "version"])
    assert isinstance(result.exception, HamipyError)
    assert complaint in str(result.exception)
    assert "\n" not in str(result.exception)
