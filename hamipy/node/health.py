"""/healthz, /readyz and /metrics, with nothing but asyncio: an HTTP framework would not fit the daemon's memory."""

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

_LIMIT = 5.0
"""Seconds a client may take for its request."""

Answer = tuple[int, str]
_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HealthServer:
    """Serves GET on a port of all addresses; `routes` answer (status, text) by path."""

    def __init__(self, routes: dict[str, Callable[[], Answer]]) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self, port: int) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, port=port, limit=8192)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_LIMIT):
                head = await reader.readuntil(b"\r\n\r\n")
            status, text = self._answer(head)
            body = text.encode()
            writer.write(
                f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            async with asyncio.timeout(_LIMIT):
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            logger.debug("health client went away: %s", error)
        finally:
            writer.close()

    def _answer(self, head: bytes) -> Answer:
        method, _, rest = head.partition(b" ")
        if method != b"GET":
            return 405, "only GET\n"
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0].decode("ascii", "replace")
        route = self._routes.get(path)
        return route() if route is not None else (404, f"there are {', '.join(self._routes)}\n")
