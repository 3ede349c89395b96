"""The chart on a real API server: it installs, upgrades keep the certificate, and its policies refuse what they should.

There are no controllers and no nodes: only what the API server itself decides.
"""

import base64
import contextlib
import itertools
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from hamipy.core.family import Families
from hamipy.core.names import RESERVED_ENV, RESERVED_ENV_PREFIXES
from hamipy.kube.client import KubeClient
from hamipy.scheduler.settings import UninstallSettings
from hamipy.scheduler.uninstall import run
from hamipy.scheduler.webhookconfig import WebhookConfiguration
from tests.chart.bare import APPLY, JSON, BareApiServer, Client, Refused
from tests.chart.conftest import CHART, MOCK, NAMESPACE, Helm, Rendered
from tests.cluster.daemons import wait_until

CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hamipy"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
PODS = "/api/v1/namespaces/default/pods"
NODE_DEVICES = "/apis/hamipy.io/v1alpha1/nodedevices"
ALLOCATION, RETRY = "hamipy.io/allocation", "hamipy.io/retry"
_counter = itertools.count()


def pod(
    limits: JSON | None = None,
    *,
    env: JSON | None = None,
    annotations: JSON | None = None,
    init: JSON | None = None,
    **spec: Any,
) -> JSON:
    """A pod as the policies meet it, that is with what the webhook adds where `limits` has names of ours."""
    name = f"p{next(_counter)}"
    container: JSON = {"name": "main", "image": "i", "env": [{"name": k, "value": v} for k, v in (env or {}).items()]}
    if limits:
        container["resources"] = {"limits": limits}
        spec.setdefault("schedulerName", "hamipy-scheduler")
    if init:
        spec["initContainers"] = [{"name": "first", "image": "i", **init}]
        spec.setdefault("schedulerName", "hamipy-scheduler")
    spec["containers"] = [{"name": "side", "image": "i"}, container]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": spec,
    }


OURS = {"hamipy.io/device": "1", "hamipy.io/memory": "1Gi"}


def refused(call: Any, *arguments: Any) -> Refused:
    with pytest.raises(Refused) as refusal:
        call(*arguments)
    return refusal.value


def make_node(api: BareApiServer, name: str) -> JSON:
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110", "hamipy.io/device": "20"}
    status = {"capacity": amounts, "allocatable": amounts, "images": [{"names": ["i"], "sizeBytes": 1}]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"zone": "a"}}, "status": status}
    return api.admin.create("/api/v1/nodes", node)


def make_bound_pod(api: BareApiServer, client: Client, node: str, annotations: JSON | None = None) -> str:
    """A pod of ours on a node; its path."""
    made = api.admin.create(PODS, pod(OURS))
    bind(client, made, node, annotations or {ALLOCATION: "{}"})
    return f"{PODS}/{made['metadata']['name']}"


def bind(client: Client, made: JSON, node: str, annotations: JSON) -> None:
    meta = made["metadata"]
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": meta["name"], "uid": meta["uid"], "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    client.create(f"{PODS}/{meta['name']}/binding", body)


@pytest.fixture(scope="module")
def installed(api: BareApiServer, helm: Helm) -> BareApiServer:
    """The chart installed by helm on the empty cluster, with nodes n1 and n2; its policies are in force."""
    flags = ["--namespace", NAMESPACE, "--create-namespace"]
    values = {**MOCK, "admission": {"refuseUnrequested": {"enabled": True}}}
    helm("install", "hamipy", str(CHART), *flags, values=values, kubeconfig=api.kubeconfig)
    for name in ("n1", "n2"):
        make_node(api, name)
    probe = {**pod(annotations={ALLOCATION: "{}"})}

    def in_force() -> bool:
        with contextlib.suppress(Refused):
            api.admin.create(f"{PODS}?dryRun=All", probe)
            return False
        return True

    wait_until(in_force, 20, "the policies to be in force")
    return api


@pytest.fixture(scope="module")
def without_webhook(installed: BareApiServer) -> BareApiServer:
    """Nobody serves the webhook here, so pods of ours come as it leaves them, and it is taken away."""
    installed.admin.delete(CONFIGURATION)

    def gone() -> bool:
        with contextlib.suppress(Refused):
            installed.admin.create(f"{PODS}?dryRun=All", pod(OURS))
            return True
        return False

    wait_until(gone, 20, "the API server to forget the webhook")
    return installed


@pytest.fixture(scope="module")
def scheduler(installed: BareApiServer) -> Client:
    return installed.account(NAMESPACE, "hamipy-scheduler")


@pytest.fixture(scope="module")
def author(installed: BareApiServer) -> Client:
    """A user who may do everything with pods, in every namespace."""
    kinds = ["pods", "pods/binding", "pods/status", "pods/ephemeralcontainers"]
    role = {"metadata": {"name": "author"}, "rules": [{"apiGroups": [""], "resources": kinds, "verbs": ["*"]}]}
    binding = {
        "metadata": {"name": "author"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "author"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "author"}],
    }
    installed.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role)
    installed.admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    return installed.user("author")


@pytest.fixture(scope="module")
def kubelet(installed: BareApiServer) -> Client:
    return installed.user("system:node:n1", "system:nodes")


def test_expressions_of_all_policies_are_well_typed(installed: BareApiServer) -> None:
    def checked() -> bool:
        return all("observedGeneration" in p.get("status", {}) for p in installed.admin.get(POLICIES)["items"])

    with installed.type_checker():
        wait_until(checked, 60, "the policies to be type-checked")
    for policy in installed.admin.get(POLICIES)["items"]:
        assert not policy["status"].get("typeChecking", {}).get("expressionWarnings"), policy["metadata"]["name"]


def test_while_the_webhook_is_away_only_pods_that_ask_for_devices_wait(
    installed: BareApiServer, author: Client
) -> None:
    author.create(PODS, pod())
    author.create(PODS, pod({"cpu": "1"}, schedulerName="default-scheduler"))
    assert "hamipy-webhook" in refused(author.create, PODS, pod(OURS)).message


@pytest.mark.parametrize("step", [("upgrade", "hamipy", str(CHART), "--reuse-values"), ("rollback", "hamipy", "1")])
async def test_the_certificate_survives(installed: BareApiServer, helm: Helm, step: tuple[str, ...]) -> None:
    bundle = installed.authority.certificate.read_bytes()
    async with KubeClient(installed.account(NAMESPACE, "hamipy-scheduler").config()) as client:
        options: JSON = {"families": Families(), "bundle": lambda: bundle, "leads": lambda: True}
        configuration = WebhookConfiguration(client, name="hamipy", **options)
        await configuration.ensure()
        before = installed.admin.get(CONFIGURATION)["webhooks"]
        assert base64.b64decode(before[0]["clientConfig"]["caBundle"]) == bundle
        helm(*step, "--namespace", NAMESPACE, kubeconfig=installed.kubeconfig)
        assert installed.admin.get(CONFIGURATION)["webhooks"] == before
        assert await configuration.ensure() is False


@pytest.mark.parametrize("annotation", [ALLOCATION, RETRY])
def test_reserved_annotations_are_absent_at_creation(
    without_webhook: BareApiServer, author: Client, annotation: str
) -> None:
    for limits in (None, OURS):
        answer = refused(author.create, PODS, pod(limits, annotations={annotation: "x"}))
        assert answer.status == 403
        assert (
            f"metadata.annotations[{annotation}] is written by hamipy's scheduler alone: leave it out of new pods and "
            "as it is on existing ones" in answer.message
        )
    author.create(PODS, pod(OURS, annotations={"hamipy.io/vendor": "mock", "note": "x"}))


def test_reserved_annotations_are_only_the_schedulers_to_change(
    without_webhook: BareApiServer, author: Client, scheduler: Client
) -> None:
    path = make_bound_pod(without_webhook, scheduler, "n1", {ALLOCATION: "decided"})
    for value in ("forged", None):
        for sub in ("", "/status"):
            patch = {"metadata": {"annotations": {ALLOCATION: value}}}
            assert refused(author.merge, path + sub, patch).status == 403
    assert refused(author.merge, path, {"metadata": {"annotations": {RETRY: "1"}}}).status == 403
    author.merge(path, {"metadata": {"annotations": {"note": "mine"}, "labels": {"mine": "too"}}})
    scheduler.merge(path, {"metadata": {"annotations": {RETRY: "1", ALLOCATION: "corrected"}}})
    assert without_webhook.admin.get(path)["metadata"]["annotations"] == {
        ALLOCATION: "corrected",
        RETRY: "1",
        "note": "mine",
    }


def test_a_binding_carries_the_decision_for_the_scheduler_alone(
    without_webhook: BareApiServer, author: Client, scheduler: Client
) -> None:
    made = without_webhook.admin.create(PODS, pod(OURS))
    answer = refused(bind, author, made, "n1", {ALLOCATION: "forged"})
    assert answer.status == 403
    assert "hamipy's scheduler alone" in answer.message
    bind(scheduler, made, "n1", {ALLOCATION: "decided"})
    there = without_webhook.admin.get(f"{PODS}/{made['metadata']['name']}")
    assert (there["spec"]["nodeName"], there["metadata"]["annotations"][ALLOCATION]) == ("n1", "decided")
    other = without_webhook.admin.create(PODS, pod())
    bind(author, other, "n2", {"note": "other schedulers bind as ever"})


def test_those_who_look_after_pods_are_not_hindered(
    without_webhook: BareApiServer, scheduler: Client, kubelet: Client
) -> None:
    path = make_bound_pod(without_webhook, scheduler, "n1")
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    kubelet.merge(f"{path}/status", running)
    admin = without_webhook.admin
    admin.merge(path, {"metadata": {"finalizers": ["example.org/job-tracking"]}})
    admin.merge(path, {"metadata": {"finalizers": None, "ownerReferences": None}})
    kubelet.delete(path)
    assert refused(admin.get, path).status == 404


@pytest.mark.parametrize("name", [*RESERVED_ENV, *(f"{p}X" for p in RESERVED_ENV_PREFIXES)])
def test_reserved_env_is_refused_in_pods_with_devices(
    without_webhook: BareApiServer, author: Client, name: str
) -> None:
    answer = refused(author.create, PODS, pod(OURS, env={name: "1"}))
    assert answer.status == 403
    assert (
        f"env {name} of container main is set by hamipy in containers that get a device: take it out" in answer.message
    )
    init = {
        "resources": {"limits": OURS},
        "env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    }
    assert "of container first" in refused(author.create, PODS, pod(init=init)).message


def test_env_that_looks_alike_or_has_no_device_is_free(without_webhook: BareApiServer, author: Client) -> None:
    author.create(PODS, pod(OURS, env={"MY_HAMIPY_X": "1", "CUDA_CACHE_PATH": "/tmp"}))
    author.create(PODS, pod(env={"CUDA_MPS_PIPE_DIRECTORY": "/tmp", "HAMIPY_X": "1", "NVIDIA_VISIBLE_DEVICES": "none"}))


def test_ephemeral_containers_get_no_device_by_env(
    without_webhook: BareApiServer, author: Client, scheduler: Client
) -> None:
    path = make_bound_pod(without_webhook, scheduler, "n1")

    def debug(name: str, env: JSON) -> Any:
        container = {"name": name, "image": "i", "env": [{"name": k, "value": v} for k, v in env.items()]}
        return author.request(
            "PATCH",
            f"{path}/ephemeralcontainers",
            {"spec": {"ephemeralContainers": [container]}},
            "application/strategic-merge-patch+json",
        )

    answer = refused(debug, "d1", {"NVIDIA_VISIBLE_DEVICES": "all"})
    assert answer.status == 403
    assert "env NVIDIA_VISIBLE_DEVICES of container d1" in answer.message
    debug("d2", {"PAGER": "less"})


def test_pods_with_our_names_go_through_our_scheduler(without_webhook: BareApiServer, author: Client) -> None:
    answer = refused(author.create, PODS, pod(OURS, schedulerName="default-scheduler"))
    assert answer.status == 403
    assert (
        "spec.schedulerName is default-scheduler, but pods that ask for hamipy.io resources are placed by"
        in answer.message
    )
    answer = refused(author.create, PODS, pod(OURS, nodeName="n1"))
    assert "spec.nodeName is n1, but pods that ask for hamipy.io resources must pass the scheduler" in answer.message
    init = {"resources": {"limits": OURS}}
    assert refused(author.create, PODS, pod(init=init, nodeName="n1")).status == 403
    author.create(PODS, pod(nodeName="n1"))
    author.create(PODS, pod(init=init))


def test_devices_nobody_asked_for_are_refused_outside_exempt_namespaces(
    without_webhook: BareApiServer, author: Client
) -> None:
    answer = refused(author.create, PODS, pod(env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert answer.status == 403
    assert (
        "env NVIDIA_VISIBLE_DEVICES of container main reaches for devices that the pod did not ask for"
        in answer.message
    )
    by_reference = pod()
    by_reference["spec"]["containers"][0]["env"] = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}
    ]
    assert "of container side reaches for devices" in refused(author.create, PODS, by_reference).message
    for harmless in ("none", "void", ""):
        author.create(PODS, pod(env={"NVIDIA_VISIBLE_DEVICES": harmless}))
    for namespace in ("kube-system", NAMESPACE):
        author.create(f"/api/v1/namespaces/{namespace}/pods", pod(env={"ASCEND_VISIBLE_DEVICES": "0"}))


def devices(name: str, index: int = 0) -> JSON:
    spec = {
        "families": ["hamipy.io"],
        "serving": True,
        "devices": [
            {"id": f"mock-{name}-{index}", "index": 0, "vendor": "mock", "model": "t4", "memory": 1 << 30, "slots": 10}
        ],
    }
    return {"apiVersion": "hamipy.io/v1alpha1", "kind": "NodeDevices", "metadata": {"name": name}, "spec": spec}


def test_a_daemon_writes_the_object_of_its_own_node_only(installed: BareApiServer) -> None:
    daemon_pod = {**pod(nodeName="n1"), "metadata": {"name": "hamipy-node-n1"}}
    daemon_pod["spec"]["serviceAccountName"] = "hamipy-node"
    made = installed.admin.create(f"/api/v1/namespaces/{NAMESPACE}/pods", daemon_pod)
    daemon = installed.account(NAMESPACE, "hamipy-node", made)
    apply = "?fieldManager=hamipy-node&force=true"

    def publish(client: Client, name: str, index: int = 0) -> JSON:
        return client.request("PATCH", f"{NODE_DEVICES}/{name}{apply}", devices(name, index), APPLY)

    publish(daemon, "n1")
    publish(daemon, "n1", 1)
    answer = refused(publish, daemon, "n2")
    assert answer.status == 403
    assert "hamipy on node n1 may write its own NodeDevices object only, not n2" in answer.message
    nameless = {**devices("x"), "metadata": {"generateName": "n1"}}
    assert refused(daemon.create, NODE_DEVICES, nameless).status == 403
    installed.admin.request("PATCH", f"{NODE_DEVICES}/n2{apply}", devices("n2"), APPLY)
    assert refused(publish, daemon, "n2", 1).status == 403
    assert refused(daemon.merge, f"{NODE_DEVICES}/n2", {"spec": {"serving": False}}).status == 403
    for name in ("n1", "n2"):
        assert refused(daemon.delete, f"{NODE_DEVICES}/{name}").status == 403
    unbound = installed.account(NAMESPACE, "hamipy-node")
    answer = refused(publish, unbound, "n1", 2)
    assert "this token of hamipy's node daemon is not bound to a pod on a node" in answer.message
    event = {
        "metadata": {"generateName": "e"},
        "involvedObject": {"namespace": "default"},
        "reason": "r",
        "message": "m",
    }
    daemon.create("/api/v1/namespaces/default/events", event)
    for path in ("/api/v1/secrets", "/api/v1/configmaps"):
        assert refused(daemon.get, path).status == 403
    assert (
        refused(daemon.merge, "/api/v1/nodes/n1/status", {"status": {"capacity": {"hamipy.io/memory": "1"}}}).status
        == 403
    )


NODE_STATUS = "/api/v1/nodes/n1/status"


def amounts(**names: str | None) -> JSON:
    changes = {f"hamipy.io/{k.replace('_', '-')}": v for k, v in names.items()}
    return {"status": {"capacity": changes, "allocatable": changes}}


def test_the_scheduler_publishes_its_names_in_node_status(installed: BareApiServer, scheduler: Client) -> None:
    scheduler.merge(NODE_STATUS, amounts(memory="14Gi", cores="100", memory_percentage="100"))
    scheduler.merge(NODE_STATUS, amounts(memory="28Gi", cores=None))
    capacity = installed.admin.get("/api/v1/nodes/n1")["status"]["capacity"]
    assert capacity == {
        "cpu": "4",
        "memory": "8Gi",
        "pods": "110",
        "hamipy.io/device": "20",
        "hamipy.io/memory": "28Gi",
        "hamipy.io/memory-percentage": "100",
    }


@pytest.mark.parametrize(
    "patch",
    [
        {"status": {"capacity": {"cpu": "400"}}},
        {"status": {"allocatable": {"cpu": None}}},
        {"status": {"capacity": {"nvidia.com/gpu": "8"}}},
        {"status": {"capacity": {"hamipy.io/device": "40"}}},
        {"status": {"capacity": {"hamipy.io/device": None}}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.66"}]}},
        {"status": {"images": []}},
        {"status": {"nodeInfo": {"kernelVersion": "9"}}},
        {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}},
        {"status": {"volumesInUse": ["v"]}},
        {"metadata": {"labels": {"zone": "b"}}},
        {"metadata": {"labels": {"zone": None}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["example.org/f"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "u"}]}},
    ],
)
def test_the_scheduler_changes_nothing_else_of_a_node(installed: BareApiServer, scheduler: Client, patch: JSON) -> None:
    answer = refused(scheduler.merge, NODE_STATUS, patch)
    assert answer.status == 403
    assert "hamipy's scheduler may" in answer.message
    assert refused(scheduler.merge, "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}).status == 403


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"app": "stolen"}}},
        {"metadata": {"annotations": {"note": "x"}}},
        {"metadata": {"finalizers": ["example.org/f"]}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ],
)
def test_the_scheduler_changes_nothing_but_its_annotations_of_a_pod(
    without_webhook: BareApiServer, author: Client, scheduler: Client, patch: JSON
) -> None:
    made = author.create(PODS, pod())
    answer = refused(scheduler.merge, f"{PODS}/{made['metadata']['name']}", patch)
    assert answer.status == 403
    assert "hamipy's scheduler may change" in answer.message


def test_the_scheduler_writes_one_secret_only(installed: BareApiServer, scheduler: Client) -> None:
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"

    def secret(name: str, kind: str = "kubernetes.io/tls") -> JSON:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": kind,
            "metadata": {"name": name},
            "data": {"tls.crt": "eA==", "tls.key": "eA=="},
        }

    assert refused(scheduler.create, secrets, secret("other")).status == 403
    token = secret("hamipy-webhook-tls", "kubernetes.io/service-account-token")
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "hamipy-node"}
    assert refused(scheduler.create, secrets, token).status == 403
    assert refused(scheduler.create, "/api/v1/namespaces/default/secrets", secret("hamipy-webhook-tls")).status == 403
    made = scheduler.create(secrets, secret("hamipy-webhook-tls"))
    made["data"]["ca.crt"] = "eA=="
    scheduler.request("PUT", f"{secrets}/hamipy-webhook-tls", made)
    assert refused(scheduler.get, secrets).status == 403


def test_the_scheduler_has_what_its_work_needs(installed: BareApiServer, scheduler: Client) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "hamipy-scheduler"},
        "spec": {"holderIdentity": "p_1"},
    }
    made = scheduler.create(leases, lease)
    scheduler.request("PUT", f"{leases}/hamipy-scheduler", made)
    for path in (
        NODE_DEVICES,
        "/api/v1/nodes",
        "/api/v1/pods?fieldSelector=spec.schedulerName%3Dhamipy-scheduler",
        f"{leases}?fieldSelector=metadata.name%3Dhamipy-scheduler",
        # kube-scheduler beside it
        "/api/v1/persistentvolumes",
        "/apis/storage.k8s.io/v1/storageclasses",
        "/apis/apps/v1/replicasets",
        "/apis/policy/v1/poddisruptionbudgets",
    ):
        scheduler.get(path)
    for path in ("/api/v1/secrets", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", leases):
        assert refused(scheduler.get, path).status == 403


def test_kube_scheduler_takes_its_configuration_and_its_rights_suffice(
    installed: BareApiServer, helm: Helm, tmp_path: Path
) -> None:
    """The real one leads under the rendered configuration, as the chart's account; nothing is forbidden to it."""
    rendered = Rendered(helm.template())
    configuration = yaml.safe_load(rendered("ConfigMap", "hamipy-kube-scheduler")["data"]["kube-scheduler.yaml"])
    kubeconfig, file = tmp_path / "kubeconfig", tmp_path / "kube-scheduler.yaml"
    kubeconfig.write_text(yaml.safe_dump(installed.account(NAMESPACE, "hamipy-scheduler").kubeconfig()))
    configuration["clientConnection"]["kubeconfig"] = str(kubeconfig)
    file.write_text(yaml.safe_dump(configuration))
    delegation = [f"--{who}-kubeconfig={kubeconfig}" for who in ("authentication", "authorization")]
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/hamipy-scheduler"

    def leads() -> bool:
        with contextlib.suppress(Refused):
            spec = installed.admin.get(lease)["spec"]
            return (
                str(spec["holderIdentity"]).startswith(f"{socket.gethostname()}_") and spec["leaseDurationSeconds"] == 3
            )
        return False

    with installed.running("kube-scheduler", f"--config={file}", "--v=2", "--secure-port=0", *delegation) as log:
        wait_until(leads, 30, "kube-scheduler to lead")
    said = log.read_text()
    assert "forbidden" not in said.lower(), said
    assert "http://127.0.0.1:8888" in said


async def test_the_clean_up_may_do_its_work(installed: BareApiServer, helm: Helm) -> None:
    """The hook's account and rights are not part of the release, so they are made here as helm makes them."""
    rendered = helm.template()
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    paths = {
        "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        **{kind: f"{rbac}/{kind.lower()}s" for kind in ("ClusterRole", "ClusterRoleBinding")},
        **{kind: f"{rbac}/namespaces/{NAMESPACE}/{kind.lower()}s" for kind in ("Role", "RoleBinding")},
    }
    for document in rendered:
        if "uninstall" in document["metadata"]["name"] and document["kind"] != "Job":
            installed.admin.create(paths[document["kind"]], document)
    cleaner = installed.account(NAMESPACE, "hamipy-uninstall")
    installed.admin.merge(NODE_STATUS, amounts(memory="14Gi", cores="100"))
    installed.admin.request("PATCH", f"{NODE_DEVICES}/n2?fieldManager=t&force=true", devices("n2"), APPLY)
    assert refused(cleaner.merge, NODE_STATUS, {"status": {"capacity": {"cpu": "400"}}}).status == 403
    for kind in ("daemonsets", "deployments"):
        assert refused(cleaner.delete, f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}/other").status == 403
    # without a kubelet the daemon's pod of an earlier test never ends
    installed.admin.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods", {"gracePeriodSeconds": 0})
    report = await run(UninstallSettings(namespace=NAMESPACE), config=cleaner.config())
    assert report.stopped == ["DaemonSet hamipy-node", "Deployment hamipy-scheduler"]
    assert (report.nodes, sorted(report.objects), report.secret) == (["n1"], ["n1", "n2"], True)
    capacity = installed.admin.get("/api/v1/nodes/n1")["status"]["capacity"]
    assert [k for k in capacity if k.startswith("hamipy.io/")] == ["hamipy.io/device"]
    assert not installed.admin.get(NODE_DEVICES)["items"]


def test_uninstalling_leaves_the_definition_and_nothing_else(installed: BareApiServer, helm: Helm) -> None:
    """Without the hook, which needs nodes to run on; installing again finds the definition and goes on."""
    flags = ["--namespace", NAMESPACE]
    helm("uninstall", "hamipy", "--no-hooks", *flags, kubeconfig=installed.kubeconfig)
    names = {p["metadata"]["name"] for p in installed.admin.get(POLICIES)["items"]}
    assert not names
    installed.admin.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodedevices.hamipy.io")
    helm("install", "hamipy", str(CHART), *flags, values=MOCK, kubeconfig=installed.kubeconfig)
