"""Reading a Lease: who holds it, and how fresh that is.

Freshness counts from when *we* saw `renewTime` change, by the local monotonic clock, as client-go's leader election
does: clocks of machines are not compared. Until a first change was seen nothing is known, so nothing is fresh.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from hamipy.kube.objects import Lease


def lease_path(namespace: str, name: str) -> str:
    """Path of a Lease."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"


def leases_path(namespace: str) -> str:
    """Path of a namespace's Leases, to watch one by field selector `metadata.name=<name>`."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


class LeaseView:
    """What is known of one Lease. A handler for a `Reflector` on it; `upsert` may also be fed by hand.

    Args:
        name: of the Lease; others are ignored.
        clock: monotonic seconds.

    Attributes:
        lease: as last seen, None when there is none.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.lease: Lease | None = None
        self._name, self._clock, self._wall = name, clock, wall
        self._renewed_at: float | None = None

    @property
    def holder(self) -> str:
        """Identity of the holder; empty when nobody holds it."""
        return self.lease.spec.holder_identity if self.lease is not None else ""

    def age(self) -> float:
        """Seconds since we saw it renewed; infinity until we have."""
        return float("inf") if self._renewed_at is None else self._clock() - self._renewed_at

    def held_by(self, prefix: str, *, within: float, same_clock: bool = True) -> bool:
        """Whether somebody whose identity begins with `prefix` holds it and renewed it within so many seconds.

        Args:
            prefix: of the identity; kube-scheduler's is `<host name>_<random>`, and a pod's host name its name.
            within: seconds.
            same_clock: the holder runs on this machine, so `renewTime` is comparable and must be as fresh: news that
                reached us late is no news.
        """
        if self.lease is None or not self.holder.startswith(prefix) or self.age() > within:
            return False
        if not same_clock:
            return True
        renewed = parse_time(self.lease.spec.renew_time)
        return renewed is not None and self._wall() - renewed <= within

    def replace(self, items: list[Lease]) -> None:
        """All Leases there are."""
        mine = next((item for item in items if item.metadata.name == self._name), None)
        if mine is not None:
            self.upsert(mine)
        elif self.lease is not None:
            self.remove(self.lease)

    def upsert(self, item: Lease) -> None:
        """The Lease was created, renewed or taken over."""
        if item.metadata.name != self._name:
            return
        before, self.lease = self.lease, item
        if before is not None and before.spec.renew_time != item.spec.renew_time:
            self._renewed_at = self._clock()

    def remove(self, item: Lease) -> None:
        """The Lease is gone."""
        if item.metadata.name != self._name:
            return
        self.lease = self._renewed_at = None


def parse_time(text: str | None) -> float | None:
    """Unix seconds of an RFC 3339 time; None when absent or malformed."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
