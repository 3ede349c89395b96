"""The daemon's side of the API server: watches its own pods, Node and inventory, writes the inventory and Events.

Imported only once the daemon has registered with the kubelet: the HTTP client takes a tenth of a second to load.
"""

import asyncio
import logging
from collections.abc import Callable

from hamipy.core.errors import HamipyError
from hamipy.core.model import Inventory
from hamipy.core.names import ALLOCATION, KUBELET_RESOURCE
from hamipy.core.quantity import parse_int
from hamipy.kube.backoff import Backoff
from hamipy.kube.client import KubeClient
from hamipy.kube.events import emit
from hamipy.kube.nodedevices import PATH, NodeDevices, apply_inventory
from hamipy.kube.objects import Node, ObjectReference, Pod
from hamipy.kube.reflector import Reflector
from hamipy.node.metrics import Metrics
from hamipy.node.pods import PodRecord, PodView, read_allocation
from hamipy.node.waiting import happened

logger = logging.getLogger(__name__)

COMPONENT = "hamipy-node"
_REFRESH_LIMIT = 5.0
"""Seconds to wait for a fresh list; the kubelet waits 30 for the container start that needs it."""
_LAG = 0.5
"""Seconds in which our own write comes back to us, before an object that says otherwise is written again."""


def record_of(pod: Pod) -> PodRecord | None:
    """What we keep of a pod; None when it is none of ours."""
    annotation = pod.metadata.annotations.get(ALLOCATION)
    wants = {c.name: _count(n) for c, _ in pod.containers if (n := c.resources.limits.get(KUBELET_RESOURCE))}
    if annotation is None and not wants:
        return None
    allocation, problem = read_allocation(annotation)
    return PodRecord(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        created=pod.metadata.creation_timestamp or "",
        kinds={c.name: kind for c, kind in pod.containers},
        wants=wants,
        allocation=allocation,
        problem=problem,
        finished=pod.finished,
        deleting=pod.metadata.deletion_timestamp is not None,
    )


def _count(quantity: str) -> int:
    try:
        return parse_int(quantity)
    except ValueError:
        return 0


class _Pods:
    """Feeds the view of this node's pods."""

    def __init__(self, view: PodView, changed: Callable[[], None]) -> None:
        self._view, self._changed = view, changed

    def replace(self, items: list[Pod]) -> None:
        self._view.replace(r for pod in items if (r := record_of(pod)) is not None)
        self._changed()

    def upsert(self, item: Pod) -> None:
        record = record_of(item)
        if record is not None:
            self._view.upsert(record)
            self._changed()

    def remove(self, item: Pod) -> None:
        if self._view.get(item.metadata.uid) is not None:
            self._view.remove(item.metadata.uid)
            self._changed()


class _One:
    """Keeps the one object that a reflector selects by name."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.item: Node | NodeDevices | None = None

    def replace(self, items: list[Node] | list[NodeDevices]) -> None:
        self.item = items[0] if items else None
        self._changed()

    def upsert(self, item: Node | NodeDevices) -> None:
        self.item = item
        self._changed()

    def remove(self, item: Node | NodeDevices) -> None:  # noqa: ARG002
        self.item = None
        self._changed()


class Api:
    """See the module.

    Args:
        client: the API server, open.
        node: name of this node.
        pods: fed with this node's pods.
        inventory: what is to be published now.
        pods_changed: called after each change of `pods`.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        pods: PodView,
        inventory: Callable[[], Inventory],
        pods_changed: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        self._client, self._node, self._inventory, self._metrics = client, node, inventory, metrics
        self._kicked = asyncio.Event()
        self._node_object, self._own = _One(self.kick), _One(self.kick)
        self._pods = Reflector(
            client, "/api/v1/pods", Pod, _Pods(pods, pods_changed), field_selector=f"spec.nodeName={node}", name="pods"
        )
        by_name = f"metadata.name={node}"
        self._nodes = Reflector(client, "/api/v1/nodes", Node, self._node_object, field_selector=by_name, name="node")
        self._objects = Reflector(client, PATH, NodeDevices, self._own, field_selector=by_name, name="nodedevices")
        self._written: tuple[Inventory, str, str] | None = None
        """Inventory, Node uid and own uid of the last write."""
        self._wrote = asyncio.Event()
        self._events: set[asyncio.Task[bool]] = set()

    @property
    def contact(self) -> float:
        """`time.monotonic()` of the last word about pods, -inf before the first."""
        return self._pods.last_contact

    @property
    def published(self) -> bool:
        """Whether the object in the API server is what it should be."""
        return self._written is not None and self._written[0] == self._inventory()

    def kick(self) -> None:
        """The inventory, the Node or our object has changed: look."""
        self._kicked.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in (self._pods, self._nodes, self._objects):
                group.create_task(reflector.run())
            group.create_task(self._publish())

    async def refresh(self) -> bool:
        """List this node's pods anew; False when the API server did not answer in time."""
        try:
            async with asyncio.timeout(_REFRESH_LIMIT):
                await self._pods.relist()
        except TimeoutError:
            return False
        return True

    def report(self, pod: PodRecord, message: str) -> None:
        """Tell a pod's owner, by an Event, why a container does not start; never waits, never fails."""
        reference = ObjectReference("v1", "Pod", pod.name, pod.uid, pod.namespace)
        task = asyncio.create_task(
            emit(self._client, reference, "FailedDeviceStart", message, "Warning", component=COMPONENT)
        )
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def published_within(self, limit: float) -> bool:
        """Wait until what is to be published is published, at most `limit` seconds."""
        try:
            async with asyncio.timeout(limit):
                while not self.published:
                    self._wrote.clear()
                    self.kick()
                    await self._wrote.wait()
        except TimeoutError:
            return False
        return True

    async def _publish(self) -> None:
        await self._nodes.wait_synced()
        backoff = Backoff()
        while True:
            self._kicked.clear()
            pause: float | None = None
            try:
                pause = await self._once()
                backoff.reset()
            except HamipyError as error:
                self._metrics.count("inventory_failures")
                logger.warning("the inventory cannot be published: %s", error)
                pause = backoff.next()
            await happened(self._kicked, pause)

    async def _once(self) -> float | None:
        """Write if there is something to write; seconds after which to look again, None for not before a change."""
        node = self._node_object.item
        if node is None:
            self._written = None  # the garbage collector takes our object with the Node
            return None
        wanted = self._inventory()
        if self._written is not None and self._written[:2] == (wanted, node.metadata.uid):
            if self._in_place(wanted, node.metadata.uid):
                return None
            await asyncio.sleep(_LAG)
            if self._in_place(wanted, node.metadata.uid):
                return None
        written = await apply_inventory(self._client, wanted, node.metadata.uid)
        self._metrics.count("inventory_writes")
        self._written = (wanted, node.metadata.uid, written.metadata.uid)
        self._wrote.set()
        return None

    def _in_place(self, wanted: Inventory, node_uid: str) -> bool:
        """Whether our object is there as we wrote it; one that cannot be read is not."""
        own = self._own.item
        if not self._objects.synced:
            return True  # not known yet; the first list kicks
        if not isinstance(own, NodeDevices) or self._written is None or own.metadata.uid != self._written[2]:
            return False
        try:
            return own.inventory() == wanted and any(o.uid == node_uid for o in own.metadata.owner_references)
        except HamipyError:
            return False
