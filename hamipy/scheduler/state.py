"""What the API server says, kept in the ledger: NodeDevices, Nodes and our pods, by list and watch.

The API server is the only truth. The one thing the ledger knows earlier is an assumption, a pod whose Binding is on
its way: it outlives every event of the still unassigned pod, and goes when the pod goes.
"""

import asyncio
import gc
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from sys import intern

from msgspec import Struct

from hamipy.core.errors import InvalidInventory, UnknownVersion
from hamipy.core.family import Families
from hamipy.core.ledger import Ledger
from hamipy.core.model import Device, Inventory
from hamipy.core.names import KUBELET_RESOURCE, SCHEDULER_NAME
from hamipy.core.placement import Placement
from hamipy.core.policies import DEFAULT_POLICY
from hamipy.core.quantity import parse_int
from hamipy.kube.client import KubeClient
from hamipy.kube.nodedevices import PATH as NODEDEVICES_PATH
from hamipy.kube.nodedevices import NodeDevices
from hamipy.kube.objects import Node, Pod
from hamipy.kube.reflector import Handler, Reflector
from hamipy.scheduler.pods import PodReader, PodView

logger = logging.getLogger(__name__)

STALE_AFTER = 150.0
"""Seconds without a byte from the API server after which the ledger is not believed (bookmarks come each minute)."""

REFUSED_FOR = 10.0
"""Seconds for which nothing is bound to a node whose kubelet has failed a pod at its admission, unless its daemon says
meanwhile that it serves again. When a daemon dies, the kubelet refuses at once, and tells it in its next node status
only, 10 seconds later by default; a Deployment would lose a pod for every moment until then."""

_NOT_ADMITTED = "UnexpectedAdmissionError"
"""`status.reason` of a pod for which the kubelet could not get our devices."""

_REMEMBERED_DELETIONS = 4096


class NodeView(Struct, frozen=True, gc=False):
    """One Node object; of its resources those of our families, in Kubernetes quantities."""

    name: str
    uid: str
    capacity: dict[str, str]
    allocatable: dict[str, str]
    unschedulable: bool


class ClusterState:
    """The cluster as last seen.

    Args:
        client: the API server.
        scheduler_name: whose pods are ours.
        families: the loaded resource families.
        node_policy, device_policy: the cluster's defaults.
        stale_after: see `stale`.

    Attributes:
        refused_for: see REFUSED_FOR.
        ledger, placement: what is free, and questions to it.
        nodes, inventories: by node name.
        inventory_problems: node name -> why its NodeDevices object cannot be read; nothing is bound there.
        pods: by uid.  by_name: (namespace, name) -> uid.
        unknown: uid -> why it is not known which devices the pod holds.
        deleted: uids of pods deleted lately, oldest first.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        scheduler_name: str = SCHEDULER_NAME,
        families: Families | None = None,
        node_policy: str = DEFAULT_POLICY,
        device_policy: str = DEFAULT_POLICY,
        stale_after: float = STALE_AFTER,
    ) -> None:
        self.families = families or Families()
        self.ledger = Ledger()
        self.placement = Placement(self.ledger, node_policy=node_policy, device_policy=device_policy)
        self.reader = PodReader(self.families)
        self.nodes: dict[str, NodeView] = {}
        self.inventories: dict[str, Inventory] = {}
        self.inventory_problems: dict[str, str] = {}
        self.pods: dict[str, PodView] = {}
        self.by_name: dict[tuple[str, str], str] = {}
        self.unknown: dict[str, str] = {}
        self.deleted: OrderedDict[str, None] = OrderedDict()
        self.refused_for = REFUSED_FOR
        self._refusing: dict[str, asyncio.TimerHandle] = {}
        self._on_node: dict[str, set[str]] = {}
        self._touched: set[str] = set()
        self._flushing = False
        self._on_change: list[Callable[[set[str]], None]] = []
        self._on_pod: list[Callable[[str, PodView | None], None]] = []
        self._stale_after = stale_after
        ours = f"spec.schedulerName={scheduler_name}"
        self._inventory_reflector = Reflector(
            client, NODEDEVICES_PATH, NodeDevices, _Inventories(self), name="nodedevices"
        )
        self._node_reflector = Reflector(client, "/api/v1/nodes", Node, _Nodes(self), name="nodes")
        self._pod_reflector = Reflector(client, "/api/v1/pods", Pod, _Pods(self), field_selector=ours, name="pods")
        self.reflectors: tuple[Reflector[NodeDevices], Reflector[Node], Reflector[Pod]] = (
            self._inventory_reflector,
            self._node_reflector,
            self._pod_reflector,
        )

    # -- for others ------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether everything has been listed once."""
        return all(r.synced for r in self.reflectors)

    @property
    def stale(self) -> bool:
        """Whether the API server has been silent for so long that the ledger is not to be believed."""
        return time.monotonic() - min(r.last_contact for r in self.reflectors) > self._stale_after

    def on_change(self, callback: Callable[[set[str]], None]) -> None:
        """Call back with the names of the nodes touched, soon after each batch of events."""
        self._on_change.append(callback)

    def on_pod(self, callback: Callable[[str, PodView | None], None]) -> None:
        """Call back at once with uid and view of each pod that changed, None when it is gone."""
        self._on_pod.append(callback)

    def requested_on(self, node: str) -> dict[str, int]:
        """What the bound, unfinished pods of a node request, summed by resource name."""
        sums: dict[str, int] = {}
        for uid in self._on_node.get(node, ()):
            for name, amount in self.pods[uid].requested.items():
                sums[name] = sums.get(name, 0) + amount
        return sums

    def terminating_on(self, node: str) -> set[str]:
        """Uids of the node's pods that are being deleted."""
        return {uid for uid in self._on_node.get(node, ()) if self.pods[uid].terminating}

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in self.reflectors:
                group.create_task(reflector.run(), name=f"reflector {reflector.name}")
            for reflector in self.reflectors:
                await reflector.wait_synced()
            gc.collect()
            gc.freeze()  # tens of thousands of long-lived objects, which no later collection need walk through
            logger.info(
                "ready: %d nodes, %d inventories, %d pods", len(self.nodes), len(self.inventories), len(self.pods)
            )

    async def relist_pods(self) -> None:
        """Return when a list of our pods that began after this call is in the ledger."""
        await self._pod_reflector.relist()

    # -- events ----------------------------------------------------------------------------------------------------

    def see_pod(self, pod: Pod) -> None:
        """A pod as the API server has it now."""
        view, uid = self.reader.read(pod), pod.metadata.uid
        before = self.pods.get(uid)
        if before == view:
            return
        if before is not None and before.node:
            self._leave(before)
        self.pods[uid] = view
        self.by_name[view.namespace, view.name] = uid
        self.unknown.pop(uid, None)
        if view.finished:
            self.ledger.drop(uid)
            if before is not None and not before.finished and view.ours and pod.status.reason == _NOT_ADMITTED:
                self._refused(view.node)
        elif view.node:
            self._on_node.setdefault(view.node, set()).add(uid)
            held, why = self.reader.placed(pod, view)
            if why:
                self.unknown[uid] = why
                logger.warning("pod %s/%s on %s: %s", view.namespace, view.name, view.node, why)
            if held is None:
                self.ledger.drop(uid)
            else:
                self.ledger.put(held)
        self.touch(view.node)
        for callback in self._on_pod:
            callback(uid, view)

    def lose_pod(self, uid: str) -> None:
        """A pod is gone."""
        view, held = self.pods.pop(uid, None), self.ledger.find(uid)
        self.deleted[uid] = None
        if len(self.deleted) > _REMEMBERED_DELETIONS:
            self.deleted.popitem(last=False)
        self.ledger.drop(uid)
        self.unknown.pop(uid, None)
        if view is not None:
            if self.by_name.get((view.namespace, view.name)) == uid:
                del self.by_name[view.namespace, view.name]
            self._leave(view)
        self.touch(held.node if held is not None else view.node if view is not None else "")
        for callback in self._on_pod:
            callback(uid, None)

    def _leave(self, view: PodView) -> None:
        there = self._on_node.get(view.node)
        if there is not None:
            there.discard(view.uid)
            if not there:
                del self._on_node[view.node]

    def see_node(self, node: Node) -> None:
        """A Node as the API server has it now."""
        name, status = intern(node.metadata.name), node.status
        self.nodes[name] = NodeView(
            name,
            node.metadata.uid,
            self._ours(status.capacity),
            self._ours(status.allocatable),
            node.spec.unschedulable,
        )
        self._admit(name)
        self.touch(name)

    def lose_node(self, name: str) -> None:
        """A Node object is gone."""
        self.nodes.pop(name, None)
        self.ledger.remove_node(name)
        self.touch(name)

    def see_inventory(self, item: NodeDevices) -> None:
        """A NodeDevices object as the API server has it now; one that cannot be read closes its node."""
        name = intern(item.metadata.name)
        try:
            inventory = item.inventory()
        except (InvalidInventory, UnknownVersion) as error:
            if self.inventory_problems.get(name) != str(error):
                logger.warning("%s", error)
            self.lose_inventory(name)
            self.inventory_problems[name] = str(error)
            return
        self.inventory_problems.pop(name, None)
        before = self.inventories.get(name)
        if before != inventory:
            self.inventories[name] = inventory
            if inventory.serving and before is not None and not before.serving:
                self._forgive(name)
            self.ledger.set_inventory(inventory)
            self._admit(name)
            self.touch(name)

    def lose_inventory(self, name: str) -> None:
        """A NodeDevices object is gone."""
        self.inventory_problems.pop(name, None)
        self.inventories.pop(name, None)
        self.ledger.remove_inventory(name)
        self.touch(name)

    def _admit(self, name: str) -> None:
        """Tell the ledger whether the node's kubelet would admit what we bind there.

        It needs ids of its own resource, and it holds pods to the published names: while one of them is smaller than
        the node's devices (a device was added, the kubelet has wiped them), a pod that fits would be failed for good.
        """
        view = self.nodes.get(name)
        if view is None:
            return
        inventory = self.inventories.get(name)
        needed = self._capacities(inventory.devices) if inventory is not None else {}
        offered = view.allocatable
        admits = _at_least(offered.get(KUBELET_RESOURCE, "0"), 1) and all(
            _at_least(offered[resource], amount) for resource, amount in needed.items() if resource in offered
        )
        admits = admits and name not in self._refusing
        self.ledger.set_node(name, kubelet_resource=admits, schedulable=not view.unschedulable)

    def _refused(self, name: str) -> None:
        """The node's kubelet has failed a pod that we bound there: bind nothing there for a while."""
        if name not in self._refusing:
            logger.warning("node %s: its kubelet fails pods (%s); nothing is bound there for now", name, _NOT_ADMITTED)
        self._forgive(name)
        self._refusing[name] = asyncio.get_running_loop().call_later(self.refused_for, self._try_again, name)
        self._admit(name)
        self.touch(name)

    def _forgive(self, name: str) -> None:
        timer = self._refusing.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _try_again(self, name: str) -> None:
        self._forgive(name)
        self._admit(name)
        self.touch(name)

    def _capacities(self, devices: tuple[Device, ...]) -> dict[str, int]:
        return {name: amount for family in self.families.all for name, amount in family.capacity(devices).items()}

    def _ours(self, quantities: dict[str, str]) -> dict[str, str]:
        return {intern(k): v for k, v in quantities.items() if self.families.ours(k)}

    def touch(self, node: str) -> None:
        """A node's share of the ledger changed: tell the listeners when this batch is done."""
        self._touched.add(node)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        touched, self._touched = self._touched, set()
        touched.discard("")
        for callback in self._on_change:
            callback(touched)


class _Pods(Handler[Pod]):
    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def replace(self, items: list[Pod]) -> None:
        for uid in self._state.pods.keys() - {p.metadata.uid for p in items}:
            self._state.lose_pod(uid)
        for pod in items:
            self._state.see_pod(pod)

    def upsert(self, item: Pod) -> None:
        self._state.see_pod(item)

    def remove(self, item: Pod) -> None:
        self._state.lose_pod(item.metadata.uid)


class _Nodes(Handler[Node]):
    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def replace(self, items: list[Node]) -> None:
        for name in self._state.nodes.keys() - {n.metadata.name for n in items}:
            self._state.lose_node(name)
        for node in items:
            self._state.see_node(node)

    def upsert(self, item: Node) -> None:
        self._state.see_node(item)

    def remove(self, item: Node) -> None:
        self._state.lose_node(item.metadata.name)


class _Inventories(Handler[NodeDevices]):
    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def replace(self, items: list[NodeDevices]) -> None:
        known = self._state.inventories.keys() | self._state.inventory_problems.keys()
        for name in known - {i.metadata.name for i in items}:
            self._state.lose_inventory(name)
        for item in items:
            self._state.see_inventory(item)

    def upsert(self, item: NodeDevices) -> None:
        self._state.see_inventory(item)

    def remove(self, item: NodeDevices) -> None:
        self._state.lose_inventory(item.metadata.name)


def _at_least(quantity: str, amount: int) -> bool:
    try:
        return parse_int(quantity) >= amount
    except ValueError:
        return False
