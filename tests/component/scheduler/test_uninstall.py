"""What is left of hamipy in a cluster after `hamipy uninstall`."""

import asyncio
from typing import Any

import pytest

from hamipy.kube.nodedevices import PATH as NODEDEVICES
from hamipy.scheduler.settings import UninstallSettings
from hamipy.scheduler.uninstall import Incomplete, run
from hamipy.testing.apiserver import InMemoryApiServer
from tests.component.scheduler.world import until

SYSTEM = "/api/v1/namespaces/hamipy-system"
APPS = "/apis/apps/v1/namespaces/hamipy-system"
LEASES = "/apis/coordination.k8s.io/v1"
NODES = "/api/v1/nodes"
QUICK = UninstallSettings(stop_limit=0.2)


def install(api: InMemoryApiServer) -> None:
    ours = {"hamipy.io/memory": "14Gi", "hamipy.io/cores": "100", "hamipy.io/device": "10", "cpu": "4"}
    for name in ("n1", "n2"):
        api.create(NODES, {"metadata": {"name": name}, "status": {"capacity": ours, "allocatable": ours}})
        api.create(NODEDEVICES, {"metadata": {"name": name}, "spec": {"devices": []}})
    api.create(NODES, {"metadata": {"name": "cpu"}, "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}}})
    api.create(f"{APPS}/daemonsets", {"metadata": {"name": "hamipy-node"}})
    api.create(f"{APPS}/deployments", {"metadata": {"name": "hamipy-scheduler"}})
    api.create(f"{SYSTEM}/secrets", {"metadata": {"name": "hamipy-webhook-tls"}})
    api.create(f"{LEASES}/namespaces/hamipy-system/leases", {"metadata": {"name": "hamipy-scheduler"}})


def daemon(api: InMemoryApiServer, name: str, component: str = "node") -> None:
    labels = {"app.kubernetes.io/name": "hamipy", "app.kubernetes.io/component": component}
    api.create(f"{SYSTEM}/pods", {"metadata": {"name": name, "labels": labels}, "status": {"phase": "Running"}})


def left(api: InMemoryApiServer) -> list[Any]:
    return [
        *api.list(NODEDEVICES),
        *api.list("/apis/apps/v1/daemonsets"),
        *api.list("/apis/apps/v1/deployments"),
        *api.list("/api/v1/secrets"),
        *api.list(f"{LEASES}/leases"),
    ]


async def test_names_objects_workloads_secret_and_lease_are_gone_and_all_else_stays() -> None:
    async with InMemoryApiServer() as api:
        install(api)

        report = await run(QUICK, config=api.config())

        kept = {"hamipy.io/device": "10", "cpu": "4"}
        assert api.get(f"{NODES}/n1")["status"] == {"capacity": kept, "allocatable": kept}
        assert api.get(f"{NODES}/cpu")["status"]["capacity"] == {"cpu": "4"}
        assert left(api) == []
        assert (sorted(report.nodes), sorted(report.objects)) == (["n1", "n2"], ["n1", "n2"])
        assert report.sentence() == (
            "stopped DaemonSet hamipy-node, Deployment hamipy-scheduler; took published names off 2 nodes; deleted 2 "
            "NodeDevices objects, the Secret and the Lease"
        )


async def test_it_can_be_repeated_and_run_where_nothing_is() -> None:
    async with InMemoryApiServer() as api:
        install(api)
        await run(QUICK, config=api.config())

        report = await run(QUICK, config=api.config())

        assert report.sentence() == (
            "stopped nothing; took published names off 0 nodes; deleted 0 NodeDevices objects, no Secret and no Lease"
        )
    async with InMemoryApiServer(crds=False) as api:
        await run(QUICK, config=api.config())


async def test_nothing_is_taken_away_before_what_would_publish_again_has_stopped() -> None:
    async with InMemoryApiServer() as api:
        install(api)
        daemon(api, "hamipy-node-x")
        daemon(api, "hamipy-scheduler-x", "scheduler")
        daemon(api, "hamipy-uninstall-x", "uninstall")
        task = asyncio.create_task(run(UninstallSettings(stop_limit=30.0), config=api.config()))
        await until(lambda: [r for r in api.requests if r.path.endswith("/pods")], "it looks at the pods")
        assert len(api.list(NODEDEVICES)) == 2

        api.delete(f"{SYSTEM}/pods/hamipy-node-x")
        api.patch(f"{SYSTEM}/pods/hamipy-scheduler-x", {"status": {"phase": "Succeeded"}})

        report = await task
        assert report.still_running == []
        assert left(api) == []


async def test_a_daemon_that_never_stops_is_named_and_does_not_hold_it_up() -> None:
    async with InMemoryApiServer() as api:
        install(api)
        daemon(api, "hamipy-node-x")

        report = await run(QUICK, config=api.config())

        assert report.still_running == ["hamipy-system/hamipy-node-x"]
        assert left(api) == []


async def test_passing_errors_are_overcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamipy.scheduler.uninstall._PAUSE", 0.01)
    async with InMemoryApiServer() as api:
        install(api)
        api.faults.add("patch", f"{NODES}/n1/status", times=2, status=500)
        api.faults.add("delete", f"{NODEDEVICES}/n2", drop="after")

        await run(QUICK, config=api.config())

        assert "hamipy.io/memory" not in api.get(f"{NODES}/n1")["status"]["capacity"]
        assert left(api) == []


async def test_what_stays_in_spite_of_everything_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamipy.scheduler.uninstall._PAUSE", 0.01)
    async with InMemoryApiServer() as api:
        install(api)
        api.faults.add("patch", f"{NODES}/n1/status", times=None, status=403)

        with pytest.raises(Incomplete, match=r"^not everything is gone \(PATCH /api/v1/nodes/n1/status: 403"):
            await run(QUICK, config=api.config())

        assert left(api)[0]["metadata"]["name"] == "hamipy-webhook-tls", "everything else was still done"
