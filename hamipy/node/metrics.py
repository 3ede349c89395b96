"""Counters and times of the daemon, rendered by hand: a metrics library would cost a tenth of its memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds in seconds."""

_COUNTERS = {
    "registrations": "Registrations with the kubelet that succeeded.",
    "registration_failures": "Registrations with the kubelet that failed.",
    "streams_ended": "ListAndWatch streams that ended.",
    "starts_refused": "Container starts refused.",
    "starts_local": "Container starts served from local state.",
    "ids_swapped": "Containers that got ids of other devices from the kubelet than the scheduler chose.",
    "steered": "GetPreferredAllocation calls answered for a known container.",
    "unsteered": "GetPreferredAllocation calls for which no container was expected.",
    "inventory_writes": "Writes of the inventory.",
    "inventory_failures": "Writes of the inventory that failed.",
    "cleaned": "Containers whose files were removed.",
    "vendor_failures": "Discoveries that failed or took too long.",
}


class Metrics:
    """What /metrics shows; counters by name, times by call."""

    def __init__(self) -> None:
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.gauges: dict[str, float] = {}
        self._times: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def count(self, name: str) -> None:
        """Add one."""
        self.counters[name] += 1

    @contextmanager
    def timed(self, call: str) -> Iterator[None]:
        """Measure a call of the kubelet's."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - begin
            counts = self._times.setdefault(call, [0] * (len(BUCKETS) + 1))
            counts[next((i for i, bound in enumerate(BUCKETS) if took <= bound), len(BUCKETS))] += 1
            self._sums[call] = self._sums.get(call, 0.0) + took

    def render(self) -> str:
        """Prometheus text format 0.0.4."""
        lines = []
        for name, text in _COUNTERS.items():
            lines += [
                f"# HELP hamipy_node_{name}_total {text}",
                f"# TYPE hamipy_node_{name}_total counter",
                f"hamipy_node_{name}_total {self.counters[name]}",
            ]
        for name, value in sorted(self.gauges.items()):
            lines += [f"# TYPE hamipy_node_{name} gauge", f"hamipy_node_{name} {value:g}"]
        if self._times:
            lines += [
                "# HELP hamipy_node_call_seconds Time of the kubelet's calls.",
                "# TYPE hamipy_node_call_seconds histogram",
            ]
        for call, counts in sorted(self._times.items()):
            total = 0
            for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
                total += count
                lines.append(f'hamipy_node_call_seconds_bucket{{call="{call}",le="{bound}"}} {total}')
            lines.append(f'hamipy_node_call_seconds_sum{{call="{call}"}} {self._sums[call]:.6f}')
            lines.append(f'hamipy_node_call_seconds_count{{call="{call}"}} {total}')
        return "\n".join(lines) + "\n"
