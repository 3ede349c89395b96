"""The wire under the client: sockets that notice a dead peer, and the transport's errors as ours."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp

from hamipy.kube.errors import Unreachable

CONNECT_SECONDS = 5.0
_READ_BUFFER = 256 * 1024

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def resource_of(path: str) -> str:
    """Resource and subresource of a path: `/api/v1/namespaces/a/pods/b/binding` -> `pods/binding`."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    return "/".join(parts[:1] + parts[2:3])


@contextmanager
def translated(method: str, path: str) -> Iterator[None]:
    """Turn the transport's errors into ours."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        raise Unreachable(method, path, error, sent=False) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unreachable(method, path, error) from error


def open_session() -> aiohttp.ClientSession:
    """A connection pool; bodies are not compressed, for on the way from the API server time is dearer than bytes."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=256, socket_factory=_socket),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BUFFER,
        skip_auto_headers=("Accept-Encoding",),
    )


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within half a minute that its peer is gone, also while only listening."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
