"""Calls an ASGI application without a server."""

from typing import Any, NamedTuple

import msgspec
from starlette.types import ASGIApp, Message


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode().strip()

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def call(
    app: ASGIApp,
    method: str,
    path: str,
    body: bytes | list[bytes] = b"",
    *,
    headers: dict[str, str] | None = None,
    announce: bool = True,
) -> Answer:
    """One request; a list is a body in chunks, `announce` sends its Content-Length."""
    chunks = list(body) if isinstance(body, list) else [body]
    sent = dict(headers or {})
    if announce:
        sent.setdefault("content-length", str(sum(map(len, chunks))))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "headers": [(k.lower().encode(), v.encode()) for k, v in sent.items()],
    }
    left = list(chunks)
    status, answered, parts = 0, {}, []

    async def receive() -> Message:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            answered.update({k.decode(): v.decode() for k, v in message["headers"]})
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return Answer(status, answered, b"".join(parts))
