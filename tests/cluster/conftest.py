"""Fixtures: one cluster with the chart installed for all tests of this directory, one namespace per test.

`HAMIPY_CLUSTER=keep` takes a cluster that runs already (`make cluster`), with the chart as installed there, and leaves
it running: for writing tests. Without it a cluster that is there already is an error.
"""

import itertools
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from . import chart
from .cluster import Cluster
from .workloads import Space

KEEP = os.environ.get("HAMIPY_CLUSTER") == "keep"
HERE = Path(__file__).parent
_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "first: runs before all other cluster tests, on a fresh installation")
    config.addinivalue_line("markers", "late: runs after other tests of the cluster, for it takes the chart away")
    config.addinivalue_line("markers", "last: runs after all other tests of the cluster, for it takes the cluster down")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give real components time (fixtures do not count), and take the cluster down at the end."""
    ours = [i for i in items if HERE in i.path.parents]
    for item in ours:
        item.add_marker("cluster")
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(180, func_only=True))
    last = [i for i in ours if i.get_closest_marker("last")]
    if KEEP:
        config.hook.pytest_deselected(items=last)
    positions = [n for n, i in enumerate(items) if i in ours]
    order = {"first": -1, "late": 1, "last": 2}
    ordered = sorted(ours, key=lambda i: max((n for m, n in order.items() if i.get_closest_marker(m)), default=0))
    for position, item in zip(positions, ordered, strict=True):
        items[position] = item
    if KEEP:
        items[:] = [i for i in items if i not in last]


@pytest.fixture(scope="package")
def bare_cluster() -> Iterator[Cluster]:
    """Two nodes with mock profile t4x1, no chart."""
    if KEEP:
        running = Cluster.load()
        assert running, "HAMIPY_CLUSTER=keep, but no cluster runs: `make cluster` starts one"
        yield running
        running.api.close()
        return
    cluster = Cluster.start(["t4x1", "t4x1"])
    yield cluster
    cluster.stop()


@pytest.fixture(scope="package")
def cluster(bare_cluster: Cluster) -> Cluster:
    """Two nodes with one 14 GiB mock card each, the chart installed, all of it Ready."""
    if not KEEP:
        chart.install(bare_cluster, chart.image())
    chart.wait_devices(bare_cluster)
    return bare_cluster


def _space(cluster: Cluster) -> Iterator[Space]:
    space = Space(cluster, f"t{next(_numbers)}-{int(time.time()) % 100000}")
    space.open()
    yield space
    space.close()


@pytest.fixture
def space(cluster: Cluster) -> Iterator[Space]:
    """A namespace of the test's own; afterwards its pods are gone."""
    yield from _space(cluster)


@pytest.fixture
def bare_space(bare_cluster: Cluster) -> Iterator[Space]:
    """The same without the chart."""
    yield from _space(bare_cluster)


@pytest.fixture
def big_node(cluster: Cluster) -> Iterator[str]:
    """Name of a node that has eight 80 GiB cards for the time of the test; ask for it before `space`."""
    node = list(cluster.nodes.values())[-1]
    node.profile = "a100x8"
    chart.wait_devices(cluster, {node.name: 8})
    yield node.name
    node.profile = "t4x1"
    chart.wait_devices(cluster, {node.name: 1})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows its pods, their events and the ends of the components' logs."""
    report = yield
    if report.failed and report.when != "teardown":
        found = getattr(item, "funcargs", {})
        space = found.get("space") or found.get("bare_space")
        cluster = found.get("cluster") or found.get("bare_cluster") or (space.cluster if space else None)
        try:
            if space:
                report.sections.append(("pods of the test", space.report()))
            if isinstance(cluster, Cluster):
                report.sections.append(("hamipy", chart.report(cluster)))
                report.sections.append(("components", cluster.report(15)))
        except Exception as e:  # noqa: BLE001 # the cluster may be in any state; the test's own failure matters
            report.sections.append(("report", f"could not be made: {e!r}"))
    return report
