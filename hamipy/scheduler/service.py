"""`hamipy scheduler`: wires engine, webhook, publisher and certificates together and serves them on three ports.

All of it runs on one event loop; the ledger has one thread. A part that fails stops the process, for half a scheduler
is worse than none: kube-scheduler's Lease passes on. Told to stop, it answers what has been asked, binds included.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from msgspec import Struct
from starlette.applications import Starlette

from hamipy import __version__
from hamipy.core.errors import HamipyError
from hamipy.core.family import Families
from hamipy.kube.client import KubeClient
from hamipy.kube.config import ClusterConfig, load_config
from hamipy.scheduler.app import extender_app, metrics_app, webhook_app
from hamipy.scheduler.certificate_sources import DirectoryCertificates, SecretCertificates, ServingCertificate
from hamipy.scheduler.engine import Engine
from hamipy.scheduler.inspect import stream
from hamipy.scheduler.leadership import Leadership
from hamipy.scheduler.metrics import Metrics, Sources
from hamipy.scheduler.publisher import Publisher
from hamipy.scheduler.settings import SchedulerSettings
from hamipy.scheduler.webhook import Webhook
from hamipy.scheduler.webhookconfig import WebhookConfiguration

logger = logging.getLogger(__name__)

KEEP_ALIVE = 120
"""Seconds an idle connection is kept. Go's clients close theirs after 90, so it is they who do it and no request is
sent into a connection that is being closed."""


class ServiceFailed(HamipyError):
    """A part of the process failed; the text says which and why."""


class Ports(Struct, frozen=True):
    """Where the process listens."""

    extender: int
    webhook: int
    metrics: int


class Parts:
    """Everything that one scheduler process consists of, wired but not running."""

    def __init__(self, settings: SchedulerSettings, client: KubeClient) -> None:
        self.settings = settings
        families = Families()
        leadership = Leadership(
            client,
            namespace=settings.namespace,
            lease_name=settings.lease_name,
            pod_name=settings.pod_name,
            lease_duration=settings.lease_duration,
            renew_deadline=settings.renew_deadline,
            always=settings.no_leadership,
        )
        self.leadership = leadership
        self.engine = Engine(
            client,
            leadership,
            scheduler_name=settings.scheduler_name,
            families=families,
            node_policy=settings.node_policy,
            device_policy=settings.device_policy,
        )
        self.state = self.engine.state
        self.webhook = Webhook(families, scheduler_name=settings.scheduler_name)
        self.serving = ServingCertificate()
        self.certificates = self._certificates(client)
        self.configuration = WebhookConfiguration(
            client,
            name=settings.webhook_configuration,
            families=families,
            bundle=lambda: self.certificates.bundle,
            leads=self._may_configure,
        )
        self.publisher = Publisher(client, self.state, self._leads)
        leadership.gained += [self.publisher.look_at_all, self.configuration.look]
        reflectors = [*self.state.reflectors, *([leadership.reflector] if leadership.reflector else [])]
        self.metrics = Metrics(
            Sources(
                state=self.state,
                stats=self.engine.stats,
                webhook=self.webhook,
                publisher=self.publisher,
                configuration=self.configuration,
                serving=self.serving,
                leads=self._leads,
                reflectors=reflectors,
                writes=client.writes,
            )
        )

    def _certificates(self, client: KubeClient) -> SecretCertificates | DirectoryCertificates:
        settings = self.settings
        host = f"{settings.webhook_service}.{settings.namespace}.svc"
        names = (host, f"{host}.cluster.local")
        if settings.cert_dir is not None:
            return DirectoryCertificates(settings.cert_dir, names=names[:1], serving=self.serving)
        return SecretCertificates(
            client,
            namespace=settings.namespace,
            name=settings.cert_secret,
            names=names,
            serving=self.serving,
            leads=self._leads,
            trusts=lambda bundle: self.configuration.in_place == bundle,
            changed=lambda: self.configuration.look(),
        )

    def _leads(self) -> bool:
        return self.leadership.is_leader

    def _may_configure(self) -> bool:
        """Leading, and knowing whom to trust (or having somebody else who does)."""
        return self._leads() and (self.settings.cert_dir is not None or self.certificates.bundle is not None)

    def extender_problem(self) -> str:
        """Why the extender is not ready, or empty."""
        if not self.state.ready:
            waiting = ", ".join(r.name for r in self.state.reflectors if not r.synced)
            return f"extender: not yet listed: {waiting}"
        return "extender: the API server has been silent for too long" if self.state.stale else ""

    def webhook_problem(self) -> str:
        """Why the webhook is not ready, or empty."""
        return "" if self.serving.usable else "webhook: there is no certificate yet, or it has expired"

    def inspect(self) -> AsyncIterator[bytes]:
        """The ledger now, as JSON."""
        return stream(self.state, leader=self._leads())

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs for ever, by name."""
        return {
            "engine": self.engine.run(),
            "publisher": self.publisher.run(),
            "certificates": self.certificates.run(),
            "webhook configuration": self.configuration.run(),
        }


async def run(
    settings: SchedulerSettings,
    *,
    config: ClusterConfig | None = None,
    started: Callable[[Ports], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until a part fails.

    Args:
        settings: what the process is told.
        config: the API server; without it `settings.kubeconfig` says.
        started: called once all ports answer.
        stop: set by the caller to stop it; signals are then the caller's too.

    Raises:
        ServiceFailed: a part failed; everything else was stopped in order.
        HamipyError: it could not begin: no way to the API server, or a port is taken.
    """
    config = config or load_config(settings.kubeconfig)
    with contextlib.ExitStack() as stack:
        sockets = {
            "extender": stack.enter_context(_listen("extender-port", "127.0.0.1", settings.extender_port)),
            "webhook": stack.enter_context(_listen("webhook-port", "", settings.webhook_port)),
            "metrics": stack.enter_context(_listen("metrics-port", "", settings.metrics_port)),
        }
        ports = Ports(**{name: sock.getsockname()[1] for name, sock in sockets.items()})
        async with (
            KubeClient(config, user_agent=f"hamipy-scheduler/{__version__}") as client,
            _stopping(stop) as wanted,
        ):
            parts = Parts(settings, client)
            apps = {
                "extender": extender_app(parts.engine.extender, parts.extender_problem),
                "webhook": webhook_app(parts.webhook),
                "metrics": metrics_app(
                    parts.metrics,
                    parts.inspect,
                    {"extender": parts.extender_problem, "webhook": parts.webhook_problem},
                ),
            }
            servers = {name: _Server(app, settings.stop_limit) for name, app in apps.items()}
            servers["webhook"].config.load()
            servers["webhook"].config.ssl = parts.serving.context
            logger.info("hamipy %s: scheduler %s on %s", __version__, settings.scheduler_name, config.server)
            await _supervise(parts, servers, sockets, wanted, started and (lambda: started(ports)))


async def _supervise(
    parts: Parts,
    servers: "dict[str, _Server]",
    sockets: dict[str, socket.socket],
    wanted: asyncio.Event,
    started: Callable[[], None] | None,
) -> None:
    """Run everything; stop everything in order when it is wanted or a part ends."""
    background = {asyncio.create_task(work, name=name) for name, work in parts.background().items()}
    serving = {
        asyncio.create_task(server.serve([sockets[name]]), name=f"{name} server") for name, server in servers.items()
    }
    stopping = asyncio.create_task(wanted.wait(), name="stop")
    try:
        if await _all_started(servers, background | serving):
            logger.info("serving: %s", ", ".join(f"{n} on {s.getsockname()[1]}" for n, s in sockets.items()))
            if started is not None:
                started()
            await asyncio.wait({stopping, *background, *serving}, return_when=asyncio.FIRST_COMPLETED)
        failed = [task for task in (*background, *serving) if task.done()]
    finally:
        for server in servers.values():
            server.should_exit = True
        await asyncio.wait(serving)
        for task in (*background, stopping):
            task.cancel()
        await asyncio.wait({*background, stopping})
    for task in failed:
        cause = None if task.cancelled() else task.exception()
        raise ServiceFailed(f"{task.get_name()}: {_sentence(cause)}") from cause
    logger.info("stopped")


async def _all_started(servers: "dict[str, _Server]", tasks: set[asyncio.Task[None]]) -> bool:
    """Wait until every server answers; False when a part ended before."""
    while not all(server.started for server in servers.values()):
        done, _ = await asyncio.wait(tasks, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return False
    return True


def _sentence(cause: BaseException | None) -> str:
    if cause is None:
        return "ended by itself"
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return str(cause) if isinstance(cause, HamipyError) else f"{type(cause).__name__}: {cause}"


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the process."""

    def __init__(self, app: Starlette, stop_limit: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=max(1, round(stop_limit)),
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals concern the whole process, not one of its servers."""
        yield


@contextlib.asynccontextmanager
async def _stopping(stop: asyncio.Event | None) -> AsyncIterator[asyncio.Event]:
    """The event that says stop: the caller's, or one that SIGTERM and SIGINT set."""
    if stop is not None:
        yield stop
        return
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    try:
        yield event
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _listen(flag: str, host: str, port: int) -> socket.socket:
    """A listening socket; all addresses, IPv6 too where there is IPv6, when `host` is empty."""
    try:
        if not host and socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # IPv6 can be compiled in and switched off; IPv4 says what is wrong
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=2048)
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        raise ServiceFailed(f"{flag}: {port}: cannot listen: {os.strerror(error.errno or 0)}") from error
