"""Faults that a test orders from the in-memory API server."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(slots=True)
class Fault:
    """What goes wrong with the requests it matches.

    Attributes:
        verb: get, list, watch, create, update, patch, delete, or `*`.
        path: shell pattern of the path.
        query: parameters that must be there; value `*` for any.
        times: how many requests it hits; None for all.
        delay: seconds before anything happens.
        status: answered instead of doing it; 0 to do it.
        reason: machine-readable reason of that answer, default the status' own.
        retry_after: seconds in its Retry-After header.
        drop: `before` cuts the connection without doing it, `after` does it and cuts the connection without an answer.
        close: a watch is accepted and ended at once.
        hits: how often it hit so far.
    """

    verb: str = "*"
    path: str = "*"
    query: Mapping[str, str] = field(default_factory=dict)
    times: int | None = 1
    delay: float = 0.0
    status: int = 0
    reason: str = ""
    retry_after: int | None = None
    drop: str = ""
    close: bool = False
    hits: int = 0

    @property
    def breaks(self) -> bool:
        """Whether it does more than to delay."""
        return bool(self.status or self.drop or self.close)

    def hit(self, verb: str, path: str, query: Mapping[str, str]) -> bool:
        """Whether it is this request's turn; counts."""
        if self.times is not None and self.hits >= self.times:
            return False
        if self.verb not in {"*", verb} or not fnmatchcase(path, self.path):
            return False
        if not all(k in query and v in {"*", query[k]} for k, v in self.query.items()):
            return False
        self.hits += 1
        return True


class Faults:
    """The faults in force."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(
        self,
        verb: str = "*",
        path: str = "*",
        *,
        query: Mapping[str, str] | None = None,
        times: int | None = 1,
        delay: float = 0.0,
        status: int = 0,
        reason: str = "",
        retry_after: int | None = None,
        drop: str = "",
        close: bool = False,
    ) -> Fault:
        """Order a fault; see `Fault` for the arguments."""
        if drop not in {"", "before", "after"}:
            raise ValueError(f"drop={drop!r}: must be 'before' or 'after'")
        fault = Fault(verb, path, query or {}, times, delay, status, reason, retry_after, drop, close)
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """No more faults."""
        self._faults.clear()

    def take(self, verb: str, path: str, query: Mapping[str, str]) -> list[Fault]:
        """The faults that hit this request: every delay, and of the others the first in order."""
        taken: list[Fault] = []
        broken = False
        for fault in self._faults:
            if (broken and fault.breaks) or not fault.hit(verb, path, query):
                continue
            broken = broken or fault.breaks
            taken.append(fault)
        return taken
