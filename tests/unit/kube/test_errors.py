"""From an HTTP answer to the class that says what to do about it."""

import json

import pytest

from hamipy.kube.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    api_error,
)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (405, ApiError),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (429, TooManyRequests),
        (500, ServerError),
        (599, ServerError),
    ],
)
def test_each_status_has_its_class(status: int, kind: type[ApiError]) -> None:
    assert type(api_error(status, b"{}", "GET", "/api")) is kind


def test_reason_message_and_request_are_told() -> None:
    body = json.dumps({"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "pods x exists"}).encode()
    error = api_error(409, body, "POST", "/api/v1/pods")
    assert str(error) == "POST /api/v1/pods: 409 AlreadyExists: pods x exists"


def test_the_wait_comes_from_the_header_or_from_the_details() -> None:
    told = b'{"details": {"retryAfterSeconds": 7}}'
    assert api_error(429, told, "GET", "/", "3").retry_after == 3.0
    assert api_error(429, told, "GET", "/").retry_after == 7.0
    assert api_error(429, told, "GET", "/", "Wed, 21 Oct 2015 07:28:00 GMT").retry_after == 7.0
    assert api_error(429, b"", "GET", "/").retry_after is None


def test_the_answer_of_a_proxy_is_shown_in_short() -> None:
    error = api_error(502, b"<html>" + b"x" * 10_000, "GET", "/")
    assert isinstance(error, ServerError)
    assert len(error.message) <= 500
    assert error.message.startswith("<html>")


def test_a_status_object_in_a_watch_gives_its_own_code() -> None:
    assert isinstance(api_error(0, b'{"code": 410, "reason": "Expired"}', "WATCH", "/"), Gone)
    assert isinstance(api_error(0, b"{}", "WATCH", "/"), ServerError)


def test_unreachable_says_whether_the_request_may_have_been_executed() -> None:
    assert Unreachable("POST", "/", TimeoutError()).sent
    assert "timed out" in str(Unreachable("POST", "/", TimeoutError()))
    assert not Unreachable("POST", "/", ConnectionRefusedError("refused"), sent=False).sent
