"""Who holds a Lease, and whether that is fresh."""

import pytest

from hamipy.kube.lease import LeaseView, parse_time
from hamipy.kube.objects import Lease, LeaseSpec, ObjectMeta


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(holder: str, renewed: int, name: str = "l") -> Lease:
    text = f"2026-01-01T00:{renewed // 60:02d}:{renewed % 60:02d}.000000Z"
    return Lease(ObjectMeta(name), LeaseSpec(holder, text))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def view(clock: Clock) -> LeaseView:
    """Wall clock and monotonic clock run together: at 100 s it is 00:01:40."""
    start = parse_time("2026-01-01T00:00:00Z")
    assert start is not None
    return LeaseView("l", clock=clock, wall=lambda: start + clock.now)


def test_a_lease_seen_once_is_not_fresh_however_new_it_looks(view: LeaseView) -> None:
    view.upsert(lease("pod-a_1", 100))
    assert view.holder == "pod-a_1"
    assert view.age() == float("inf")
    assert not view.held_by("pod-a_", within=3)


def test_a_renewal_makes_it_fresh_until_time_passes(view: LeaseView, clock: Clock) -> None:
    view.upsert(lease("pod-a_1", 99))
    view.upsert(lease("pod-a_1", 100))
    assert view.held_by("pod-a_", within=3)
    assert not view.held_by("pod-b_", within=3)
    clock.now += 3.1
    assert not view.held_by("pod-a_", within=3)


def test_an_update_without_renewal_does_not_refresh(view: LeaseView, clock: Clock) -> None:
    view.upsert(lease("pod-a_1", 99))
    view.upsert(lease("pod-a_1", 100))
    clock.now += 5
    view.upsert(lease("pod-a_1", 100))
    assert view.age() == 5


def test_late_news_of_a_holder_on_this_machine_is_no_news(view: LeaseView, clock: Clock) -> None:
    view.upsert(lease("pod-a_1", 80))
    view.upsert(lease("pod-a_1", 90))
    assert view.age() == 0
    assert not view.held_by("pod-a_", within=3)
    assert view.held_by("pod-a_", within=3, same_clock=False)


def test_a_take_over_is_seen_and_a_lease_that_is_gone_is_nobodys(view: LeaseView) -> None:
    view.upsert(lease("a", 1))
    view.upsert(lease("b", 2))
    assert view.holder == "b"
    view.remove(lease("b", 2))
    assert view.holder == ""
    assert view.age() == float("inf")
    view.upsert(lease("b", 3))
    assert view.age() == float("inf")


def test_other_leases_are_ignored_and_a_list_without_ours_takes_it_away(view: LeaseView) -> None:
    view.replace([lease("x", 1, "other"), lease("a", 1)])
    view.upsert(lease("y", 2, "other"))
    view.remove(lease("y", 2, "other"))
    assert view.holder == "a"
    view.replace([lease("x", 1, "other")])
    assert view.holder == ""


@pytest.mark.parametrize("text", [None, "", "yesterday"])
def test_a_missing_or_odd_time_is_no_time(text: str | None) -> None:
    assert parse_time(text) is None


def test_nanoseconds_and_offsets_are_read() -> None:
    assert parse_time("1970-01-01T00:00:01.500000Z") == 1.5
    assert parse_time("1970-01-01T01:00:00+01:00") == 0.0
