"""Publishes our names in node status, so that kube-scheduler, quotas and `kubectl describe node` see them.

Rules, each with its reason:

- Published is the sum over all known devices, sick ones too, but never less than what the node's bound, unfinished pods
  request: the kubelet admits running pods again when it restarts, and fails those that no longer fit.
- A name that has nothing to say is removed, never set to 0: 0 would be a promise.
- Capacity and allocatable are written together: the kubelet derives the second from the first only some seconds later.
- The kubelet's own resource is never touched.
- The leader alone publishes, and again whenever the kubelet (or anybody) has changed a name of ours.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from hamipy.core.family import Families, Meaning
from hamipy.core.model import Inventory
from hamipy.core.names import CONSTRAINTS_PREFIX, KUBELET_RESOURCE
from hamipy.core.quantity import format_bytes, parse_int
from hamipy.kube.backoff import Backoff
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import KubeError, NotFound
from hamipy.scheduler.state import ClusterState, NodeView

logger = logging.getLogger(__name__)

SETTLE = 0.5
"""Seconds after a write before the same node is looked at again; bounds the writes of one node."""

DEBOUNCE = 0.05
"""Seconds from a change of a node to the look at it: pods come to a node in bursts, and seldom change its names."""

WATCH_LAG = 5.0
"""Seconds for which a node that was written is not written again unless the watch has shown it since."""

STALE_WAIT = 5.0
"""Seconds before a node is looked at again while the ledger is not believed."""

_BYTES = (Meaning.MEMORY, Meaning.MEMORY_TOTAL)

Patch = dict[str, Any]


def published(families: Families, inventory: Inventory | None, requested: dict[str, int]) -> dict[str, str]:
    """The names a node should carry, with their quantities.

    Args:
        families: the loaded families.
        inventory: what the node has; None when it publishes none (any more).
        requested: what its bound, unfinished pods request, by name.
    """
    sums: dict[str, int] = {}
    if inventory is not None:
        for family in families.all:
            if family.name in inventory.families:
                sums.update(family.capacity(inventory.devices))
    names = (sums.keys() | requested.keys()) & families.by_resource.keys() - {KUBELET_RESOURCE}
    amounts = {name: max(sums.get(name, 0), requested.get(name, 0)) for name in sorted(names)}
    return {name: _quantity(families, name, amount) for name, amount in amounts.items() if amount > 0}


def _quantity(families: Families, name: str, amount: int) -> str:
    resource = families.by_resource[name][1]
    return format_bytes(amount) if resource.meaning in _BYTES and resource.unit == 1 else str(amount)


def difference(families: Families, node: NodeView, inventory: Inventory | None, wanted: dict[str, str]) -> Patch | None:
    """The merge patch of a node's status that makes it carry `wanted`; None when it does.

    What lies in our own domain and is not wanted is removed. A name of another domain is removed only from a node that
    serves its family, for elsewhere another device plugin may own it.
    """
    served = inventory.families if inventory is not None else ()
    there = node.capacity.keys() | node.allocatable.keys()
    changes: dict[str, str | None] = {n: None for n in there - wanted.keys() if _owned(families, n, served)}
    changes |= {
        name: amount
        for name, amount in wanted.items()
        if not (_equal(node.capacity.get(name), amount) and _equal(node.allocatable.get(name), amount))
    }
    changes = dict(sorted(changes.items()))
    return {"status": {"capacity": changes, "allocatable": changes}} if changes else None


def _owned(families: Families, name: str, served: tuple[str, ...]) -> bool:
    if name == KUBELET_RESOURCE:
        return False
    known = families.by_resource.get(name)
    return name.startswith(CONSTRAINTS_PREFIX) or (known is not None and known[0].name in served)


def _equal(there: str | None, wanted: str) -> bool:
    if there is None:
        return False
    try:
        return parse_int(there) == parse_int(wanted)
    except ValueError:
        return False


class Publisher:
    """Writes the names where they differ.

    Args:
        client: the API server.
        state: the cluster as last seen.
        leads: whether this replica leads.
        concurrency: writes in flight at once.
        settle: see SETTLE.
        sweep_interval: seconds between looks at all nodes, which costs no request where nothing differs.

    Attributes:
        written: patches that the API server took.
        failed: patches that it did not.
    """

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        leads: Callable[[], bool],
        *,
        concurrency: int = 8,
        settle: float = SETTLE,
        sweep_interval: float = 30.0,
    ) -> None:
        self.written = self.failed = 0
        self._client, self._state, self._leads = client, state, leads
        self._concurrency, self._settle, self._sweep_interval = concurrency, settle, sweep_interval
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._queued: set[str] = set()
        self._resting: dict[str, asyncio.TimerHandle] = {}
        self._awaited: dict[str, tuple[NodeView, float]] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._problems: dict[str, str] = {}
        self._changed: set[str] = set()
        state.on_change(self._soon)

    def _soon(self, nodes: Iterable[str]) -> None:
        """Look at these nodes after a moment."""
        if not self._changed:
            asyncio.get_running_loop().call_later(DEBOUNCE, self._look_at_changed)
        self._changed.update(nodes)

    def _look_at_changed(self) -> None:
        changed, self._changed = self._changed, set()
        self.look(changed)

    def look(self, nodes: Iterable[str]) -> None:
        """Look at these nodes soon; each waits once, however often it is named."""
        for node in nodes:
            if node not in self._queued and node not in self._resting:
                self._queued.add(node)
                self._queue.put_nowait(node)

    def look_at_all(self) -> None:
        """Look at every node: this replica began to lead, or it is time."""
        self.look(self._state.nodes)

    async def run(self) -> None:
        """Publish until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for reflector in self._state.reflectors:
                    await reflector.wait_synced()
                for _ in range(self._concurrency):
                    group.create_task(self._work())
                while True:
                    self.look_at_all()
                    await asyncio.sleep(self._sweep_interval)
        finally:
            for timer in self._resting.values():
                timer.cancel()

    async def _work(self) -> None:
        while True:
            node = await self._queue.get()
            self._queued.discard(node)
            if self._leads():
                if self._state.stale:
                    self._rest(node, STALE_WAIT)
                else:
                    await self._publish(node)
            await asyncio.sleep(0)  # a queue that is not empty does not yield

    async def _publish(self, node: str) -> None:
        view = self._state.nodes.get(node)
        if view is None:
            self._forget(node)
            return
        inventory = self._state.inventories.get(node)
        wanted = published(self._state.families, inventory, self._state.requested_on(node))
        patch = difference(self._state.families, view, inventory, wanted)
        if patch is None:
            self._forget(node)
            return
        self._rest(node, self._settle)
        if self._waits_for_watch(node, view):
            return
        try:
            await self._client.merge_patch(f"/api/v1/nodes/{node}/status", patch)
        except NotFound:
            self._forget(node)
        except KubeError as problem:
            self.failed += 1
            if self._problems.get(node) != str(problem):
                self._problems[node] = str(problem)
                logger.warning("cannot publish on node %s: %s; trying again", node, problem)
            self._rest(node, self._settle + self._backoffs.setdefault(node, Backoff(base=1.0, cap=60.0)).next())
        else:
            self.written += 1
            self._forget(node)
            self._awaited[node] = (view, asyncio.get_running_loop().time())
            logger.info("published on node %s: %s", node, patch["status"]["capacity"])

    def _waits_for_watch(self, node: str, view: NodeView) -> bool:
        """Whether what we know of the node is from before the last write to it."""
        before, at = self._awaited.get(node, (None, 0.0))
        return before is view and asyncio.get_running_loop().time() - at < WATCH_LAG

    def _forget(self, node: str) -> None:
        """Its troubles are over."""
        for known in (self._awaited, self._backoffs, self._problems):
            known.pop(node, None)

    def _rest(self, node: str, seconds: float) -> None:
        """Look at the node again after so many seconds, and not before."""
        if node in self._resting:
            self._resting.pop(node).cancel()
        self._resting[node] = asyncio.get_running_loop().call_later(seconds, self._wake, node)

    def _wake(self, node: str) -> None:
        del self._resting[node]
        self.look((node,))
