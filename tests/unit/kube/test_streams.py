"""Lists and watches, from bytes to objects."""

import json
import logging

import pytest

from hamipy.kube.errors import Gone, InvalidResponse, ServerError
from hamipy.kube.objects import Pod
from hamipy.kube.streams import ObjectDecoder


def line(kind: str, obj: object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def named(name: str, version: str = "1") -> dict[str, object]:
    return {"metadata": {"name": name, "resourceVersion": version}}


@pytest.fixture
def decoder() -> ObjectDecoder[Pod]:
    return ObjectDecoder(Pod)


def test_a_page_has_items_version_and_the_token_of_the_next(decoder: ObjectDecoder[Pod]) -> None:
    body = json.dumps({"metadata": {"resourceVersion": "9", "continue": "t"}, "items": [named("a"), named("b")]})
    page, token = decoder.page(body.encode(), "/p")
    assert [p.metadata.name for p in page.items] == ["a", "b"]
    assert (page.resource_version, page.more, token) == ("9", True, "t")


@pytest.mark.parametrize("items", [[], None])
def test_an_empty_list_is_an_empty_page(decoder: ObjectDecoder[Pod], items: object) -> None:
    page, token = decoder.page(json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode(), "/p")
    assert (page.items, page.more, token) == ([], False, "")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items": []}', b'{"metadata": {}, "items": 3}'])
def test_what_is_no_list_is_refused(decoder: ObjectDecoder[Pod], body: bytes) -> None:
    with pytest.raises(InvalidResponse, match="GET /p"):
        decoder.page(body, "/p")


def test_an_object_of_a_wrong_shape_is_left_out_and_counted(
    decoder: ObjectDecoder[Pod], caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps({"metadata": {}, "items": [named("a"), {"metadata": {"name": 3}}, named("b")]})
    with caplog.at_level(logging.WARNING):
        page, _ = decoder.page(body.encode(), "/p")
    assert [p.metadata.name for p in page.items] == ["a", "b"]
    events = decoder.events([line("ADDED", {"spec": []}), line("ADDED", named("c"))], "/p")
    assert [e.object.metadata.name for e in events] == ["c"]
    assert decoder.malformed == 2
    assert "malformed Pod" in caplog.text


def test_events_keep_their_order_and_blank_lines_are_nothing(decoder: ObjectDecoder[Pod]) -> None:
    events = decoder.events([line("ADDED", named("a")), b"", line("DELETED", named("a", "2"))], "/p")
    assert [(e.type, e.object.metadata.resource_version) for e in events] == [("ADDED", "1"), ("DELETED", "2")]


def test_a_bookmark_carries_its_version(decoder: ObjectDecoder[Pod]) -> None:
    meta = {"resourceVersion": "44", "creationTimestamp": None}
    bookmark = {"kind": "Pod", "metadata": meta, "spec": {"containers": None}, "status": {}}
    (event,) = decoder.events([line("BOOKMARK", bookmark)], "/p")
    assert event.object.metadata.resource_version == "44"
    assert decoder.malformed == 0


def test_an_error_event_is_raised_by_its_code(decoder: ObjectDecoder[Pod]) -> None:
    status = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}
    with pytest.raises(Gone, match="too old"):
        decoder.events([line("ADDED", named("a")), line("ERROR", status)], "/p")
    with pytest.raises(ServerError):
        decoder.events([line("ERROR", {"code": 500})], "/p")


@pytest.mark.parametrize("bad", [b'{"type":"ADDED","obj', b'{"type":"BOOKMARK","object":3}', b"[]", b"null", b"\xff"])
def test_a_line_that_is_no_event_is_refused(decoder: ObjectDecoder[Pod], bad: bytes) -> None:
    with pytest.raises(InvalidResponse):
        decoder.events([bad], "/p")
