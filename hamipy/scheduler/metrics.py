"""What the scheduler tells Prometheus (text format 0.0.4).

Counters come from plain objects at the moment of scraping. The per-device gauges are written by hand, in pieces that
let the event loop run in between: 40,000 devices are seven times as many lines, and a filter must not wait for them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hamipy import __version__
from hamipy.core.ledger import Ledger, NodeEntry
from hamipy.scheduler.certificate_sources import ServingCertificate
from hamipy.scheduler.publisher import Publisher
from hamipy.scheduler.state import ClusterState
from hamipy.scheduler.stats import Histogram, Stats
from hamipy.scheduler.webhook import Webhook
from hamipy.scheduler.webhookconfig import WebhookConfiguration

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NODES_A_PIECE = 64


class Sources:
    """Where the numbers come from.

    Args:
        state, stats, webhook, publisher, configuration, serving: the parts that count.
        leads: whether this replica leads.
        reflectors: all of this process, the Lease's too.
        writes: API writes by verb and resource (`create pods/binding`).
    """

    def __init__(
        self,
        *,
        state: ClusterState,
        stats: Stats,
        webhook: Webhook,
        publisher: Publisher,
        configuration: WebhookConfiguration,
        serving: ServingCertificate,
        leads: Callable[[], bool],
        reflectors: Iterable[Any],
        writes: Mapping[str, int],
    ) -> None:
        self.state, self.stats, self.webhook, self.publisher = state, stats, webhook, publisher
        self.configuration, self.serving, self.leads = configuration, serving, leads
        self.reflectors, self.writes = tuple(reflectors), writes


class _Counters(Collector):
    """Everything that is not about single devices."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        s, stats, state = self._sources, self._sources.stats, self._sources.state
        yield _gauge("build_info", "Which build this is", {(__version__,): 1}, ("version",))
        yield _gauge("leader", "Whether this scheduler leads", {(): int(s.leads())})
        yield _gauge("ledger_ready", "Whether everything has been listed once", {(): int(state.ready)})
        yield _gauge("ledger_stale", "Whether the API server has been silent for too long", {(): int(state.stale)})
        yield _gauge("nodes", "Nodes with an inventory", {(): len(state.inventories)})
        yield _gauge("inventory_problems", "Inventories that cannot be read", {(): len(state.inventory_problems)})
        yield _gauge(
            "unknown_pods", "Pods on nodes that use our names without a readable allocation", {(): len(state.unknown)}
        )
        yield _count("filters", "Answered /filter calls", stats.filters, "outcome")
        yield _histogram("filter_seconds", "Time of a filter, HTTP left out", stats.filter_seconds)
        yield _count("preemptions", "Candidates of /preempt", stats.preemptions, "outcome")
        yield _count("binds", "Answered /bind calls", stats.binds, "outcome")
        yield _count("binds_refused", "Refused binds", stats.binds_refused, "cause")
        yield _histogram("bind_seconds", "Time of a bind, the API server's included", stats.bind_seconds)
        yield _count("bindings_posted", "Bindings sent to the API server", {"": stats.bindings_posted})
        yield _count("assumptions", "What became of assumed pods", stats.assumptions, "outcome")
        yield _count("holds", "Soft holds", stats.holds, "event")
        yield _count("wakeups", "Refused pods that were told to try again", stats.wakeups, "outcome")
        yield _count("webhook_reviews", "Reviewed pods", s.webhook.outcomes, "outcome")
        yield _count("published", "Node statuses written", {"": s.publisher.written})
        yield _count("publish_failures", "Node statuses that could not be written", {"": s.publisher.failed})
        yield _count(
            "webhook_configuration_writes", "Corrections of the webhook configuration", {"": s.configuration.writes}
        )
        yield _count("certificate_loads", "Certificates taken into use", {"": s.serving.loads})
        if s.serving.pair is not None:
            end = s.serving.pair.leaf.not_valid_after_utc.timestamp()
            yield _gauge("certificate_expiry_timestamp_seconds", "When the served certificate ends", {(): end})
        yield _count("api_writes", "Write requests to the API server", dict(s.writes), "request")
        for field, text in (
            ("lists", "Lists delivered"),
            ("watches", "Watches established"),
            ("events", "Changes delivered"),
            ("errors", "Failures"),
            ("malformed", "Objects left out because they contradict their type"),
        ):
            counts = {r.name: getattr(r, field) for r in s.reflectors}
            yield _count(f"reflector_{field}", f"{text}, by collection", counts, "collection")


def _gauge(name: str, text: str, values: Mapping[tuple[str, ...], float], labels: tuple[str, ...] = ()) -> Metric:
    metric = GaugeMetricFamily(f"hamipy_{name}", text, labels=labels)
    for of_labels, value in values.items():
        metric.add_metric(of_labels, value)
    return metric


def _count(name: str, text: str, values: Mapping[str, float], label: str = "") -> Metric:
    metric = CounterMetricFamily(f"hamipy_{name}", text, labels=(label,) if label else ())
    for of_label, value in sorted(values.items()):
        metric.add_metric((of_label,) if label else (), value)
    return metric


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets, seen = [], 0
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        seen += count
        buckets.append((bound, seen))
    return HistogramMetricFamily(f"hamipy_{name}", text, buckets=buckets, sum_value=histogram.total)


class Metrics:
    """All of `/metrics`."""

    def __init__(self, sources: Sources) -> None:
        self._ledger = sources.state.ledger
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._registry.register(_Counters(sources))

    async def render(self) -> AsyncIterator[bytes]:
        """The text, piece by piece."""
        yield generate_latest(self._registry)
        async for piece in device_lines(self._ledger):
            yield piece


_GAUGES: tuple[tuple[str, str, Callable[[Ledger, tuple[int, int]], int]], ...] = (
    ("memory_bytes", "Memory of a device", lambda x, at: int(x.memory_total[at])),
    ("memory_allocated_bytes", "Memory given away", lambda x, at: int(x.memory_total[at] - x.memory_free[at])),
    ("cores_percent", "Compute of a device", lambda x, at: int(x.cores_total[at])),
    ("cores_allocated_percent", "Compute given away", lambda x, at: int(x.cores_total[at] - x.cores_free[at])),
    ("slots", "Shares a device admits at once", lambda x, at: int(x.slots_total[at])),
    ("slots_allocated", "Shares given away", lambda x, at: int(x.slots_total[at] - x.slots_free[at])),
    ("healthy", "Whether a device is well", lambda x, at: int(x.healthy[at])),
)


async def device_lines(ledger: Ledger) -> AsyncIterator[bytes]:
    """Gauges of every device; nodes that go while this runs are left out from then on."""
    names = sorted(ledger.nodes)
    for gauge, text, value in _GAUGES:
        yield f"# HELP hamipy_device_{gauge} {text}.\n# TYPE hamipy_device_{gauge} gauge\n".encode()
        for start in range(0, len(names), _NODES_A_PIECE):
            entries = [e for n in names[start : start + _NODES_A_PIECE] if (e := ledger.nodes.get(n)) is not None]
            lines = [
                f"hamipy_device_{gauge}{labels} {value(ledger, (position, entry.column))}\n"
                for entry in entries
                for labels, position in _labels(entry)
            ]
            if lines:
                yield "".join(lines).encode()
            await asyncio.sleep(0)


def _labels(entry: NodeEntry) -> Iterator[tuple[str, int]]:
    for device in entry.inventory.devices if entry.inventory is not None else ():
        position = entry.position.get(device.id)
        if position is not None:
            labels = {"node": entry.name, "device": device.id, "vendor": device.vendor, "model": device.model}
            text = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
            yield f"{{{text}}}", position


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
