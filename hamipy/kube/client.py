"""Requests to the API server: one connection pool, one identity, errors by class.

API contract: `k8s.io/api` and https://kubernetes.io/docs/reference/using-api/api-concepts/.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from hamipy.kube.backoff import Backoff
from hamipy.kube.config import ClusterConfig
from hamipy.kube.credentials import CHECK_SECONDS, Credentials
from hamipy.kube.errors import InvalidResponse, TooManyRequests, Unauthorized, api_error
from hamipy.kube.streams import ObjectDecoder, Page, T, WatchEvent
from hamipy.kube.transport import CONNECT_SECONDS, VERBS, open_session, resource_of, translated

logger = logging.getLogger(__name__)

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML; servers since 1.22 know no other name

_MAX_EVENT = 64 * 1024 * 1024
"""Longest watch line accepted; etcd holds objects of 1.5 MiB by default."""

Answer = TypeVar("Answer")


class KubeClient:
    """Speaks to one API server with one identity. An async context manager.

    A 429 is waited out and sent again as long as the request's timeout allows; nothing else is retried but a 401
    after credentials that turned out to be renewed.

    Args:
        config: server and identity.
        user_agent: what the server's audit log calls us.
        credentials_check: seconds between looks at rotating files.

    Attributes:
        writes: number of write requests sent, by verb and resource (`create pods/binding`).
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str = "hamipy",
        credentials_check: float = CHECK_SECONDS,
    ) -> None:
        self.config = config
        self.writes: Counter[str] = Counter()
        self._user_agent = user_agent
        self._credentials = Credentials(config, check_seconds=credentials_check)
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = open_session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object | None = None,
        content_type: str = JSON,
        timeout: float = 10.0,  # noqa: ASYNC109 - it bounds retries too
    ) -> bytes:
        """Send one request and return the answer's body.

        Args:
            method: HTTP method.
            path: from `/api` or `/apis` on.
            params: query.
            body: bytes as they are; anything else is encoded as JSON.
            content_type: of the body.
            timeout: seconds for everything, waiting for a 429 to pass included.

        Raises:
            ApiError: the server refused; its subclass says how.
            Unreachable: no whole answer in time.
            ConfigError: credentials cannot be read.
        """
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        deadline = asyncio.get_running_loop().time() + timeout
        backoff, renewed = Backoff(base=0.1, cap=5.0), False
        while True:
            try:
                return await self._once(method, path, params, data, content_type, deadline)
            except Unauthorized:
                if renewed or not await self._credentials.refresh():
                    raise
                renewed = True
            except TooManyRequests as error:
                wait = (error.retry_after or 0.0) + backoff.next()
                if asyncio.get_running_loop().time() + wait >= deadline:
                    raise
                logger.debug("%s; waiting %.1f s", error, wait)
                await asyncio.sleep(wait)

    async def _once(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        deadline: float,
    ) -> bytes:
        left = max(0.001, deadline - asyncio.get_running_loop().time())
        if method != "GET":
            self.writes[f"{VERBS.get(method, method.lower())} {resource_of(path)}"] += 1
        limits = aiohttp.ClientTimeout(total=left, sock_connect=CONNECT_SECONDS)
        async with self._open(method, path, params, data, content_type, limits) as response:
            with translated(method, path):
                answer = await response.read()
            if response.status >= 300:
                raise api_error(response.status, answer, method, path, response.headers.get("Retry-After"))
            return answer

    async def get(
        self,
        path: str,
        type_: type[Answer],
        *,
        params: Mapping[str, str] | None = None,
        timeout: float = 10.0,  # noqa: ASYNC109
    ) -> Answer:
        """Read one object; errors as `request`, and InvalidResponse when it is not of the type."""
        body = await self.request("GET", path, params=params, timeout=timeout)
        decoder = self._decoders.get(type_)
        if decoder is None:
            decoder = self._decoders[type_] = msgspec.json.Decoder(type_)
        try:
            answer: Answer = decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise InvalidResponse("GET", path, error) from error
        return answer

    async def create(self, path: str, body: object, *, timeout: float = 10.0) -> bytes:  # noqa: ASYNC109
        """Create an object in a collection; Conflict when the name is taken."""
        return await self.request("POST", path, body=body, timeout=timeout)

    async def merge_patch(self, path: str, body: object, *, timeout: float = 10.0) -> bytes:  # noqa: ASYNC109
        """Change some fields of an object (RFC 7386: null removes, lists are replaced)."""
        return await self.request("PATCH", path, body=body, content_type=MERGE_PATCH, timeout=timeout)

    async def apply(
        self,
        path: str,
        body: object,
        *,
        field_manager: str = "hamipy",
        force: bool = True,
        timeout: float = 10.0,  # noqa: ASYNC109
    ) -> bytes:
        """Server-side apply: create the object, or make its fields of this manager what `body` says."""
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self.request("PATCH", path, params=params, body=body, content_type=APPLY_PATCH, timeout=timeout)

    async def delete(
        self,
        path: str,
        *,
        timeout: float = 10.0,  # noqa: ASYNC109
        uid: str | None = None,
        grace_period: int | None = None,
    ) -> bytes:
        """Delete an object.

        Args:
            path: of the object.
            timeout: seconds.
            uid: only if this is its uid; else Conflict.
            grace_period: seconds; None for the object's own.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_period is not None:
            options["gracePeriodSeconds"] = grace_period
        return await self.request("DELETE", path, body=options, timeout=timeout)

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> None:
        """Assign a pod to a node and write annotations onto it, in one transaction of the API server.

        Raises:
            Conflict: assigned already, being deleted, or another pod has the name now (uid differs).
            NotFound: no such pod.
            Unreachable, ServerError: it may have happened.
        """
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.create(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", binding, timeout=timeout)

    async def pages(
        self,
        path: str,
        item_type: type[T],
        *,
        params: Mapping[str, str] | None = None,
        limit: int = 500,
        timeout: float = 60.0,  # noqa: ASYNC109
        decoder: ObjectDecoder[T] | None = None,
    ) -> AsyncGenerator[Page[T], None]:
        """List a collection page by page, all pages as of one moment.

        Args:
            path: of the collection.
            item_type: type of its objects.
            params: selectors; `resourceVersion` left out asks for the newest state.
            limit: objects a page; 0 for all in one.
            timeout: seconds for each page.
            decoder: for this type, to be used again.

        Raises:
            Gone: the list took so long that its moment is forgotten; begin again.
        """
        decoder = decoder or ObjectDecoder(item_type)
        query = {**(params or {}), **({"limit": str(limit)} if limit else {})}
        while True:
            body = await self.request("GET", path, params=query, timeout=timeout)
            page, token = decoder.page(body, path)
            yield page
            if not token:
                return
            query["continue"] = token

    async def watch(
        self,
        path: str,
        item_type: type[T],
        *,
        resource_version: str,
        params: Mapping[str, str] | None = None,
        timeout_seconds: int = 300,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Changes of a collection after `resource_version`, bookmarks included, until the server ends the watch.

        Raises:
            Gone: `resource_version` is too old; list again.
            ApiError, Unreachable: begin again from the last event's resourceVersion.
        """
        batches = self.watch_batches(
            path, ObjectDecoder(item_type), resource_version=resource_version, params=params, seconds=timeout_seconds
        )
        async with aclosing(batches):
            async for batch in batches:
                for event in batch:
                    yield event

    async def watch_batches(
        self,
        path: str,
        decoder: ObjectDecoder[T],
        *,
        resource_version: str,
        params: Mapping[str, str] | None = None,
        seconds: int = 300,
        idle_timeout: float = 100.0,
    ) -> AsyncGenerator[list[WatchEvent[T]], None]:
        """As `watch`, changes that arrive together as one list; an empty list says that bytes came.

        Args:
            path: of the collection.
            decoder: of its objects.
            resource_version: where to begin.
            params: selectors.
            seconds: after which the server ends the watch.
            idle_timeout: seconds without a byte after which the connection is given up (bookmarks come each minute).
        """
        query = {
            **(params or {}),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
        }
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=idle_timeout)
        async with self._open("GET", path, query, None, JSON, limits) as response:
            if response.status >= 300:
                with translated("WATCH", path):
                    answer = await response.read()
                raise api_error(response.status, answer, "WATCH", path, response.headers.get("Retry-After"))
            yield []
            tail: list[bytes] = []
            while True:
                with translated("WATCH", path):
                    chunk = await response.content.readany()
                if not chunk:
                    return  # a line cut short is not an event; it comes again when the watch is resumed
                lines = chunk.split(b"\n")
                if len(lines) == 1:
                    tail.append(chunk)
                    if sum(map(len, tail)) > _MAX_EVENT:
                        raise InvalidResponse("WATCH", path, f"an event of more than {_MAX_EVENT} bytes")
                    yield []
                    continue
                lines[0] = b"".join((*tail, lines[0]))
                tail = [last] if (last := lines.pop()) else []
                yield decoder.events(lines, path)

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("KubeClient is used inside `async with` only")
        token, context = await self._credentials.current()
        headers = {"Accept": JSON, "User-Agent": self._user_agent}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if data is not None:
            headers["Content-Type"] = content_type
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        with translated(method, path):
            response = await self._session.request(
                method,
                URL(f"{self.config.server}{path}{query}", encoded=True),
                data=data,
                headers=headers,
                ssl=context if context is not None else True,
                server_hostname=self.config.tls_server_name,
                timeout=limits,
                allow_redirects=False,  # the token is for this server only
            )
        try:
            yield response
        finally:
            if (connection := response.connection) is not None and connection.transport is not None:
                connection.transport.abort()  # not read to its end: TLS need not be closed politely
            response.close()
