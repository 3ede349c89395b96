"""Refusals of the in-memory API server, in the API's own form."""

from http import HTTPStatus
from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Refused(Exception):
    """The request is answered with a `Status` object of this code."""

    def __init__(self, code: int, message: str = "", reason: str = "", retry_after: float | None = None) -> None:
        self.code, self.reason, self.retry_after = code, reason or REASONS.get(code, ""), retry_after
        self.message = message or HTTPStatus(code).phrase
        super().__init__(f"{code} {self.reason}: {self.message}")

    def status(self) -> dict[str, Any]:
        """The `Status` object."""
        details = {"details": {"retryAfterSeconds": int(self.retry_after)}} if self.retry_after is not None else {}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **details,
            "code": self.code,
        }
