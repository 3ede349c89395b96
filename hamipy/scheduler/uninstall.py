"""`hamipy uninstall`: takes out of the cluster what hamipy wrote into it, before helm takes hamipy itself away.

The order matters: daemons and schedulers are stopped first, for they would publish again. Everything may be gone
already, so it can be repeated. The kubelet's own `hamipy.io/device` stays in node status until the kubelet forgets it
(it sets 0 five minutes after a plugin has gone); running containers are not touched.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from msgspec import Struct

from hamipy.core.family import Families
from hamipy.core.names import KUBELET_RESOURCE
from hamipy.kube.client import KubeClient
from hamipy.kube.config import ClusterConfig, load_config
from hamipy.kube.errors import KubeError, NotFound
from hamipy.kube.lease import lease_path
from hamipy.kube.nodedevices import PATH as NODEDEVICES
from hamipy.kube.objects import Node, ObjectMeta, Pod
from hamipy.scheduler.settings import UninstallSettings

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_PAUSE = 1.0
"""Seconds between attempts: a daemon that has just been stopped may have had a last word."""

_PARALLEL = 16


class Incomplete(KubeError):
    """Something could not be taken away; the text says what, and running it again is safe."""


class Report(Struct):
    """What was done.

    Attributes:
        stopped: workloads deleted, `DaemonSet hamipy-node`.
        still_running: pods of theirs that had not ended in time, `namespace/name`.
        nodes: names of the nodes from which published names were taken.
        objects: names of the NodeDevices objects deleted.
        secret: whether the webhook's Secret was deleted.
        lease: whether the schedulers' Lease was deleted.
    """

    stopped: list[str] = []
    still_running: list[str] = []
    nodes: list[str] = []
    objects: list[str] = []
    secret: bool = False
    lease: bool = False

    def sentence(self) -> str:
        """All of it, for a person."""
        left = f"; still running: {', '.join(self.still_running)}" if self.still_running else ""
        rest = " and ".join([f"{'the' if self.secret else 'no'} Secret", f"{'the' if self.lease else 'no'} Lease"])
        return (
            f"stopped {', '.join(self.stopped) or 'nothing'}; took published names off {len(self.nodes)} nodes; "
            f"deleted {len(self.objects)} NodeDevices objects, {rest}{left}"
        )


class _Named(Struct, frozen=True, gc=False):
    metadata: ObjectMeta = ObjectMeta()


async def run(settings: UninstallSettings, *, config: ClusterConfig | None = None) -> Report:
    """Stop what would publish again, then take away what was published.

    Raises:
        Incomplete: something is still there.
        HamipyError: no way to the API server.
    """
    async with KubeClient(config or load_config(settings.kubeconfig), user_agent="hamipy-uninstall") as client:
        report = Report()
        await _stop(client, settings, report)
        problem: KubeError | None = None
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_PAUSE)
            try:
                if not await _clean(client, report):
                    problem = None
                    break
            except KubeError as error:
                problem = error
                logger.warning("%s; trying again", error)
        else:
            raise Incomplete(f"not everything is gone ({problem or 'it is being written again'}); {report.sentence()}")
        path = f"/api/v1/namespaces/{settings.namespace}/secrets/{settings.cert_secret}"
        report.secret = await _gone(client.delete(path))
        # kube-scheduler made it, and never deletes it
        report.lease = await _gone(client.delete(lease_path(settings.namespace, settings.lease_name)))
    logger.info("%s", report.sentence())
    return report


async def _stop(client: KubeClient, settings: UninstallSettings, report: Report) -> None:
    """Delete the workloads and wait until their pods have ended."""
    apps = f"/apis/apps/v1/namespaces/{settings.namespace}"
    for kind, path, name in (
        ("DaemonSet", "daemonsets", settings.daemonset),
        ("Deployment", "deployments", settings.deployment),
    ):
        if await _gone(client.delete(f"{apps}/{path}/{name}")):
            report.stopped.append(f"{kind} {name}")
    deadline = asyncio.get_running_loop().time() + settings.stop_limit
    while True:
        report.still_running = await _running(client, settings)
        if not report.still_running or asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(min(_PAUSE, settings.stop_limit / 4))
    if report.still_running:
        logger.warning("still running after %.0f s: %s", settings.stop_limit, ", ".join(report.still_running))


async def _running(client: KubeClient, settings: UninstallSettings) -> list[str]:
    """Pods of the workloads that have not ended."""
    found = []
    selector = {"labelSelector": "app.kubernetes.io/name=hamipy"}
    async for page in client.pages(f"/api/v1/namespaces/{settings.namespace}/pods", Pod, params=selector):
        found += [
            f"{p.metadata.namespace}/{p.metadata.name}"
            for p in page.items
            if p.metadata.labels.get("app.kubernetes.io/component") in ("node", "scheduler") and not p.finished
        ]
    return found


async def _clean(client: KubeClient, report: Report) -> bool:
    """One pass over nodes and objects; whether there was anything to take away."""
    work: list[Callable[[], Awaitable[None]]] = []
    families = Families()
    async for page in client.pages("/api/v1/nodes", Node):
        for node in page.items:
            there = {*node.status.capacity, *node.status.allocatable}
            names = sorted(n for n in there if families.ours(n) and n != KUBELET_RESOURCE)
            if names:
                work.append(_task(_take_off, client, node.metadata.name, names, report))
    try:
        async for objects in client.pages(NODEDEVICES, _Named):
            work += [_task(_delete, client, o.metadata.name, report) for o in objects.items]
    except NotFound:
        logger.info("there is no definition of NodeDevices, so there are no such objects")
    limit = asyncio.Semaphore(_PARALLEL)

    async def limited(job: Callable[[], Awaitable[None]]) -> None:
        async with limit:
            await job()

    problems = [e for e in await asyncio.gather(*map(limited, work), return_exceptions=True) if e is not None]
    for problem in problems:
        raise problem
    return bool(work)


def _task(job: Callable[..., Awaitable[None]], *arguments: object) -> Callable[[], Awaitable[None]]:
    return lambda: job(*arguments)


async def _take_off(client: KubeClient, node: str, names: list[str], report: Report) -> None:
    """Both maps at once: the kubelet copies the first into the second."""
    gone = dict.fromkeys(names)
    patch = {"status": {"capacity": gone, "allocatable": gone}}
    if await _gone(client.merge_patch(f"/api/v1/nodes/{node}/status", patch)) and node not in report.nodes:
        report.nodes.append(node)


async def _delete(client: KubeClient, name: str, report: Report) -> None:
    if await _gone(client.delete(f"{NODEDEVICES}/{name}")) and name not in report.objects:
        report.objects.append(name)


async def _gone(request: Awaitable[bytes]) -> bool:
    """Whether a request found what it was about."""
    try:
        await request
    except NotFound:
        return False
    return True
