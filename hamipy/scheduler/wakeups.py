"""Wake-ups (thin)."""

import numpy as np
from numpy.typing import NDArray

from hamipy.kube.client import KubeClient
from hamipy.scheduler.holds import Holds
from hamipy.scheduler.leadership import Leadership
from hamipy.scheduler.pods import PodView
from hamipy.scheduler.state import ClusterState
from hamipy.scheduler.stats import Stats


class Wakeups:
    """Remembers refused pods and wakes them when they fit."""

    def __init__(
        self, client: KubeClient, state: ClusterState, leadership: Leadership, holds: Holds, stats: Stats
    ) -> None:
        self._client, self._state, self._leadership, self._holds, self._stats = client, state, leadership, holds, stats

    def remember(self, view: PodView, fits: NDArray[np.bool_], shown: NDArray[np.int64]) -> None:
        """A pod was refused at /filter."""

    def forget(self, uid: str) -> None:
        """A pod is not refused any more."""

    async def run(self) -> None:
        """Wake pods until cancelled."""
