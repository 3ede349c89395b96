"""List and watch one collection, for ever, and hand what is there to a handler.

List in pages, watch from the list's resourceVersion, resume a broken watch where it stopped. List again only when the
server has forgotten that moment (410), when somebody asks, or when a watch stayed silent for longer than bookmarks
allow: a server whose etcd was restored from a backup accepts a version from its future and then says nothing. Waiting
has full jitter; a server that ends every watch at once is not hammered. Contract: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

import asyncio
import logging
import random
import time
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, Generic, Protocol

from hamipy.kube.backoff import Backoff
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import ApiError, Gone, KubeError
from hamipy.kube.streams import ObjectDecoder, T, WatchEvent

logger = logging.getLogger(__name__)

_SHORT_WATCH = 1.0
"""Seconds; a watch that ends sooner did not help, whatever it brought."""

_REFUSED_WATCHES = 3
"""Refusals in a row after which the resourceVersion itself is suspected."""


class Handler(Protocol[T]):
    """Receives what a reflector sees; called on the event loop, so it must not block.

    An exception is a bug of the handler: it ends `Reflector.run`.
    """

    def replace(self, items: list[T]) -> None:
        """These objects, and no others, are there."""

    def upsert(self, item: T) -> None:
        """This object was added or changed."""

    def remove(self, item: T) -> None:
        """This object is gone, or left the selection; `item` is its last state."""


class Reflector(Generic[T]):
    """Keeps a handler informed about one collection.

    Args:
        client: the API server.
        path: of the collection.
        item_type: type of its objects.
        handler: receives them.
        field_selector: as in the API, `spec.nodeName=n1`.
        label_selector: as in the API.
        page_size: objects a page.
        name: for logs and metrics.
        watch_seconds: about how long one watch lasts.
        idle_timeout: seconds without a byte after which a watch is given up; bookmarks come once a minute.
        backoff: between attempts.

    Attributes:
        synced: whether a whole list has been delivered.
        watching: whether a watch is established now.
        last_contact: `time.monotonic()` of the last byte of a watch or page of a list; -inf before.
        resource_version: of the last thing seen.
        lists, watches, events, errors: counts of lists delivered, watches established, changes delivered, failures.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        item_type: type[T],
        handler: Handler[T],
        *,
        field_selector: str | None = None,
        label_selector: str | None = None,
        page_size: int = 500,
        name: str,
        watch_seconds: int = 300,
        idle_timeout: float = 100.0,
        backoff: Backoff | None = None,
    ) -> None:
        self.name = name
        self.synced = self.watching = False
        self.last_contact = -float("inf")
        self.resource_version = ""
        self.lists = self.watches = self.events = self.errors = 0
        self._client, self._path, self._item_type, self._handler = client, path, item_type, handler
        self._params = {
            **({"fieldSelector": field_selector} if field_selector else {}),
            **({"labelSelector": label_selector} if label_selector else {}),
        }
        self._page_size, self._watch_seconds, self._idle_timeout = page_size, watch_seconds, idle_timeout
        self._decoder = ObjectDecoder(item_type)
        self._backoff = backoff or Backoff()
        self._first_list = asyncio.Event()
        self._wanted = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._problem = ""
        self._established: float | None = None

    @property
    def malformed(self) -> int:
        """Objects left out because they contradict their type."""
        return self._decoder.malformed

    async def wait_synced(self) -> None:
        """Return once a whole list has been delivered."""
        await self._first_list.wait()

    async def relist(self) -> None:
        """Return once a list that began after this call has been delivered.

        It asks for the newest state, so everything that was written before this call is in it.
        """
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wanted.set()
        await future

    async def list_once(self) -> None:
        """Deliver one whole list, for those who do not watch. Raises KubeError: it could not be had."""
        await self._list()

    async def run(self) -> None:
        """List and watch until cancelled."""
        try:
            await self._run()
        finally:
            self.watching = False
            for future in self._waiting:
                if not future.done():
                    future.set_exception(KubeError(f"reflector {self.name} has ended"))

    async def _run(self) -> None:
        refused, must_list = 0, True
        while True:
            ended_well, asked = False, 0.0
            self._established = None
            try:
                if must_list or self._wanted.is_set():
                    must_list = True
                    await self._list()
                    must_list = False
                    if self._wanted.is_set():
                        continue
                await self._unless_relist_wanted(self._watch())
                refused, ended_well = 0, True
            except Gone as error:
                must_list = True
                self._note(error)
            except KubeError as error:
                self._note(error)
                asked = (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
                refused = refused + 1 if isinstance(error, ApiError) else 0
                silent = self._established is not None and isinstance(error.__cause__, TimeoutError)
                must_list = must_list or silent or refused >= _REFUSED_WATCHES
            lasted = self._established is not None and time.monotonic() - self._established >= _SHORT_WATCH
            if lasted:
                self._backoff.reset()
            if not (lasted and ended_well):
                await self._unless_relist_wanted(asyncio.sleep(asked + self._backoff.next()))

    async def _list(self) -> None:
        self._wanted.clear()
        answered, self._waiting = self._waiting, []
        try:
            # A second 410 while paging: one answer without pages cannot expire between them.
            for limit in (self._page_size, self._page_size, 0):
                try:
                    items, version = await self._fetch(limit)
                    break
                except Gone as error:
                    if limit == 0:
                        raise
                    self._note(error)
        except BaseException:
            self._waiting[:0] = answered
            raise
        self.resource_version = version
        self._handler.replace(items)
        self.lists += 1
        self.synced = True
        self._first_list.set()
        self._recovered()
        for future in answered:
            if not future.done():
                future.set_result(None)

    async def _fetch(self, limit: int) -> tuple[list[T], str]:
        items: list[T] = []
        version = ""
        pages = self._client.pages(self._path, self._item_type, params=self._params, limit=limit, decoder=self._decoder)
        async with aclosing(pages):
            async for page in pages:
                self.last_contact = time.monotonic()
                items += page.items
                version = page.resource_version
        return items, version

    async def _watch(self) -> None:
        batches = self._client.watch_batches(
            self._path,
            self._decoder,
            resource_version=self.resource_version,
            params=self._params,
            seconds=int(self._watch_seconds * random.uniform(1.0, 1.5)),
            idle_timeout=self._idle_timeout,
        )
        try:
            async with aclosing(batches):
                async for batch in batches:
                    self.last_contact = time.monotonic()
                    if self._established is None:
                        self._established = self.last_contact
                        self.watching = True
                        self.watches += 1
                        self._recovered()
                    for event in batch:
                        self._deliver(event)
        finally:
            self.watching = False

    def _deliver(self, event: WatchEvent[T]) -> None:
        item = event.object
        match event.type:
            case "ADDED" | "MODIFIED":
                self._handler.upsert(item)
            case "DELETED":
                self._handler.remove(item)
            case "BOOKMARK":
                self.resource_version = item.metadata.resource_version
                return
            case _:
                logger.warning("%s: unknown watch event %r ignored", self.name, event.type)
                return
        self.events += 1
        self.resource_version = item.metadata.resource_version

    async def _unless_relist_wanted(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, but drop it when somebody asks for a new list."""
        task = asyncio.ensure_future(work)
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait((task, wanted), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            task.cancel()
            wanted.cancel()
            await asyncio.gather(task, wanted, return_exceptions=True)

    def _note(self, error: KubeError) -> None:
        """Count a failure; say it once, not at every attempt."""
        self.errors += 1
        level = logging.DEBUG if self._problem == str(error) or isinstance(error, Gone) else logging.WARNING
        self._problem = str(error)
        logger.log(level, "%s: %s", self.name, error)

    def _recovered(self) -> None:
        if self._problem:
            logger.info("%s: the API server answers again", self.name)
            self._problem = ""
