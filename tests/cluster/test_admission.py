"""What the authors of pods may not do, and what happens while the webhook is away."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from . import chart
from .api import JSON, ApiError, path
from .books import allocation, disagreements
from .cluster import Cluster
from .daemons import wait_until
from .workloads import Space, container, deployment, pod, runs

MEMORY = "hamipy.io/memory"
ALLOCATION, RETRY = "hamipy.io/allocation", "hamipy.io/retry"
FORGED = '{"v":1,"containers":{"main":[{"device":"mock-w1-0","memory":1,"cores":1}]}}'


def _ours(name: str = "ours", **fields: Any) -> JSON:
    return pod(name, container(limits={MEMORY: "1Gi"}), **fields)


def _refusal(space: Space, manifest: JSON) -> ApiError:
    with pytest.raises(ApiError) as caught:
        space.create(manifest)
    assert space.api.find("pods", space.name, manifest["metadata"]["name"]) is None
    return caught.value


@contextmanager
def _without_schedulers(cluster: Cluster) -> Iterator[None]:
    """No replica of the scheduler, and so nobody behind the webhook's Service."""

    def scale(replicas: int) -> None:
        cluster.api.patch("deployments", chart.NAMESPACE, "hamipy-scheduler", {"spec": {"replicas": replicas}})

    replicas = cluster.api.get("deployments", chart.NAMESPACE, "hamipy-scheduler")["spec"]["replicas"]
    scale(0)
    try:
        selector = "app.kubernetes.io/component=scheduler"
        gone = lambda: not cluster.api.list("pods", chart.NAMESPACE, labelSelector=selector)  # noqa: E731
        wait_until(gone, 60, "the schedulers to end")
        yield
    finally:
        scale(replicas)
        cluster.kubectl("-n", chart.NAMESPACE, "rollout", "status", "deployment/hamipy-scheduler", "--timeout=60s")


def test_without_the_webhook_our_pods_are_refused_clearly_and_all_others_start(space: Space) -> None:
    space.create(pod("before", container(limits={MEMORY: "2Gi"})))
    (before,) = space.wait_running(1)
    with _without_schedulers(space.cluster):
        refusal = _refusal(space, _ours("bare"))
        assert refusal.status == 500
        assert 'failed calling webhook "pods.hamipy.io"' in refusal.message
        assert "hamipy-webhook" in refusal.message
        space.create(pod("plain", container(), annotations={"example.com/gpu": "hamipy.io/memory"}))
        space.create(deployment("others", 1, pod("others", container())))
        space.create(deployment("ours", 2, pod("ours", container(limits={MEMORY: "2Gi"}))))
        space.wait_running(3)

        def told() -> list[str]:
            events = space.api.list("events", space.name, fieldSelector="reason=FailedCreate")
            return [e["message"] for e in events if e["involvedObject"]["kind"] == "ReplicaSet"]

        (message, *_) = wait_until(told, 20, "a FailedCreate event of the ReplicaSet")
        assert 'failed calling webhook "pods.hamipy.io"' in message
        assert space.pods(labelSelector="app=ours") == []
    up = wait_until(lambda: [p for p in space.pods(labelSelector="app=ours") if runs(p)][1:], 90, "the Deployment")
    assert [d for p in [*up, space.pod("before")] for d in disagreements(space, p)] == []
    now, then = (p["status"]["containerStatuses"][0] for p in (space.pod("before"), before))
    assert (now["containerID"], now["restartCount"]) == (then["containerID"], 0)
    space.create(_ours("bare"))
    wait_until(lambda: runs(space.pod("bare")), 60, "the pod that was refused to run")


def test_labels_and_annotations_edited_by_the_owner_change_nothing(space: Space) -> None:
    space.create(_ours("edited", labels={"app": "edited"}, annotations={"hamipy.io/vendor": "mock"}))
    (before,) = space.wait_running(1)
    decided = allocation(before)
    for annotations in (
        {"hamipy.io/vendor": "nvidia", "hamipy.io/device-policy": "spread", "hamipy.io/node-policy": "spread"},
        {"hamipy.io/uuid-exclude": decided["main"][0]["device"], "hamipy.io/model": "no such model"},
        {"hamipy.io/device-policy": "nonsense", "hamipy.io/unheard-of": "yes", "hamipy.io/numa": "require"},
    ):
        labels = {"app": None, "hamipy.io/node": "elsewhere", "app.kubernetes.io/name": "hamipy"}
        space.api.patch("pods", space.name, "edited", {"metadata": {"labels": labels, "annotations": annotations}})
        assert disagreements(space, space.pod("edited")) == []
        assert allocation(space.pod("edited")) == decided
    # and the share is the same after a restart of its container
    space.cluster.kubectl("-n", space.name, "exec", "edited", "--", "kill", "1", check=False)

    def restarted() -> bool:
        (status,) = space.pod("edited")["status"]["containerStatuses"]
        return status["restartCount"] == 1 and "running" in status["state"]

    wait_until(restarted, 60, "the container to restart")
    assert disagreements(space, space.pod("edited")) == []


def test_nobody_but_the_scheduler_writes_reserved_annotations(space: Space) -> None:
    for key, value in ((ALLOCATION, FORGED), (RETRY, "1")):
        assert key in _refusal(space, _ours(annotations={key: value})).message
        # the webhook never meets this one, for it asks for nothing of ours
        refusal = _refusal(space, pod("plain", container(), annotations={key: value}))
        assert (refusal.status, key in refusal.message) == (403, True)
    space.create(_ours(), pod("plain", container()))
    space.wait_running(2)
    decided = space.pod("ours")["metadata"]["annotations"][ALLOCATION]
    writes: list[tuple[str, str, str | None]] = [
        ("ours", ALLOCATION, FORGED),
        ("ours", ALLOCATION, None),  # away with it
        ("ours", RETRY, "1"),
        ("plain", ALLOCATION, FORGED),
        ("plain", RETRY, "1"),
    ]
    for name, key, written in writes:
        for sub in (None, "status"):
            with pytest.raises(ApiError) as caught:
                space.api.patch("pods", space.name, name, {"metadata": {"annotations": {key: written}}}, sub)
            assert caught.value.status == 403
            assert f"metadata.annotations[{key}]" in caught.value.message
    assert space.pod("ours")["metadata"]["annotations"][ALLOCATION] == decided
    assert ALLOCATION not in space.pod("plain")["metadata"].get("annotations", {})


def test_a_binding_by_somebody_else_cannot_carry_an_allocation(space: Space) -> None:
    space.create(pod("unbound", container(), schedulerName="nobody"))
    node = next(iter(space.cluster.nodes))
    for where, key in (
        (path("pods", space.name, "unbound", "binding"), ALLOCATION),
        (path("bindings", space.name), RETRY),
    ):
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "unbound", "annotations": {key: FORGED}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        with pytest.raises(ApiError) as caught:
            space.api.request("POST", where, binding)
        assert (caught.value.status, key in caught.value.message) == (403, True)
    assert "nodeName" not in space.pod("unbound")["spec"]


@pytest.mark.parametrize(
    "variable",
    [
        "HAMIPY_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "NVIDIA_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
    ],
)
def test_reserved_environment_is_refused_by_name(space: Space, variable: str) -> None:
    env = [{"name": "HARMLESS", "value": "1"}, {"name": variable, "value": "all"}]
    device = container(limits={MEMORY: "1Gi"})
    for manifest in (
        pod("own", container(limits={MEMORY: "1Gi"}, env=env)),
        pod("beside", device, container("plain", env=env)),
        pod("early", device, init=[container("init", ends=True, env=env)]),
    ):
        refusal = _refusal(space, manifest)
        assert variable in refusal.message
        assert refusal.status == 403


def test_an_ephemeral_container_of_our_pod_cannot_reach_for_devices_by_environment(space: Space) -> None:
    space.create(_ours())
    space.wait_running(1)
    debugger = container("debugger", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    with pytest.raises(ApiError) as caught:
        space.api.patch(
            "pods", space.name, "ours", {"spec": {"ephemeralContainers": [debugger]}}, "ephemeralcontainers"
        )
    assert (caught.value.status, "NVIDIA_VISIBLE_DEVICES" in caught.value.message) == (403, True)


def test_our_names_with_another_scheduler_or_a_preset_node_are_refused(space: Space) -> None:
    node = next(iter(space.cluster.nodes))
    for name, spec, words in (
        ("foreign", {"schedulerName": "somebody-elses"}, ("spec.schedulerName", "somebody-elses", "hamipy-scheduler")),
        ("preset", {"nodeName": node}, ("spec.nodeName", node, "nodeSelector")),
        ("both", {"nodeName": node, "schedulerName": "hamipy-scheduler"}, ("spec.nodeName", node, "nodeSelector")),
    ):
        refusal = _refusal(space, _ours(name, **spec))
        assert refusal.status == 403
        assert [w for w in words if w not in refusal.message] == [], refusal.message
    # what a manifest may say itself
    space.create(_ours("named", schedulerName="hamipy-scheduler"), _ours("default", schedulerName="default-scheduler"))
    assert {p["spec"]["schedulerName"] for p in space.wait_running(2)} == {"hamipy-scheduler"}
