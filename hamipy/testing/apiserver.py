"""An API server in memory, over real HTTP on this machine, for tests, demos and benchmarks without a cluster.

It keeps the promises that our components rely on: one resourceVersion for all, lists in pages of one moment, watches
that resume, bookmarks, 410 for what is forgotten, preconditions, merge and JSON patches, server-side apply, bindings
that write annotations, terminating pods, owners, schemas of custom resources. It has no controllers and no kubelet:
what they would do, a test does. Any fault can be ordered through `faults`, `cut_watches`, `compact` and `pause`.

    async with InMemoryApiServer() as api:
        api.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
        async with KubeClient(api.config()) as client:
            ...
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from hamipy.kube.config import ClusterConfig
from hamipy.kube.nodedevices import crd_manifest
from hamipy.testing._faults import Fault, Faults
from hamipy.testing._lists import Lists
from hamipy.testing._patches import merge
from hamipy.testing._paths import CRDS, PODS, Target, parse_path
from hamipy.testing._refusal import Refused
from hamipy.testing._selectors import parse_selectors
from hamipy.testing._store import Entry, Object
from hamipy.testing._verbs import Admission, Verbs, load_json
from hamipy.testing._watching import Watcher

__all__ = ["Admission", "Fault", "Faults", "InMemoryApiServer", "Refused", "Request"]

_WRITES = {"create", "update", "patch", "delete"}


@dataclass(frozen=True, slots=True)
class Request:
    """One request that arrived; `body` is kept for writes only."""

    verb: str
    path: str
    query: Mapping[str, str]
    body: bytes
    token: str


class InMemoryApiServer:
    """The server. An async context manager; the methods that tests call directly are synchronous and obey no rules
    but those of the store.

    Args:
        crds: whether the NodeDevices definition is installed from the start.
        tls: serve HTTPS with this context.
        ca: PEM of the certificate authority that clients need with `tls`.
        bookmark_every: seconds between bookmarks of a watch; None for none. The real server sends one a minute.
        log_size: changes remembered for each resource; watches from before that get 410.
        port: to listen on; 0 for any free one.

    Attributes:
        faults: orders faults.
        requests: what arrived, oldest first (at most 10,000).
        tokens: bearer tokens accepted; None for everybody.
        authorize: called with verb, path and token; False is answered with 403.
        admission: asked about every pod created over HTTP.
        graceful: whether deleted pods that run on a node stay terminating until `finish_deletion`.
    """

    def __init__(
        self,
        *,
        crds: bool = True,
        tls: ssl.SSLContext | None = None,
        ca: bytes | None = None,
        bookmark_every: float | None = 60.0,
        log_size: int = 100_000,
        port: int = 0,
    ) -> None:
        self.faults = Faults()
        self.requests: deque[Request] = deque(maxlen=10_000)
        self.tokens: set[str] | None = None
        self.authorize: Callable[[str, str, str], bool] | None = None
        self._verbs = Verbs(log_size=log_size)
        self._tls, self._ca, self._bookmark_every = tls, ca, bookmark_every
        self._lists = Lists(self._verbs.store)
        self._watchers: dict[Watcher, web.Request] = {}
        self._runner: web.AppRunner | None = None
        self._port = port
        if crds:
            self.create(CRDS, crd_manifest())

    # -- life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.resume()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.pause()

    async def pause(self) -> None:
        """Stop answering: cut all connections and refuse new ones, as a server that was killed. Nothing is lost."""
        self.cut_watches()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def resume(self) -> None:
        """Answer (again), at the same address."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def config(self, **changes: Any) -> ClusterConfig:
        """How a client reaches it; `changes` are fields of ClusterConfig."""
        return ClusterConfig(**{"server": self.url, "ca_data": self._ca, **changes})

    # -- what a test does directly --------------------------------------------------------------------------------

    @property
    def admission(self) -> Admission | None:
        """Who is asked about new pods."""
        return self._verbs.admission

    @admission.setter
    def admission(self, admission: Admission | None) -> None:
        self._verbs.admission = admission

    @property
    def graceful(self) -> bool:
        """Whether deleted pods that run on a node stay terminating."""
        return self._verbs.graceful

    @graceful.setter
    def graceful(self, graceful: bool) -> None:
        self._verbs.graceful = graceful

    @property
    def resource_version(self) -> int:
        """The newest."""
        return self._verbs.store.version

    def create(self, path: str, obj: Mapping[str, Any]) -> Object:
        """Add an object to a collection as it is, status included; `path` as in the API."""
        target = parse_path(path)
        namespace = target.namespace or (obj.get("metadata") or {}).get("namespace", "")
        if target.collection == PODS:
            obj = {"status": {"phase": "Pending"}, **obj}
        return self._decoded(target, self._verbs.put_new(target._replace(namespace=namespace), obj))

    def get(self, path: str) -> Object:
        """An object; Refused (404) when there is none."""
        target = parse_path(path)
        return self._decoded(target, self._verbs.store.get(target.collection, (target.namespace, target.name)))

    def list(self, path: str, *, field_selector: str = "", label_selector: str = "") -> list[Object]:
        """The objects of a collection, of one namespace or of all."""
        target = parse_path(path)
        collection = self._verbs.store.collection(target.collection)
        found = collection.select(target.namespace, parse_selectors(field_selector, label_selector))
        return [collection.decoded(entry) for entry in found]

    def patch(self, path: str, patch: Mapping[str, Any]) -> Object:
        """Merge a patch into any part of an object, status and spec alike."""
        target = parse_path(path)
        entry = self._verbs.store.get(target.collection, (target.namespace, target.name))
        changed = merge(self._decoded(target, entry), dict(patch))
        return self._decoded(target, self._verbs.store.update(target.collection, entry, changed))

    def delete(self, path: str) -> None:
        """Take an object out at once, and what it owns with it."""
        self._verbs.finish(parse_path(path))

    def finish_deletion(self, namespace: str, name: str) -> None:
        """Take a pod out, as the kubelet does when its containers have ended."""
        self._verbs.finish(Target(PODS, namespace, name, ""))

    def preload(self, path: str, objects: Iterable[Mapping[str, Any] | bytes]) -> int:
        """Add many objects before clients come; bytes are JSON of whole objects. Returns how many."""
        return self._verbs.store.load(parse_path(path).collection, objects)

    def compact(self) -> None:
        """Forget all history: watches from before now and lists that are under way get 410."""
        self._lists.forget()
        for collection in self._verbs.store.collections.values():
            collection.forget(self._verbs.store.version)

    @property
    def open_watches(self) -> int:
        """How many watches are open."""
        return len(self._watchers)

    def cut_watches(self, path: str | None = None, *, in_next_event: bool = False) -> int:
        """Cut the connections of watches (of one collection); at once, or in the middle of their next event."""
        return self._finish(path, "cut-next" if in_next_event else "cut")

    def end_watches(self, path: str | None = None) -> int:
        """End watches as the server does when their time is up."""
        return self._finish(path, "end")

    def fail_watches(
        self, path: str | None = None, *, code: int = 410, message: str = "too old resource version"
    ) -> int:
        """End watches with an ERROR event."""
        return self._finish(path, "end", Refused(code, message).status())

    def _finish(self, path: str | None, ending: Any, error: Object | None = None) -> int:
        found = [w for w in self._watchers if path is None or w.collection.path == parse_path(path).collection]
        for watcher in found:
            watcher.finish(ending, error)
        return len(found)

    def _decoded(self, target: Target, entry: Entry) -> Object:
        return self._verbs.store.collection(target.collection).decoded(entry)

    # -- HTTP -----------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        verb, token = _verb(request.method, request.path, query), request.headers.get("Authorization", "")[7:]
        body = await request.read()
        self.requests.append(Request(verb, request.path, query, body if verb in _WRITES else b"", token))
        faults = self.faults.take(verb, request.path, query)
        for fault in faults:
            await asyncio.sleep(fault.delay)
        if any(f.drop == "before" for f in faults):
            return _cut(request)
        try:
            self._check(verb, request.path, token, faults)
            if verb == "watch":
                return await self._watch(request, query, close=any(f.close for f in faults))
            answer = await self._answer(verb, request, query, body)
        except Refused as refused:
            answer = _refusal(refused)
        if any(f.drop == "after" for f in faults):
            return _cut(request)
        return answer

    def _check(self, verb: str, path: str, token: str, faults: Iterable[Fault]) -> None:
        """Refuse what a fault or the identity refuses."""
        for fault in faults:
            if fault.status:
                raise Refused(fault.status, "ordered by the test", fault.reason, fault.retry_after)
        if self.tokens is not None and token not in self.tokens:
            raise Refused(401)
        if self.authorize is not None and not self.authorize(verb, path, token):
            raise Refused(403, f'cannot {verb} {path}: User "fake" has no such right')

    async def _answer(self, verb: str, request: web.Request, query: Mapping[str, str], body: bytes) -> web.Response:
        if request.path in {"/healthz", "/livez", "/readyz"}:
            return web.Response(text="ok")
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.0-in-memory"})
        target = parse_path(request.path)
        collection = self._verbs.store.collection(target.collection)
        match verb:
            case "list":
                return _json(self._lists.page(target, query))
            case "get":
                return _json(collection.encoded(self._verbs.store.get(target.collection, target[1:3])))
            case "create" if target.subresource == "binding":
                self._verbs.bind(target, load_json(body))
                return _success(201)
            case "create" if target.subresource == "eviction":
                self._verbs.delete(target, load_json(body).get("deleteOptions") or {}, query)
                return _success(201)
            case "create" if not target.name:
                return _json(collection.encoded(await self._verbs.create(target, load_json(body))), 201)
            case "update" if target.name:
                return _json(collection.encoded(self._verbs.update(target, load_json(body))))
            case "patch" if target.name:
                entry, created = self._verbs.patch(target, body, request.headers.get("Content-Type", ""), query)
                return _json(collection.encoded(entry), 201 if created else 200)
            case "delete" if target.name:
                left = self._verbs.delete(target, load_json(body) if body else {}, query)
                return _success(200) if left is None else _json(collection.encoded(left))
        raise Refused(405, f"{request.method} is not supported on {request.path}")

    async def _watch(self, request: web.Request, query: Mapping[str, str], *, close: bool) -> web.StreamResponse:
        target = parse_path(request.path)
        fields = query.get("fieldSelector", "")
        if target.name:
            fields = f"{fields},metadata.name={target.name}"
        test = parse_selectors(fields, query.get("labelSelector", ""))
        watcher = Watcher(self._verbs.store, self._verbs.store.collection(target.collection), target.namespace, test)
        refused: Refused | None = None
        try:
            watcher.open(query.get("resourceVersion", ""))
        except Refused as error:
            if error.code != 410:
                raise
            refused = error  # the real server accepts the watch and says so in its first event
        if refused is not None or close:
            watcher.finish("end", refused.status() if refused is not None else None)
        bookmarks = self._bookmark_every if query.get("allowWatchBookmarks") in {"true", "1"} else None
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        self._watchers[watcher] = request
        try:
            await response.prepare(request)
            seconds = float(query.get("timeoutSeconds") or 1800)
            async for lines in watcher.lines(bookmark_every=bookmarks, seconds=seconds):
                if watcher.ending == "cut-next":
                    first = lines.partition(b"\n")[0]
                    await response.write(first[: len(first) // 2])
                    return _cut(request)
                await response.write(lines)
            if watcher.ending == "cut":
                return _cut(request)
            await response.write_eof()
        except ConnectionError:
            pass  # the client went away, as clients of watches do
        finally:
            watcher.close()
            self._watchers.pop(watcher, None)
        return response


def _verb(method: str, path: str, query: Mapping[str, str]) -> str:
    """The API's own word for a request."""
    if method != "GET":
        return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, method.lower())
    if query.get("watch") in {"1", "true"}:
        return "watch"
    try:
        return "get" if parse_path(path).name else "list"
    except Refused:
        return "get"


def _cut(request: web.Request) -> web.Response:
    """End the connection as a broken network does."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _json(body: bytes, status: int = 200) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")


def _success(status: int) -> web.Response:
    obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": status}
    return _json(msgspec.json.encode(obj), status)


def _refusal(refused: Refused) -> web.Response:
    response = _json(msgspec.json.encode(refused.status()), refused.code)
    if refused.retry_after is not None:
        response.headers["Retry-After"] = str(int(refused.retry_after))
    return response
