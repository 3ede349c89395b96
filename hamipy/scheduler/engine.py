"""The scheduler's engine: state, leadership, extender, binder and wake-ups, put together."""

import asyncio

from hamipy.core.family import Families
from hamipy.core.names import SCHEDULER_NAME
from hamipy.core.policies import DEFAULT_POLICY
from hamipy.kube.client import KubeClient
from hamipy.scheduler.binder import Binder
from hamipy.scheduler.extender import Extender
from hamipy.scheduler.holds import Holds
from hamipy.scheduler.leadership import Leadership
from hamipy.scheduler.nominations import Nominations
from hamipy.scheduler.state import ClusterState
from hamipy.scheduler.stats import Stats
from hamipy.scheduler.wakeups import Wakeups


class Engine:
    """Everything between kube-scheduler's calls and the API server.

    Args:
        client: the API server.
        leadership: who may bind and wake.
        scheduler_name: whose pods are ours.
        families: the loaded resource families.
        node_policy, device_policy: the cluster's defaults.

    Attributes:
        state, stats, holds, nominations, binder, wakeups, extender, leadership: the parts.
    """

    def __init__(
        self,
        client: KubeClient,
        leadership: Leadership,
        *,
        scheduler_name: str = SCHEDULER_NAME,
        families: Families | None = None,
        node_policy: str = DEFAULT_POLICY,
        device_policy: str = DEFAULT_POLICY,
    ) -> None:
        self.leadership = leadership
        self.stats = Stats()
        self.state = ClusterState(
            client,
            scheduler_name=scheduler_name,
            families=families,
            node_policy=node_policy,
            device_policy=device_policy,
        )
        self.holds = Holds(self.state.placement, self.stats)
        self.nominations = Nominations(self.state, self.holds)
        self.wakeups = Wakeups(client, self.state, leadership, self.holds, self.nominations, self.stats)
        self.binder = Binder(client, self.state, leadership, self.holds, self.nominations, self.stats)
        self.binder.refused = self.wakeups.remember
        self.extender = Extender(self.state, self.binder, self.holds, self.nominations, self.wakeups, self.stats)

    async def run(self) -> None:
        """Work until cancelled; then wait for the Bindings under way."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.leadership.run(), name="leadership")
                group.create_task(self.state.run(), name="state")
                group.create_task(self.wakeups.run(), name="wake-ups")
        finally:
            await self.binder.close()
