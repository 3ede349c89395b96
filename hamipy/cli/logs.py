"""How the process logs."""

import logging
import sys
import time
from typing import Any, Literal

import msgspec
from msgspec import Struct


class LogSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every command is told about its log."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much to log."""
    log_format: Literal["text", "json"] = "text"
    """How to log."""


class _JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(settings: LogSettings) -> None:
    """Log to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    json = settings.log_format == "json"
    handler.setFormatter(
        _JsonLines() if json else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
