"""What the in-memory API server holds: objects as encoded bytes, one resourceVersion for all, a log for watches.

Objects are kept encoded and decoded only when somebody changes them, so that 20,000 pods cost their bytes.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from hamipy.testing._patches import Managers
from hamipy.testing._refusal import Refused
from hamipy.testing._selectors import Test, fields_of

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""


@dataclass(slots=True, eq=False)
class Entry:
    """One version of one object. `body` is its JSON without the leading brace, `kind` and `apiVersion`."""

    key: Key
    body: bytes
    version: int
    uid: str
    fields: dict[str, str]
    labels: dict[str, str]
    owners: tuple[tuple[str, str, str], ...]
    managers: Managers


@dataclass(slots=True)
class Change:
    """One entry of the log: the object before and after."""

    version: int
    before: Entry | None
    after: Entry | None


@dataclass(slots=True, eq=False)
class Watch:
    """One open watch: what it has not been told yet."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    pending: deque[Change] = field(default_factory=deque)


class Collection:
    """All objects of one resource."""

    def __init__(self, path: str, kind: str, *, log_size: int) -> None:
        self.path, self.kind = path, kind
        parts = path.strip("/").split("/")
        self.resource = parts[-1]
        self.api_version = "/".join(parts[1:-1])
        self.builtin = parts[0] == "api" or parts[1].endswith(".k8s.io") or "." not in parts[1]
        self.prefix = b'{"kind":%s,"apiVersion":%s,' % tuple(map(msgspec.json.encode, (kind, self.api_version)))
        self.entries: dict[Key, Entry] = {}
        self.log: deque[Change] = deque(maxlen=log_size)
        self.forgotten = 0
        self.watches: set[Watch] = set()
        self._sorted: list[Entry] | None = None

    def encoded(self, entry: Entry) -> bytes:
        """The whole object."""
        return self.prefix + entry.body

    def listed(self, entry: Entry) -> bytes:
        """The object as it stands in a list: built-in types are without `kind` and `apiVersion` there."""
        return b"{" + entry.body if self.builtin else self.prefix + entry.body

    def decoded(self, entry: Entry) -> Object:
        """The whole object, as a tree of its own."""
        obj: Object = msgspec.json.decode(self.encoded(entry))
        return obj

    def select(self, namespace: str, test: Test | None) -> list[Entry]:
        """Entries in key order."""
        if self._sorted is None:
            self._sorted = [self.entries[key] for key in sorted(self.entries)]
        if not namespace and test is None:
            return self._sorted
        return [e for e in self._sorted if matches(e, namespace, test)]

    def put(self, change: Change) -> None:
        """Make a change, log it, tell the watches."""
        if change.after is not None:
            self.entries[change.after.key] = change.after
        elif change.before is not None:
            del self.entries[change.before.key]
        self._sorted = None
        if len(self.log) == self.log.maxlen:
            self.forgotten = self.log[0].version
        self.log.append(change)
        for watch in self.watches:
            watch.pending.append(change)
            watch.wake.set()

    def forget(self, version: int) -> None:
        """Compact: versions up to this one can no longer be watched from."""
        self.forgotten = version
        self.log.clear()


def matches(entry: Entry, namespace: str, test: Test | None) -> bool:
    """Whether an entry lies in the namespace (empty: all) and passes the selectors."""
    return (not namespace or entry.key[0] == namespace) and (test is None or test(entry.fields, entry.labels))


class Store:
    """All collections.

    Args:
        kind_of: kind of the objects at a collection path; raises Refused 404 for an unknown resource.
        log_size: changes kept for each collection; older ones answer 410.
    """

    def __init__(self, kind_of: Callable[[str], str], *, log_size: int = 100_000) -> None:
        self.version = 1
        self.collections: dict[str, Collection] = {}
        self.uids: set[str] = set()
        self._kind_of, self._log_size = kind_of, log_size

    def collection(self, path: str) -> Collection:
        """The collection at a path without namespace, `/api/v1/pods`."""
        found = self.collections.get(path)
        if found is None:
            found = self.collections[path] = Collection(path, self._kind_of(path), log_size=self._log_size)
        return found

    def get(self, path: str, key: Key) -> Entry:
        """An entry; Refused 404 when there is none."""
        collection = self.collection(path)
        entry = collection.entries.get(key)
        if entry is None:
            raise Refused(404, f'{collection.resource} "{key[1]}" not found')
        return entry

    def create(self, path: str, namespace: str, obj: Mapping[str, Any]) -> Entry:
        """Add an object with a uid, creation time and version of its own; Refused 409 when the name is taken."""
        collection = self.collection(path)
        metadata = {**(obj.get("metadata") or {})}
        name = metadata.get("name") or ""
        if not name and metadata.get("generateName"):
            name = metadata["generateName"] + uuid.uuid4().hex[:5]
        if not name:
            raise Refused(422, f"{collection.kind} is invalid: metadata.name: Required value: name or generateName")
        key = (namespace, name)
        if key in collection.entries:
            raise Refused(409, f'{collection.resource} "{name}" already exists', "AlreadyExists")
        metadata |= {"name": name, **({"namespace": namespace} if namespace else {})}
        metadata["uid"] = metadata.get("uid") or str(uuid.uuid4())
        metadata.setdefault("creationTimestamp", now())
        entry = self._entry({**obj, "metadata": metadata}, key, Managers())
        collection.put(Change(entry.version, None, entry))
        return entry

    def load(self, path: str, objects: Iterable[Mapping[str, Any] | bytes]) -> int:
        """Add many objects as they are, without telling watches; they count as compacted. Returns how many."""
        collection = self.collection(path)
        count = 0
        for count, given in enumerate(objects, 1):  # noqa: B007
            obj = msgspec.json.decode(given) if isinstance(given, bytes) else dict(given)
            metadata = dict(obj.get("metadata") or {})
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
            key = (metadata.get("namespace", ""), metadata["name"])
            collection.entries[key] = self._entry({**obj, "metadata": metadata}, key, Managers())
        collection._sorted = None
        collection.forget(self.version)
        return count

    def update(self, path: str, entry: Entry, obj: Mapping[str, Any]) -> Entry:
        """Replace an object; unchanged content keeps its version."""
        collection = self.collection(path)
        metadata = {**obj["metadata"], "resourceVersion": str(entry.version), "uid": entry.uid}
        same = {**obj, "metadata": metadata}
        if _body(same) == entry.body:
            return entry
        after = self._entry(same, entry.key, entry.managers)
        collection.put(Change(after.version, entry, after))
        return after

    def remove(self, path: str, entry: Entry) -> Entry:
        """Take an object out; returns its last state, with a version of its own."""
        collection = self.collection(path)
        last = self._entry(collection.decoded(entry), entry.key, entry.managers)
        collection.put(Change(last.version, last, None))
        self.uids.discard(entry.uid)
        return last

    def _entry(self, obj: Mapping[str, Any], key: Key, managers: Managers) -> Entry:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        obj = {**obj, "metadata": metadata}
        self.uids.add(metadata["uid"])
        owners = tuple(
            (str(o.get("kind", "")), str(o.get("name", "")), str(o.get("uid", "")))
            for o in metadata.get("ownerReferences") or ()
        )
        return Entry(
            key,
            _body(obj),
            self.version,
            metadata["uid"],
            fields_of(obj),
            dict(metadata.get("labels") or {}),
            owners,
            managers,
        )


_OMITTED_WHEN_EMPTY = {"annotations", "labels", "finalizers", "ownerReferences"}


def _body(obj: Mapping[str, Any]) -> bytes:
    metadata = {k: v for k, v in obj["metadata"].items() if v or k not in _OMITTED_WHEN_EMPTY}
    ordered = {"metadata": metadata, **{k: v for k, v in obj.items() if k not in {"kind", "apiVersion", "metadata"}}}
    return msgspec.json.encode(ordered)[1:]


def now() -> str:
    """The time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
