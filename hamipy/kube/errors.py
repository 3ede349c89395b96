"""Errors of the API server and of the way to it.

HamipyError
└── KubeError
    ├── ConfigError        kubeconfig, service account or credential plugin cannot be used
    ├── Unreachable        no answer: refused, reset, timed out; the request may have been executed all the same
    ├── InvalidResponse    an answer that is not what the API promises
    └── ApiError           the server answered with a refusal
        ├── BadRequest 400   Unauthorized 401   Forbidden 403   NotFound 404   Conflict 409
        ├── Gone 410         Invalid 422        TooManyRequests 429
        └── ServerError 5xx  (the request may have been executed)

Library errors are chained as `__cause__`, never raised to callers.
"""

import msgspec
from msgspec import Struct

from hamipy.core.errors import HamipyError

_MAX_MESSAGE = 500


class KubeError(HamipyError):
    """Base of what `hamipy.kube` raises."""


class ConfigError(KubeError):
    """How to reach the API server cannot be read; the text says where and what would be right."""


class Unreachable(KubeError):
    """The server gave no whole answer.

    Attributes:
        sent: whether the request may have reached the server, and so may have been executed.
    """

    def __init__(self, method: str, path: str, cause: BaseException, *, sent: bool = True) -> None:
        self.method, self.path, self.sent = method, path, sent
        what = "timed out" if isinstance(cause, TimeoutError) else (str(cause) or type(cause).__name__)
        super().__init__(f"{method} {path}: API server unreachable: {what}")


class InvalidResponse(KubeError):
    """The server answered something that is not JSON, or not of the promised shape."""

    def __init__(self, method: str, path: str, problem: object) -> None:
        self.method, self.path = method, path
        super().__init__(f"{method} {path}: unexpected answer of the API server: {problem}")


class ApiError(KubeError):
    """The server refused.

    Attributes:
        status: HTTP status.
        reason: the API's machine-readable reason (`AlreadyExists`, `Expired`...), empty when it gave none.
        message: the API's text, shortened.
        retry_after: seconds the server asks to wait, or None.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        method: str = "",
        path: str = "",
        retry_after: float | None = None,
    ) -> None:
        self.status, self.reason, self.method, self.path, self.retry_after = status, reason, method, path, retry_after
        self.message = message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 3] + "..."
        super().__init__(f"{method} {path}: {status} {reason}: {self.message}")


class BadRequest(ApiError):
    """400: the request makes no sense to the server."""


class Unauthorized(ApiError):
    """401: the credentials are not accepted."""


class Forbidden(ApiError):
    """403: the credentials lack the right."""


class NotFound(ApiError):
    """404: no such object or resource."""


class Conflict(ApiError):
    """409: it exists already, or a precondition (uid, resourceVersion) does not hold."""


class Gone(ApiError):
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):
    """422: the object is refused by validation."""


class TooManyRequests(ApiError):
    """429: not executed; try again later."""


class ServerError(ApiError):
    """5xx: the server failed; the request may have been executed."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


class _Details(Struct, rename="camel"):
    retry_after_seconds: float | None = None


class Status(Struct):
    """The API's `Status` object, as far as an error needs it."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_status = msgspec.json.Decoder(Status)


def api_error(status: int, body: bytes, method: str, path: str, retry_after: str | None = None) -> ApiError:
    """The error of an HTTP answer, or of a `Status` object in a watch (then `status` is taken from it when 0).

    Args:
        status: HTTP status.
        body: a `Status` object, or whatever a proxy wrote.
        retry_after: the header of that name; only its form in seconds is read.
    """
    try:
        told = _status.decode(body)
    except msgspec.MsgspecError:
        told = Status(message=body[:_MAX_MESSAGE].decode("utf-8", "replace").strip())
    status = status or told.code or 500
    seconds: float | None = None
    if retry_after is not None and retry_after.isdecimal():
        seconds = float(retry_after)
    elif told.details is not None:
        seconds = told.details.retry_after_seconds
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    return kind(status, told.reason, told.message or "no message", method, path, seconds)
