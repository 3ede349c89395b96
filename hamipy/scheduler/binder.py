"""`/bind`: place, assume, post one Binding, and know what became of it.

Choosing devices and assuming them happen without an await between them, so any number of concurrent binds never hand
out a share twice. An assumption is forgotten only when it is certain that the Binding did not and will not happen:
a definite refusal, or a consistent read of the pod. Until then the share stays taken.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable

from hamipy.core.codec import encode_allocation
from hamipy.core.explain import sentence
from hamipy.core.model import Allocation, Unfit
from hamipy.core.names import ALLOCATION
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import Conflict, InvalidResponse, KubeError, NotFound, ServerError, TooManyRequests, Unreachable
from hamipy.kube.objects import Pod
from hamipy.scheduler.holds import Holds
from hamipy.scheduler.leadership import Leadership
from hamipy.scheduler.nominations import Nominations
from hamipy.scheduler.pods import PodView, placed
from hamipy.scheduler.state import ClusterState
from hamipy.scheduler.stats import Stats
from hamipy.scheduler.wire import BindingArgs

logger = logging.getLogger(__name__)

READ_AGAIN = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each consistent read after a Binding without an answer; after the last one an unassigned pod is
believed to stay so, for the API server ends a request whose client has gone."""

CONFIRM_AFTER = 5.0
"""Seconds after a successful Binding within which the watch should show it; then the pod is read."""

LIST_WAIT = 10.0
"""Seconds a bind waits for the list after a take-over."""

_MAX_SEEN = 4096


class Refused(Exception):
    """A bind that is refused by us, not by the API server.

    Args:
        cause: short, for the counter.
        message: one sentence for kube-scheduler's event.
    """

    def __init__(self, cause: str, message: str) -> None:
        self.cause = cause
        super().__init__(message)


class Binder:
    """Binds pods.

    Args:
        client: the API server.
        state: the ledger and what is known of pods.
        leadership: who may bind.
        holds: soft holds.
        nominations: reservations of nominated pods.
        stats: counters.

    Attributes:
        read_again: see READ_AGAIN.
        confirm_after: see CONFIRM_AFTER.
        refused: called with a pod that did not fit any more.
    """

    def __init__(
        self,
        client: KubeClient,
        state: ClusterState,
        leadership: Leadership,
        holds: Holds,
        nominations: Nominations,
        stats: Stats,
    ) -> None:
        self._client, self._state, self._leadership = client, state, leadership
        self._holds, self._nominations, self._stats = holds, nominations, stats
        self.read_again, self.confirm_after = READ_AGAIN, CONFIRM_AFTER
        self._seen: OrderedDict[str, PodView] = OrderedDict()
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._unconfirmed: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._listed_for = leadership.generation
        self._relist: tuple[int, asyncio.Task[None]] | None = None
        self.refused: Callable[[PodView], None] = lambda _: None
        state.on_pod(self._pod_changed)
        leadership.gained.append(self._list_again)

    # -- what /filter tells and asks ---------------------------------------------------------------------------------

    def saw(self, view: PodView) -> None:
        """Remember a pod that kube-scheduler showed; its bind may come before our watch has it."""
        if view.uid in self._state.pods or view.uid in self._state.deleted:
            return
        self._seen[view.uid] = view
        self._seen.move_to_end(view.uid)
        if len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)

    def node_of(self, uid: str) -> str | None:
        """Node that the pod is being bound to, or was bound to a moment ago."""
        known = self._running.get(uid) or self._unconfirmed.get(uid)
        return known[0] if known else None

    @property
    def in_flight(self) -> int:
        """Binds under way."""
        return len(self._running)

    @property
    def unconfirmed(self) -> int:
        """Pods whose Binding succeeded and which the watch has not shown yet."""
        return len(self._unconfirmed)

    # -- /bind -------------------------------------------------------------------------------------------------------

    async def bind(self, args: BindingArgs) -> str:
        """Bind a pod; the empty text is success, another one says why not.

        A second call for the same pod joins the first.
        """
        began = time.perf_counter()
        running = self._running.get(args.pod_uid)
        if running is None:
            task = asyncio.create_task(self._bind(args), name=f"bind {args.pod_namespace}/{args.pod_name}")
            self._running[args.pod_uid] = running = (args.node, task)
            task.add_done_callback(lambda done: self._done(args.pod_uid, done))
        else:
            self._stats.binds["joined"] += 1
            if running[0] != args.node:
                return self._refuse("elsewhere", f"pod is being bound to {running[0]} already")
        try:
            await asyncio.shield(running[1])
        except Refused as error:
            return self._refuse(error.cause, str(error))
        except KubeError as error:
            return self._refuse("api", str(error))
        self._stats.binds["bound"] += 1
        self._stats.bind_seconds.observe(time.perf_counter() - began)
        return ""

    def _done(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._running[uid]
        if not task.cancelled():
            task.exception()  # taken: the caller may have gone away, and is told by its own await otherwise

    def _refuse(self, cause: str, message: str) -> str:
        self._stats.binds["refused"] += 1
        self._stats.binds_refused[cause] += 1
        return message

    async def _bind(self, args: BindingArgs) -> None:
        """Raises Refused or KubeError; returns when the pod is bound as chosen."""
        await self._gate()
        view = self._pod(args)
        bound_to = view.node or self.bound_to(view.uid)
        if bound_to == args.node:
            return  # kube-scheduler did not hear the answer
        if bound_to:
            raise Refused("elsewhere", f"pod is bound to {bound_to} already")
        if view.problem:
            raise Refused("unreadable", view.problem)
        if view.request is None:
            await self._post(view, args.node, None)
        else:
            await self._post(view, args.node, self._assume(view, args.node))

    def bound_to(self, uid: str) -> str:
        """Node of a pod whose Binding succeeded but which the watch has not shown yet, else empty."""
        known = self._unconfirmed.get(uid)
        return known[0] if known else ""

    async def _gate(self) -> None:
        """Pass only a fresh leader with a ledger that is ready, and listed since it took over."""
        leadership = self._leadership
        if not leadership.is_leader:
            holder = leadership.holder or "nobody"
            raise Refused("not-leader", f"this scheduler does not lead (the Lease is held by {holder}, or not renewed)")
        if not self._state.ready or self._state.stale:
            raise Refused("stale", "the ledger is not in step with the API server yet")
        while self._listed_for != leadership.generation:
            generation, relist = self._list_again()
            try:
                await asyncio.wait_for(asyncio.shield(relist), LIST_WAIT)
            except TimeoutError:
                raise Refused("stale", "pods could not be listed since this scheduler took over") from None
            self._listed_for = max(self._listed_for, generation)
        if not leadership.is_leader:
            raise Refused("not-leader", "this scheduler lost the lead while it waited for a list of pods")

    def _list_again(self) -> tuple[int, asyncio.Task[None]]:
        """The list of pods that began in this term, started if need be; it puts old assumptions right."""
        generation = self._leadership.generation
        if self._relist is None or self._relist[0] != generation:
            self._relist = (generation, asyncio.create_task(self._state.relist_pods(), name="list after take-over"))
        return self._relist

    def _pod(self, args: BindingArgs) -> PodView:
        view = self._state.pods.get(args.pod_uid) or self._seen.get(args.pod_uid)
        if args.pod_uid in self._state.deleted or (view is not None and (view.terminating or view.finished)):
            raise Refused("gone", "pod is being deleted")
        if view is None:
            raise Refused("unknown-pod", "pod was seen neither in the watch nor at /filter yet; try again")
        if (view.namespace, view.name) != (args.pod_namespace, args.pod_name):
            raise Refused("unknown-pod", f"uid {args.pod_uid} is pod {view.namespace}/{view.name}")
        return view

    def _assume(self, view: PodView, node: str) -> Allocation:
        """Choose and take devices. No await from here to the end: that is what makes binds exclusive."""
        if view.request is None:
            raise ValueError("a pod without a request has nothing to assume")
        allocation = self._holds.redeem(view.request, node, without=self._nominations.ignored_by(view.request))
        if isinstance(allocation, Unfit):
            self.refused(view)
            raise Refused("unfit", f"devices were taken meanwhile: {sentence(allocation)}")
        self._nominations.drop(view.uid)
        self._state.ledger.put(placed(view, allocation, node))
        self._state.touch(node)
        return allocation

    async def _post(self, view: PodView, node: str, allocation: Allocation | None) -> None:
        annotations = {} if allocation is None else {ALLOCATION: encode_allocation(allocation)}
        self._stats.bindings_posted += 1
        try:
            await self._client.bind(
                view.namespace, view.name, view.uid, node, annotations, timeout=self._leadership.bind_deadline
            )
        except (ServerError, Unreachable, InvalidResponse, Conflict, TooManyRequests) as error:
            if isinstance(error, Unreachable) and not error.sent:
                self._forget(view, node)
                raise
            # 409 and 429 are answers: nothing is on its way any more, so one read decides.
            patience = self.read_again[:1] if isinstance(error, Conflict | TooManyRequests) else self.read_again
            await self._settle(view, node, annotations, error, patience)
        except KubeError:
            self._forget(view, node)
            raise
        except BaseException:
            self._expect(view, node)  # stopped in the middle; whatever happened, nothing may leak
            raise
        self._expect(view, node)

    # -- outcomes ----------------------------------------------------------------------------------------------------

    async def _settle(
        self, view: PodView, node: str, annotations: dict[str, str], error: KubeError, patience: tuple[float, ...]
    ) -> None:
        """Read the pod until it is known whether the Binding happened; return when it did, else raise `error`."""
        self._stats.assumptions["kept"] += 1
        logger.info("outcome of binding %s/%s is open: %s", view.namespace, view.name, error)
        left = list(patience)
        while True:
            await asyncio.sleep(left.pop(0) if left else patience[-1])
            known = self._state.pods.get(view.uid)
            if known is None or not known.node:
                try:
                    pod = await self._read(view)
                except KubeError as problem:
                    logger.info("cannot read %s/%s: %s", view.namespace, view.name, problem)
                    continue  # nothing is known, so nothing is forgotten
                if pod is not None and pod.spec.node_name and view.uid not in self._state.deleted:
                    self._state.see_pod(pod)
                known = self._state.pods.get(view.uid)
                if pod is not None and not pod.spec.node_name and left and pod.metadata.deletion_timestamp is None:
                    continue
            if known is not None and known.node == node and known.allocation == annotations.get(ALLOCATION):
                self._stats.assumptions["found"] += 1
                return
            if known is not None and known.node:
                raise Refused("elsewhere", f"pod was bound to {known.node} by somebody else ({error})") from error
            self._forget(view, node)
            raise error

    async def _read(self, view: PodView) -> Pod | None:
        """The pod as the API server has it now; None when it is gone."""
        try:
            pod = await self._client.get(f"/api/v1/namespaces/{view.namespace}/pods/{view.name}", Pod, timeout=5.0)
        except NotFound:
            return None
        return pod if pod.metadata.uid == view.uid else None

    def _forget(self, view: PodView, node: str) -> None:
        """The Binding did not and will not happen."""
        known = self._state.pods.get(view.uid)
        if known is not None and known.node:
            return  # the watch knows better
        if self._state.ledger.find(view.uid) is not None:
            self._stats.assumptions["forgotten"] += 1
            self._state.ledger.drop(view.uid)
            self._state.touch(node)

    def _expect(self, view: PodView, node: str) -> None:
        """See to it that a bound pod which the watch never shows does not hold its shares for ever."""
        known = self._state.pods.get(view.uid)
        if view.uid in self._state.deleted:
            return
        if known is not None and known.node:
            self._stats.assumptions["confirmed"] += 1
            return
        task = asyncio.create_task(self._confirm(view, node), name=f"confirm {view.namespace}/{view.name}")
        self._unconfirmed[view.uid] = (node, task)

    async def _confirm(self, view: PodView, node: str) -> None:
        while True:
            await asyncio.sleep(self.confirm_after)
            try:
                pod = await self._read(view)
            except KubeError as problem:
                logger.info("cannot read %s/%s: %s", view.namespace, view.name, problem)
                continue
            self._unconfirmed.pop(view.uid, None)
            if pod is None or not pod.spec.node_name:
                self._forget(view, node)
            elif view.uid not in self._state.deleted:
                self._stats.assumptions["confirmed"] += 1
                self._state.see_pod(pod)
            return

    def _pod_changed(self, uid: str, view: PodView | None) -> None:
        self._seen.pop(uid, None)
        if view is None or view.node:
            self._holds.drop(uid)
            known = self._unconfirmed.pop(uid, None)
            if known is not None:
                known[1].cancel()
                self._stats.assumptions["confirmed" if view is not None else "forgotten"] += 1

    async def close(self) -> None:
        """Wait for binds under way: a Binding that was sent deserves its answer."""
        tasks = {task for _, task in self._running.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=self._leadership.bind_deadline)
        tasks |= {task for _, task in self._unconfirmed.values()}
        if self._relist is not None:
            tasks.add(self._relist[1])
        left = {task for task in tasks if not task.done()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
