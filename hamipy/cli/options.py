"""Command-line options made from settings structs, so that a setting is declared and described once.

Precedence: flag, then environment (`HAMIPY_<FLAG>`), then the configuration file, then the struct's default.
"""

import ast
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
import msgspec
import yaml

from hamipy.cli.logs import LogSettings
from hamipy.core.errors import HamipyError, InvalidField

S = TypeVar("S", bound=msgspec.Struct)
_PLAIN = {str: click.STRING, int: click.INT, float: click.FLOAT, bool: click.BOOL, Path: click.Path(path_type=Path)}
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    tuple: "a list",
    dict: "a mapping of settings",
}
_SHORT = {"details": "-d", "output": "-o"}
"""Flags that are typed so often that one letter has to do."""


class ConfigurationError(HamipyError):
    """The configuration file or a setting cannot be used."""


def read_config_file(path: Path | None) -> dict[str, Any]:
    """The configuration file as a mapping of flag names (`node-name: …`); empty when there is none.

    Raises:
        ConfigurationError: unreadable, or not a mapping.
    """
    if path is None:
        return {}
    try:
        document = yaml.safe_load(path.read_text())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigurationError(f"configuration file {path}: {where}{error.problem}") from error
    except OSError as error:
        raise ConfigurationError(f"configuration file {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"configuration file {path}: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(k, str) for k in document):
        raise ConfigurationError(f"configuration file {path}: must be a mapping of settings such as 'node-name: n1'")
    return {key.replace("_", "-"): value for key, value in document.items()}


def described(settings: type[msgspec.Struct]) -> dict[str, str]:
    """What each field means: its line in the docstring's `Attributes:`, or the string that follows it in the source."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(settings.__doc__ or "").partition("Attributes:")[2].splitlines():
        head = re.match(r" {4}((?:\w+)(?:, \w+)*): (.*)", line)
        if head:
            names = head[1].split(", ")
            found.update(dict.fromkeys(names, head[2].strip()))
        elif line.startswith(" " * 8):
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
    if all(field.name in found for field in msgspec.structs.fields(settings)):
        return found
    (class_,) = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(class_, ast.ClassDef)
    for statement, after in itertools.pairwise(class_.body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def settings_options(
    settings: type[S], *, defaults: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command one option for each field of `settings`; the command gets `settings=<struct>`.

    Args:
        settings: the struct.
        defaults: values for fields that this command does not insist on.
    """
    fields = msgspec.structs.fields(settings)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(*args: Any, **values: Any) -> Any:
            given = {f.name: values.pop(f.name) for f in fields if f.name in values}
            file = click.get_current_context().find_root().meta.get("hamipy.config", {})
            refuse_unknown_keys(file, settings)
            fallback = {k.replace("_", "-"): v for k, v in (defaults or {}).items()}
            return function(*args, settings=build(settings, given, {**fallback, **file}), **values)

        command.__doc__ = function.__doc__
        command.__name__ = function.__name__
        command.__click_params__ = list(getattr(function, "__click_params__", []))  # type: ignore[attr-defined]
        return options(settings)(command)

    return decorate


def options(settings: type[msgspec.Struct]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command one option for each field of `settings`; the command gets them by name, None where not given."""
    meanings = described(settings)
    types_ = typing.get_type_hints(settings)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for field in reversed(msgspec.structs.fields(settings)):
            option = _option(field, types_[field.name], meanings.get(field.name, ""))
            if option is not None:
                command = option(command)
        return command

    return decorate


def _option(field: Any, type_: Any, meaning: str) -> Callable[[Any], Any] | None:
    """The option of one field; None for mappings, which only the configuration file can carry."""
    base = _alternatives(type_)[0]
    flag = field.name.replace("_", "-")
    short = [_SHORT[field.name]] if field.name in _SHORT else []
    common: dict[str, Any] = {"help": meaning, "envvar": _variables(field.name), "show_envvar": True}
    if field.default not in (msgspec.NODEFAULT, None, ()):
        common["help"] = f"{meaning}  [default: {field.default}]"
    if base is bool:
        names = f"--{flag}" if flag.startswith("no-") else f"--{flag}/--no-{flag}"
        return click.option(*short, names, is_flag=True, default=None, **common)
    if typing.get_origin(base) is Literal:
        choice = click.Choice(typing.get_args(base))
        return click.option(*short, f"--{flag}", type=choice, default=None, **common)
    if base in _PLAIN:
        return click.option(*short, f"--{flag}", type=_PLAIN[base], default=None, **common)
    if typing.get_origin(base) is tuple:
        common["help"] += "  [comma-separated]"
        return click.option(*short, f"--{flag}", type=click.STRING, default=None, **common)
    return None


def _alternatives(type_: Any) -> list[Any]:
    """The types that a value may have, without None."""
    union = typing.get_origin(type_) in (typing.Union, types.UnionType)
    return [a for a in typing.get_args(type_) if a is not type(None)] if union else [type_]


def refuse_unknown_keys(file: Mapping[str, Any], settings: type[msgspec.Struct]) -> None:
    """Refuse keys of the configuration file that no command knows; one file may serve several commands.

    Raises:
        ConfigurationError: names the key and the nearest known one.
    """
    unknown = set(file) - _keys(settings) - _keys(LogSettings)
    if unknown:
        # imported only now: the node daemon has no use for the scheduler's settings
        from hamipy.cli.inspect import InspectSettings
        from hamipy.node.settings import NodeSettings
        from hamipy.scheduler.settings import SchedulerSettings, UninstallSettings

        commands = (NodeSettings, SchedulerSettings, UninstallSettings, InspectSettings)
        known = {key for command in (LogSettings, *commands) for key in _keys(command)}
        for key in sorted(unknown - known):
            import difflib  # for this message alone, and the node daemon is to stay small

            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see --help of the commands for the keys"
            raise ConfigurationError(f"configuration file: {key!r} is not a setting; {hint}")


def _keys(settings: type[msgspec.Struct]) -> set[str]:
    return {f.name.replace("_", "-") for f in msgspec.structs.fields(settings)}


def _variables(name: str) -> list[str]:
    """The environment variables of a setting; a kubeconfig is where everybody's tools look for it too."""
    return [f"HAMIPY_{name.upper()}", *(["KUBECONFIG"] if name == "kubeconfig" else [])]


def build(settings: type[S], given: Mapping[str, Any], file: Mapping[str, Any]) -> S:
    """The struct, from what flags and environment gave and else from the file.

    Raises:
        InvalidField: names the flag, the value and what is right.
    """
    values: dict[str, Any] = {}
    types_ = typing.get_type_hints(settings)
    for field in msgspec.structs.fields(settings):
        flag = field.name.replace("_", "-")
        value = given.get(field.name)
        if value is None:
            value = file.get(flag)
        if value is None:
            if field.required:
                raise click.UsageError(f"--{flag} (or HAMIPY_{field.name.upper()}) is needed")
            continue
        type_ = types_[field.name]
        listed = value
        if isinstance(value, str) and any(typing.get_origin(a) is tuple for a in _alternatives(type_)):
            listed = [part.strip() for part in value.split(",") if part.strip()]
        try:
            values[field.name] = msgspec.convert(listed, type_, strict=False, dec_hook=_decode)
        except msgspec.ValidationError as error:
            raise InvalidField(flag, value, f"must be {_words(type_)}") from error
    return settings(**values)


def _words(type_: Any) -> str:
    """What a value of this type is, for a person."""
    found = []
    for one in _alternatives(type_):
        origin = typing.get_origin(one)
        found.append(f"one of {', '.join(typing.get_args(one))}" if origin is Literal else _WORDS[origin or one])
    return " or ".join(found)


def _decode(type_: type, value: Any) -> Any:
    if type_ is Path or issubclass(type_, Path):
        return Path(value)
    raise NotImplementedError(type_)
