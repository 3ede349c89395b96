"""Wire shapes of lists and watches, decoded straight into typed objects."""

import logging
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from hamipy.kube.errors import InvalidResponse, api_error
from hamipy.kube.objects import ObjectMeta

logger = logging.getLogger(__name__)


class KubeObject(Protocol):
    """What lists and watches need of an object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its metadata."""


T = TypeVar("T", bound=KubeObject)


class Page(Struct, Generic[T]):
    """One page of a list.

    Attributes:
        items: the objects.
        resource_version: of the whole list, the same on each of its pages; a watch starts here.
        more: whether another page follows.
    """

    items: list[T]
    resource_version: str
    more: bool = False


class WatchEvent(Struct, Generic[T]):
    """One change; `type` is ADDED, MODIFIED, DELETED or BOOKMARK (of whose object only the resourceVersion counts)."""

    type: str
    object: T


class _ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(Struct, Generic[T]):
    metadata: _ListMeta
    items: list[T] | None = None


class _RawList(Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _RawEvent(Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(Struct):
    metadata: ObjectMeta


class ObjectDecoder(Generic[T]):
    """Decodes one type of object out of lists and watches.

    An object that contradicts its type is logged, counted in `malformed` and left out: one odd object must not blind
    us to all others.
    """

    def __init__(self, item_type: type[T]) -> None:
        self.malformed = 0
        self._name = item_type.__name__
        self._one: msgspec.json.Decoder[T] = msgspec.json.Decoder(item_type)
        listed: Any = _List
        event: Any = WatchEvent
        self._list: msgspec.json.Decoder[_List[T]] = msgspec.json.Decoder(listed[item_type])
        self._event: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(event[item_type])
        self._raw_list = msgspec.json.Decoder(_RawList)
        self._raw_event = msgspec.json.Decoder(_RawEvent)

    def page(self, body: bytes, path: str) -> tuple[Page[T], str]:
        """One page and the token of the next, empty when it is the last.

        Raises:
            InvalidResponse: not a list.
        """
        try:
            listed = self._list.decode(body)
            items, meta = listed.items or [], listed.metadata
        except msgspec.MsgspecError:
            try:
                raw = self._raw_list.decode(body)
            except msgspec.MsgspecError as error:
                raise InvalidResponse("GET", path, error) from error
            items = [item for data in raw.items or [] if (item := self._decode(data)) is not None]
            meta = raw.metadata
        return Page(items, meta.resource_version, bool(meta.continue_)), meta.continue_

    def events(self, lines: Sequence[bytes], path: str) -> list[WatchEvent[T]]:
        """The changes in some whole lines of a watch.

        Raises:
            ApiError: the server ended the watch with an ERROR event (Gone: list again). Changes before it in `lines`
                are not lost: they come again when the watch is resumed.
            InvalidResponse: a line is not an event.
        """
        decode = self._event.decode
        events = []
        for line in lines:
            if not line:
                continue
            try:
                event = decode(line)
            except msgspec.MsgspecError:
                slow = self._odd_event(line, path)
                if slow is None:
                    continue
                event = slow
            if event.type == "ERROR":
                raise self._error(line, path)
            events.append(event)
        return events

    def _odd_event(self, line: bytes, path: str) -> WatchEvent[T] | None:
        """An ERROR event, a malformed object (None), or no event at all."""
        try:
            raw = self._raw_event.decode(line)
        except msgspec.MsgspecError as error:
            raise InvalidResponse("WATCH", path, error) from error
        if raw.type == "ERROR":
            raise self._error(line, path)
        if (
            raw.type == "BOOKMARK"
        ):  # nothing in it but the version, so it need not be a whole object (`containers: null`)
            try:
                bookmark: Any = msgspec.json.decode(raw.object, type=_Bookmark)
            except msgspec.MsgspecError as error:
                raise InvalidResponse("WATCH", path, error) from error
            return WatchEvent(raw.type, bookmark)
        item = self._decode(raw.object)
        return None if item is None else WatchEvent(raw.type, item)

    def _error(self, line: bytes, path: str) -> Exception:
        return api_error(0, bytes(self._raw_event.decode(line).object), "WATCH", path)

    def _decode(self, data: msgspec.Raw) -> T | None:
        try:
            return self._one.decode(data)
        except msgspec.MsgspecError as error:
            self.malformed += 1
            logger.warning("skipped a malformed %s: %s: %.200s", self._name, error, bytes(data))
            return None
