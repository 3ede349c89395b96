"""Lists in pages: the first page takes a snapshot, the others come out of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hamipy.testing._paths import Target
from hamipy.testing._refusal import Refused
from hamipy.testing._selectors import parse_selectors
from hamipy.testing._store import Entry, Object, Store

_SNAPSHOTS = 64


@dataclass(slots=True)
class _Snapshot:
    entries: list[Entry]
    version: int


class Lists:
    """Answers list requests out of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._snapshots: dict[int, _Snapshot] = {}
        self._next_snapshot = 0

    def forget(self) -> None:
        """All lists that are under way answer 410."""
        self._snapshots.clear()

    def page(self, target: Target, query: Mapping[str, str]) -> bytes:
        """One page, out of a snapshot that the first page takes."""
        store, collection = self._store, self._store.collection(target.collection)
        limit, token, offset = int(query.get("limit") or 0), query.get("continue", ""), 0
        if token:
            number, _, at = token.partition(".")
            found = self._snapshots.get(int(number)) if number.isdecimal() else None
            if found is None:
                raise Refused(410, "The provided continue parameter is too old to display a consistent list result.")
            snapshot, offset = found, int(at)
        else:
            test = parse_selectors(query.get("fieldSelector", ""), query.get("labelSelector", ""))
            snapshot = _Snapshot(collection.select(target.namespace, test), store.version)
            number = str(self._next_snapshot)
        end = offset + limit if limit else len(snapshot.entries)
        meta: Object = {"resourceVersion": str(snapshot.version)}
        if end < len(snapshot.entries):
            if not token:
                self._snapshots[self._next_snapshot] = snapshot
                self._next_snapshot += 1
                while len(self._snapshots) > _SNAPSHOTS:
                    del self._snapshots[next(iter(self._snapshots))]
            meta |= {"continue": f"{number}.{end}", "remainingItemCount": len(snapshot.entries) - end}
        head = {"kind": f"{collection.kind}List", "apiVersion": collection.api_version, "metadata": meta}
        items = b",".join(map(collection.listed, snapshot.entries[offset:end]))
        return b'%s,"items":[%s]}' % (msgspec.json.encode(head)[:-1], items)
