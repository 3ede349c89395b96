"""Backoff and rate limit."""

import pytest

from hamipy.kube.backoff import Backoff
from hamipy.kube.ratelimit import Bucket


def test_delays_grow_to_the_cap_and_start_over_after_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamipy.kube.backoff.random.uniform", lambda low, high: high)
    backoff = Backoff(base=1.0, cap=5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_delays_are_spread_over_the_whole_range() -> None:
    backoff = Backoff(base=1.0, cap=1.0)
    delays = [backoff.next() for _ in range(2000)]
    assert all(0.0 <= d <= 1.0 for d in delays)
    assert min(delays) < 0.1
    assert max(delays) > 0.9


def test_many_attempts_do_not_overflow() -> None:
    backoff = Backoff()
    backoff.attempts = 10_000
    assert backoff.next() <= backoff.cap


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("hamipy.kube.ratelimit.time.monotonic", lambda: now[0])
    bucket = Bucket(rate=2.0, burst=3.0)
    assert [bucket.try_take() for _ in range(5)] == [True, True, True, False, False]
    now[0] = 0.5
    assert [bucket.try_take() for _ in range(2)] == [True, False]
    now[0] = 10.0
    assert [bucket.try_take() for _ in range(4)] == [True, True, True, False]
