"""Whether this process may act: kube-scheduler's Lease is the one leadership.

Our container runs beside kube-scheduler, whose identity is `<pod name>_<random>`. A holder that has not renewed for
`renew_deadline` gives up by itself, and nobody else takes over before `lease_duration`: so a write that begins while
the Lease is younger than the first, and ends within the difference, cannot meet another leader's.
"""

import asyncio
import logging
from collections.abc import Callable

from hamipy.kube.client import KubeClient
from hamipy.kube.lease import LeaseView, leases_path
from hamipy.kube.objects import Lease
from hamipy.kube.reflector import Reflector

logger = logging.getLogger(__name__)


class Leadership:
    """Follows the Lease.

    Args:
        client: the API server.
        namespace, lease_name: of the Lease.
        pod_name: of this pod.
        lease_duration, renew_deadline: kube-scheduler's settings, in seconds.
        always: no Lease, this process leads (tests, demo).

    Attributes:
        generation: grows each time leadership is gained.
        bind_deadline: seconds that a write may take which begins now.
        gained: called at once whenever leadership is gained.
        reflector: of the Lease, None when it is not followed.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        lease_name: str,
        pod_name: str,
        lease_duration: float = 3.0,
        renew_deadline: float = 2.0,
        always: bool = False,
    ) -> None:
        self.generation = 1 if always else 0
        self.gained: list[Callable[[], object]] = []
        self._always, self._prefix = always, f"{pod_name}_"
        self._renew_deadline = renew_deadline
        self.bind_deadline = 0.8 * (lease_duration - renew_deadline)
        self._view = LeaseView(lease_name)
        self._term: tuple[str, int] | None = None
        self._was = always
        self.reflector: Reflector[Lease] | None = None
        if not always:
            self.reflector = Reflector(
                client,
                leases_path(namespace),
                Lease,
                _LeaseHandler(self),
                field_selector=f"metadata.name={lease_name}",
                name="lease",
            )

    @property
    def is_leader(self) -> bool:
        """Whether the Lease names this pod and is fresh, now."""
        return self._always or self._view.held_by(self._prefix, within=self._renew_deadline)

    @property
    def holder(self) -> str:
        """Identity in the Lease, for messages."""
        return self._view.holder

    async def run(self) -> None:
        """Follow the Lease until cancelled."""
        if self.reflector is None:
            await asyncio.Event().wait()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reflector.run(), name="reflector lease")
            while True:
                await asyncio.sleep(self._renew_deadline / 4)
                self._check()  # a Lease that is not renewed any more says nothing; only time does

    def see(self, lease: Lease) -> None:
        """The Lease as the API server has it now."""
        self._view.upsert(lease)
        self._check()

    def lose(self, lease: Lease) -> None:
        """The Lease is gone."""
        self._view.remove(lease)
        self._check()

    def see_all(self, leases: list[Lease]) -> None:
        """All Leases selected."""
        self._view.replace(leases)
        self._check()

    def _check(self) -> None:
        now = self.is_leader
        if now == self._was:
            return
        self._was = now
        if now and self._view.lease is not None:
            spec = self._view.lease.spec
            term = (spec.holder_identity, spec.lease_transitions)
            if term != self._term:
                self._term = term
                self.generation += 1
                logger.info("leading: %s", spec.holder_identity)
                for callback in self.gained:
                    callback()
        else:
            logger.info("not leading: the Lease is held by %s", self.holder or "nobody")


class _LeaseHandler:
    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership

    def replace(self, items: list[Lease]) -> None:
        self._leadership.see_all(items)

    def upsert(self, item: Lease) -> None:
        self._leadership.see(item)

    def remove(self, item: Lease) -> None:
        self._leadership.lose(item)
