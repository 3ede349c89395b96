"""Who we are to the API server, kept fresh: tokens and certificates from files that rotate, and credential plugins."""

import asyncio
import os
import ssl
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hamipy.kube.config import ClusterConfig, ExecPlugin
from hamipy.kube.errors import ConfigError

CHECK_SECONDS = 10.0
"""How often files are looked at. A projected token is renewed at 80 % of its life (an hour by default)."""

_EXEC_SECONDS = 30.0
_EXPIRY_MARGIN = timedelta(seconds=30)


class _ExecStatus(Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _ExecCredential(Struct):
    status: _ExecStatus


class Credentials:
    """The bearer token and the TLS context to use now.

    Args:
        config: where they come from.
        check_seconds: how often files are looked at.
    """

    def __init__(self, config: ClusterConfig, *, check_seconds: float = CHECK_SECONDS) -> None:
        self._config, self._check_seconds = config, check_seconds
        self._checked = -float("inf")
        self._stamp: tuple[object, ...] = ()
        self._token: str | None = config.token
        self._context: ssl.SSLContext | None = None
        self._plugin: _ExecStatus | None = None
        self._plugin_lock = asyncio.Lock()

    async def current(self) -> tuple[str | None, ssl.SSLContext | None]:
        """Token (None when certificates identify us) and TLS context (None for plain HTTP on this machine).

        Raises:
            ConfigError: a file or a plugin does not give what it should.
        """
        if self._config.exec is not None:
            await self._run_plugin_if_needed(self._config.exec)
        if time.monotonic() - self._checked >= self._check_seconds:
            self._load()
        return self._token, self._context

    async def refresh(self) -> bool:
        """The server did not accept us: read everything again; whether anything changed."""
        before = (self._token, self._stamp)
        if self._config.exec is not None:
            self._plugin = None
            await self._run_plugin_if_needed(self._config.exec)
        self._load()
        return (self._token, self._stamp) != before

    def _load(self) -> None:
        config = self._config
        self._checked = time.monotonic()
        if config.token is None and config.token_file is not None:
            self._token = self._read_token(Path(config.token_file))
        if not config.server.startswith("https://"):
            return
        stamp = tuple(_stamp(f) for f in (config.ca_file, config.client_cert_file, config.client_key_file))
        if self._context is None or stamp != self._stamp:
            self._context = self._make_context()
            self._stamp = stamp

    def _read_token(self, path: Path) -> str:
        try:
            token = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._token:
                return self._token  # a volume between two versions; the next look finds it
            raise ConfigError(f"token file {path}: cannot be read: {error}") from error
        if not token:
            raise ConfigError(f"token file {path}: is empty")
        return token

    def _make_context(self) -> ssl.SSLContext:
        config, plugin = self._config, self._plugin
        try:
            context = ssl.create_default_context(
                cafile=config.ca_file if config.ca_data is None else None,
                cadata=config.ca_data.decode("ascii") if config.ca_data is not None else None,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"certificate authority of {config.server}: cannot be read: {error}") from error
        cert: bytes | str | None = config.client_cert_data or config.client_cert_file
        key: bytes | str | None = config.client_key_data or config.client_key_file
        if plugin is not None and plugin.client_certificate_data:
            cert, key = plugin.client_certificate_data.encode(), (plugin.client_key_data or "").encode() or None
        if cert is not None:
            try:
                _load_chain(context, cert, key)
            except (OSError, ValueError) as error:
                raise ConfigError(f"client certificate for {config.server}: cannot be used: {error}") from error
        return context

    async def _run_plugin_if_needed(self, plugin: ExecPlugin) -> None:
        async with self._plugin_lock:
            if self._plugin is not None:
                expires = self._plugin.expiration_timestamp
                if expires is None or expires - _EXPIRY_MARGIN > datetime.now(UTC):
                    return
            self._plugin = await _run_plugin(plugin)
            self._token = self._plugin.token or self._config.token
            if self._plugin.client_certificate_data:
                self._context = None
                self._checked = -float("inf")


async def _run_plugin(plugin: ExecPlugin) -> _ExecStatus:
    """Run a credential plugin as client-go does: `KUBERNETES_EXEC_INFO` in, `ExecCredential` on stdout."""
    info: dict[str, Any] = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
    if plugin.cluster is not None:
        info["spec"]["cluster"] = plugin.cluster
    env = {**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f" ({plugin.install_hint.strip()})" if plugin.install_hint else ""
        raise ConfigError(f"credential plugin {plugin.command}: cannot be run: {error}{hint}") from error
    try:
        async with asyncio.timeout(_EXEC_SECONDS):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise ConfigError(f"credential plugin {plugin.command}: no answer within {_EXEC_SECONDS:.0f} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        said = " ".join(err.decode("utf-8", "replace").split())[-300:]
        raise ConfigError(f"credential plugin {plugin.command}: exit code {process.returncode}: {said}")
    try:
        status = msgspec.json.decode(out, type=_ExecCredential).status
    except msgspec.MsgspecError as error:
        raise ConfigError(f"credential plugin {plugin.command}: printed no ExecCredential: {error}") from error
    if not status.token and not status.client_certificate_data:
        raise ConfigError(f"credential plugin {plugin.command}: gave neither token nor client certificate")
    return status


def _load_chain(context: ssl.SSLContext, cert: bytes | str, key: bytes | str | None) -> None:
    """Give the context a client certificate; data goes through files that live no longer than this call."""
    with tempfile.TemporaryDirectory(prefix="hamipy-") as directory:

        def file(value: bytes | str, name: str) -> str:
            if isinstance(value, str):
                return value
            path = Path(directory, name)
            path.touch(mode=0o600)
            path.write_bytes(value)
            return str(path)

        context.load_cert_chain(file(cert, "cert.pem"), file(key, "key.pem") if key is not None else None)


def _stamp(path: str | None) -> tuple[int, int] | None:
    """What changes when a file is replaced or rewritten."""
    if path is None:
        return None
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns
