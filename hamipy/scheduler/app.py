"""HTTP routes of the scheduler role: raw bodies in, raw bodies out; what they mean lies in the modules they call."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from hamipy.scheduler.extender import Extender
from hamipy.scheduler.metrics import CONTENT_TYPE, Metrics
from hamipy.scheduler.webhook import MalformedReview, Webhook
from hamipy.scheduler.wire import MAX_BODY, Reply

MAX_REVIEW = 3 * 1024 * 1024
"""Longest AdmissionReview in bytes; the API server itself takes no object above it."""

JSON = "application/json"

Check = Callable[[], str]
"""One sentence on why something is not ready; empty when it is."""


class _TooLarge(Exception):
    def __init__(self, limit: int) -> None:
        super().__init__(f"body: more than {limit} bytes: send at most that")


async def read_body(request: Request, limit: int) -> bytes:
    """The body, as long as it stays within the limit; a longer one is not read to its end."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _TooLarge(limit)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise _TooLarge(limit)
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def webhook_app(webhook: Webhook) -> Starlette:
    """`POST /mutate` and `GET /healthz`."""

    async def mutate(request: Request) -> Response:
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != JSON:
            return PlainTextResponse(f"Content-Type: {content_type!r}: must be {JSON}\n", 415)
        try:
            answer = webhook.review(await read_body(request, MAX_REVIEW))
        except _TooLarge as error:
            return PlainTextResponse(f"{error}\n", 413, headers={"Connection": "close"})
        except MalformedReview as error:
            return PlainTextResponse(f"{error}\n", 400)
        return Response(answer, media_type=JSON)

    return Starlette(routes=[Route("/mutate", mutate, methods=["POST"]), Route("/healthz", _alive)])


def extender_app(extender: Extender, ready: Check) -> Starlette:
    """The verbs of kube-scheduler's extender, `GET /healthz` and `GET /readyz`."""

    def verb(answer: Callable[[bytes], Reply | Awaitable[Reply]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                body = await read_body(request, MAX_BODY)
            except _TooLarge as error:
                return Response(
                    msgspec.json.encode({"Error": str(error)}), 413, media_type=JSON, headers={"Connection": "close"}
                )
            reply = answer(body)
            if not isinstance(reply, Reply):
                reply = await reply
            return Response(reply.body, reply.status, media_type=JSON)

        return endpoint

    verbs: dict[str, Callable[[bytes], Any]] = {
        "/filter": extender.filter,
        "/prioritize": extender.prioritize,
        "/preempt": extender.preempt,
        "/bind": extender.bind,
    }
    routes = [Route(path, verb(answer), methods=["POST"]) for path, answer in verbs.items()]
    return Starlette(routes=[*routes, Route("/healthz", _alive), Route("/readyz", _readiness(ready))])


def metrics_app(metrics: Metrics, inspect: Callable[[], AsyncIterator[bytes]], ready: dict[str, Check]) -> Starlette:
    """`GET /metrics`, `/inspect`, `/healthz`, and `/readyz/<part>` for each part of `ready`."""

    async def scrape(_: Request) -> Response:
        return StreamingResponse(metrics.render(), media_type=CONTENT_TYPE)

    async def ledger(_: Request) -> Response:
        return StreamingResponse(inspect(), media_type=JSON)

    parts = [Route(f"/readyz/{part}", _readiness(check)) for part, check in ready.items()]
    routes = [Route("/metrics", scrape), Route("/inspect", ledger), Route("/healthz", _alive), *parts]
    return Starlette(routes=routes)


async def _alive(_: Request) -> Response:
    return PlainTextResponse("ok\n")


def _readiness(check: Check) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_: Request) -> Response:
        problem = check()
        return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200)

    return endpoint
