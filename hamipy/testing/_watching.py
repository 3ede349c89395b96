"""Watches of the in-memory API server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

from hamipy.testing._refusal import Refused
from hamipy.testing._selectors import Test
from hamipy.testing._store import Change, Collection, Entry, Store, Watch, matches

Ending = Literal["end", "cut", "cut-next"]


class Watcher:
    """One open watch with its selection.

    Attributes:
        ending: how the test wants it to end: `end` as a timeout does, `cut` the connection, `cut-next` the connection
            in the middle of the next event.
        error: a `Status` object to send before it ends.
    """

    def __init__(self, store: Store, collection: Collection, namespace: str, test: Test | None) -> None:
        self.store, self.collection, self.namespace, self.test = store, collection, namespace, test
        self.watch = Watch()
        self.since = 0
        self.ending: Ending | None = None
        self.error: dict[str, Any] | None = None

    def open(self, version: str) -> None:
        """Begin after `version`; empty or 0: with everything there is.

        Raises:
            Refused: 410 too old, 400 no version.
        """
        if version in {"", "0"}:
            entries = self.collection.select(self.namespace, None)
            self.watch.pending.extend(Change(e.version, None, e) for e in entries)
        else:
            if not version.isdecimal():
                raise Refused(400, f"Invalid value: {version!r}: strconv.ParseUint: parsing: invalid syntax")
            since = int(version)
            if since < self.collection.forgotten:
                raise Refused(410, f"too old resource version: {since} ({self.store.version})")
            self.since = since  # the future is accepted, and silence follows until it has come
            self.watch.pending.extend(c for c in self.collection.log if c.version > since)
        self.collection.watches.add(self.watch)

    def close(self) -> None:
        """Not told any more."""
        self.collection.watches.discard(self.watch)

    def finish(self, ending: Ending, error: dict[str, Any] | None = None) -> None:
        """End it as a test wants."""
        self.ending, self.error = ending, error
        self.watch.wake.set()

    async def lines(self, *, bookmark_every: float | None, seconds: float) -> AsyncIterator[bytes]:
        """Events, several at a time, until time is up or `finish` was called."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        next_bookmark = loop.time() + bookmark_every if bookmark_every is not None else float("inf")
        while True:
            self.watch.wake.clear()
            if self.ending == "cut":
                return
            lines = []
            while self.watch.pending:
                line = self._line(self.watch.pending.popleft())
                if line is not None:
                    lines.append(line)
            if self.error is not None:
                lines.append(_event(b"ERROR", msgspec.json.encode(self.error)))
            if lines:
                yield b"".join(lines)
            if self.ending == "end" or self.error is not None or loop.time() >= until:
                return
            wait = min(until, next_bookmark) - loop.time()
            try:
                async with asyncio.timeout(max(0.0, wait)):
                    await self.watch.wake.wait()
            except TimeoutError:
                if loop.time() >= next_bookmark and not self.watch.pending:
                    next_bookmark = loop.time() + (bookmark_every or 0.0)
                    if self.store.version >= self.since:
                        yield self._bookmark()

    def _line(self, change: Change) -> bytes | None:
        if change.version <= self.since:
            return None
        was = change.before is not None and matches(change.before, self.namespace, self.test)
        now = change.after is not None and matches(change.after, self.namespace, self.test)
        if now:
            assert change.after is not None
            return _event(b"MODIFIED" if was else b"ADDED", self.collection.encoded(change.after))
        if was:
            assert change.before is not None
            return _event(b"DELETED", self._as_of(change.before, change.version))
        return None

    def _as_of(self, entry: Entry, version: int) -> bytes:
        """The object, with the version of the change that took it away."""
        if entry.version == version:
            return self.collection.encoded(entry)
        obj = self.collection.decoded(entry)
        obj["metadata"]["resourceVersion"] = str(version)
        return msgspec.json.encode(obj)

    def _bookmark(self) -> bytes:
        collection = self.collection
        obj = {
            "kind": collection.kind,
            "apiVersion": collection.api_version,
            "metadata": {"resourceVersion": str(self.store.version), "creationTimestamp": None},
        }
        if collection.kind in {"Pod", "Node"}:
            obj |= {"spec": {"containers": None} if collection.kind == "Pod" else {}, "status": {}}
        return _event(b"BOOKMARK", msgspec.json.encode(obj))


def _event(kind: bytes, obj: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind, obj)
