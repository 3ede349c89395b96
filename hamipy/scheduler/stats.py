"""What the engine counts: plain numbers, which `metrics` shows and tests read."""

from bisect import bisect_left
from collections import Counter

FILTER_BUCKETS = (0.0005, 0.001, 0.002, 0.003, 0.004, 0.006, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
"""Upper bounds in seconds of the filter's own time, HTTP left out."""

BIND_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds in seconds of a whole bind, the API server's time included."""


class Histogram:
    """Counts by upper bound, the last one without bound.

    Attributes:
        bounds: upper bounds, ascending.
        counts: one more than bounds; not cumulative.
        total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self.counts)


class Stats:
    """Counters of one scheduler process.

    Attributes:
        filters: answered `/filter` calls by outcome: fits, unfit, foreign (none of our resources), error.
        filter_seconds: time of the filter itself.
        preemptions: `/preempt` candidates by outcome: kept, vetoed.
        binds: `/bind` calls by outcome: bound, refused, joined, unknown (answered before the outcome was known).
        binds_refused: refused binds by cause.
        bind_seconds: time of a whole bind.
        bindings_posted: Bindings sent to the API server.
        assumptions: what became of assumptions: confirmed, forgotten, kept (outcome unknown at first), found (an
            unknown outcome turned out to be as wished).
        holds: soft holds by event: placed, ignored (nothing else fitted), expired.
        wakeups: wake-ups by outcome: sent, gone, failed.
        wakeup_rounds: times the refused pods were looked through.
    """

    def __init__(self) -> None:
        self.filters: Counter[str] = Counter()
        self.filter_seconds = Histogram(FILTER_BUCKETS)
        self.preemptions: Counter[str] = Counter()
        self.binds: Counter[str] = Counter()
        self.binds_refused: Counter[str] = Counter()
        self.bind_seconds = Histogram(BIND_BUCKETS)
        self.bindings_posted = 0
        self.assumptions: Counter[str] = Counter()
        self.holds: Counter[str] = Counter()
        self.wakeups: Counter[str] = Counter()
        self.wakeup_rounds = 0
