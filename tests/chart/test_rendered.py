"""What the rendered chart must say, and that it says the same as hamipy's own code."""

import re
from collections.abc import Callable

import msgspec
import pytest
import yaml

from hamipy.core import names
from hamipy.core.family import NEUTRAL, Families, Meaning
from hamipy.node.settings import NodeSettings
from hamipy.scheduler.settings import SchedulerSettings, UninstallSettings
from hamipy.scheduler.webhookconfig import CONDITION, WEBHOOK, match_condition
from tests.chart.bare import JSON
from tests.chart.conftest import CHART, ROOT, Rendered

Render = Callable[..., Rendered]


def flags_of(container: JSON) -> dict[str, str]:
    return dict(a.removeprefix("--").split("=", 1) for a in container["args"] if a.startswith("--"))


def scheduler_configuration(rendered: Rendered) -> JSON:
    loaded: JSON = yaml.safe_load(rendered("ConfigMap", "hamipy-kube-scheduler")["data"]["kube-scheduler.yaml"])
    return loaded


def test_kube_scheduler_shows_the_extender_every_node_and_every_step(rendered: Rendered) -> None:
    configuration = scheduler_configuration(rendered)
    assert configuration["percentageOfNodesToScore"] == 100
    assert [p["schedulerName"] for p in configuration["profiles"]] == [names.SCHEDULER_NAME]
    (extender,) = configuration["extenders"]
    assert extender == {
        "urlPrefix": "http://127.0.0.1:8888",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "weight": 1,
        "httpTimeout": "5s",
        "nodeCacheCapable": True,
        "ignorable": False,
    }


def test_a_take_over_fits_into_five_seconds(rendered: Rendered) -> None:
    election = scheduler_configuration(rendered)["leaderElection"]
    assert election == {
        "leaderElect": True,
        "resourceLock": "leases",
        "resourceName": "hamipy-scheduler",
        "resourceNamespace": "hamipy-system",
        "leaseDuration": "3s",
        "renewDeadline": "2s",
        "retryPeriod": "0.3s",
    }


def test_the_extender_is_told_the_lease_that_kube_scheduler_holds(render: Render) -> None:
    chosen = render({"lease": {"duration": 15, "renewDeadline": 10, "retryPeriod": 2}})
    election = scheduler_configuration(chosen)["leaderElection"]
    flags = flags_of(chosen.container("Deployment", "hamipy-scheduler", "scheduler"))
    assert flags["lease-name"] == election["resourceName"]
    assert f"{flags['lease-duration']}s" == election["leaseDuration"] == "15s"
    assert f"{flags['renew-deadline']}s" == election["renewDeadline"] == "10s"


def test_every_flag_is_one_that_hamipy_has(rendered: Rendered) -> None:
    for kind, name, container, settings in (
        ("Deployment", "hamipy-scheduler", "scheduler", SchedulerSettings),
        ("DaemonSet", "hamipy-node", "node", NodeSettings),
    ):
        spec = rendered.container(kind, name, container)
        fields = {f.name.replace("_", "-") for f in msgspec.structs.fields(settings)}
        assert set(flags_of(spec)) <= fields
        known = {f"HAMIPY_{f.upper().replace('-', '_')}" for f in fields} | {"HAMIPY_LOG_LEVEL"}
        assert {e["name"] for e in spec["env"]} <= known
        assert spec["args"][0] == container


def test_service_links_cannot_become_flags(rendered: Rendered) -> None:
    # the Service hamipy-webhook would put HAMIPY_WEBHOOK_PORT=tcp://... into the environment
    for kind, name in (("Deployment", "hamipy-scheduler"), ("DaemonSet", "hamipy-node"), ("Job", "hamipy-uninstall")):
        assert rendered(kind, name)["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_a_new_scheduler_answers_before_an_old_one_goes(rendered: Rendered) -> None:
    deployment = rendered("Deployment", "hamipy-scheduler")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    container = rendered.container("Deployment", "hamipy-scheduler", "scheduler")
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert (
        pause + SchedulerSettings(pod_name="p").stop_limit
        < deployment["template"]["spec"]["terminationGracePeriodSeconds"]
    )
    assert rendered("PodDisruptionBudget", "hamipy-scheduler")["spec"]["maxUnavailable"] == 1


def test_two_daemons_never_run_on_one_node(rendered: Rendered) -> None:
    daemons = rendered("DaemonSet", "hamipy-node")["spec"]
    assert daemons["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0
    drain = NodeSettings(node_name="n").drain_limit
    assert drain < daemons["template"]["spec"]["terminationGracePeriodSeconds"]


def test_the_daemon_sees_what_it_needs_of_the_host_and_no_more(rendered: Rendered) -> None:
    spec = rendered("DaemonSet", "hamipy-node")["spec"]["template"]["spec"]
    paths = {v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    assert paths == {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/var/run/cdi",
        "/var/lib/hamipy",
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    (container,) = spec["containers"]
    # CDI specs name files of the state directory, so it lies at the same path inside and outside
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts["state"] == flags_of(container)["state-dir"] == "/var/lib/hamipy"
    assert "privileged" not in container["securityContext"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_only_the_daemon_runs_as_root(rendered: Rendered) -> None:
    for kind, name in (("Deployment", "hamipy-scheduler"), ("Job", "hamipy-uninstall")):
        spec = rendered(kind, name)["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def rights(role: JSON) -> set[tuple[str, str, str]]:
    """(group/resource, name or *, verb) of every right."""
    return {
        (f"{group}/{resource}", name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", ["*"])
        for verb in rule["verbs"]
    }


def grants(*lines: str) -> set[tuple[str, str, str]]:
    """`group/resource[=name]: verb verb` as `rights` gives it."""
    found = set()
    for line in lines:
        what, _, verbs = line.partition(": ")
        resource, _, name = what.partition("=")
        found |= {(resource, name or "*", verb) for verb in verbs.split()}
    return found


def test_the_node_daemon_has_exactly_these_rights(rendered: Rendered) -> None:
    assert rights(rendered("ClusterRole", "hamipy-node")) == grants(
        "hamipy.io/nodedevices: get list watch create patch",
        "/nodes: get list watch",
        "/pods: get list watch",
        "/events: create",
    )
    assert not rendered.has("Role", "hamipy-node")


def test_the_scheduler_has_exactly_these_rights(rendered: Rendered) -> None:
    assert rights(rendered("ClusterRole", "hamipy-scheduler")) == grants(
        "hamipy.io/nodedevices: get list watch",
        "/nodes: get list watch",
        "/nodes/status: patch",
        "/pods: get list watch patch",
        "/pods/binding: create",
        "/events: create",
        "admissionregistration.k8s.io/mutatingwebhookconfigurations=hamipy: get patch",
    )
    assert rights(rendered("Role", "hamipy-scheduler")) == grants(
        "coordination.k8s.io/leases: create",
        "coordination.k8s.io/leases=hamipy-scheduler: get list watch update",
        "/secrets: create",
        "/secrets=hamipy-webhook-tls: get update",
    )
    bound = {
        d["roleRef"]["name"]
        for d in rendered.documents
        if d["kind"].endswith("RoleBinding") and d["subjects"][0]["name"] == "hamipy-scheduler"
    }
    assert bound == {
        "hamipy-scheduler",
        "system:kube-scheduler",
        "system:volume-scheduler",
        "extension-apiserver-authentication-reader",
    }


def test_the_clean_up_has_exactly_these_rights_and_goes_away_itself(rendered: Rendered) -> None:
    assert rights(rendered("ClusterRole", "hamipy-uninstall")) == grants(
        "hamipy.io/nodedevices: list delete",
        "/nodes: list",
        "/nodes/status: patch",
    )
    assert rights(rendered("Role", "hamipy-uninstall")) == grants(
        "apps/daemonsets=hamipy-node: delete",
        "apps/deployments=hamipy-scheduler: delete",
        "/pods: list",
        "/secrets=hamipy-webhook-tls: delete",
        "coordination.k8s.io/leases=hamipy-scheduler: delete",
    )
    settings = UninstallSettings()
    assert (settings.daemonset, settings.deployment) == ("hamipy-node", "hamipy-scheduler")
    assert (settings.cert_secret, settings.lease_name) == ("hamipy-webhook-tls", "hamipy-scheduler")
    assert settings.stop_limit < rendered("Job", "hamipy-uninstall")["spec"]["activeDeadlineSeconds"]
    for document in rendered.documents:
        annotations = document["metadata"].get("annotations", {})
        if "uninstall" in document["metadata"]["name"]:
            assert annotations["helm.sh/hook"] == "pre-delete"
            assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


def test_the_webhook_is_met_by_our_pods_only_and_its_certificate_survives_upgrades(rendered: Rendered) -> None:
    (webhook,) = rendered("MutatingWebhookConfiguration", "hamipy")["webhooks"]
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    assert webhook["name"] == WEBHOOK
    assert webhook["matchConditions"] == [{"name": CONDITION, "expression": match_condition(Families())}]
    assert "caBundle" not in webhook["clientConfig"]
    assert webhook["rules"] == [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "Namespaced",
        }
    ]
    service = rendered("Service", "hamipy-webhook")["spec"]
    flags = flags_of(rendered.container("Deployment", "hamipy-scheduler", "scheduler"))
    assert webhook["clientConfig"]["service"] == {
        "name": flags["webhook-service"],
        "namespace": "hamipy-system",
        "path": "/mutate",
        "port": service["ports"][0]["port"],
    }
    assert flags["webhook-configuration"] == "hamipy"
    assert flags["cert-secret"] == "hamipy-webhook-tls"


def test_the_policies_are_there_and_deny(render: Render) -> None:
    chosen = render({"admission": {"refuseUnrequested": {"enabled": True}}})
    policies = {d["metadata"]["name"]: d for d in chosen.documents if d["kind"] == "ValidatingAdmissionPolicy"}
    assert set(policies) == {
        "hamipy-pods",
        "hamipy-bindings",
        "hamipy-node",
        "hamipy-scheduler-nodes",
        "hamipy-scheduler-pods",
        "hamipy-scheduler-secrets",
        "hamipy-unrequested-devices",
    }
    for name, policy in policies.items():
        assert policy["spec"]["failurePolicy"] == "Fail"
        binding = chosen("ValidatingAdmissionPolicyBinding", name)["spec"]
        assert binding["policyName"] == name
        assert binding["validationActions"] == ["Deny"]


def test_the_policies_reserve_what_hamipy_reserves(rendered: Rendered) -> None:
    policy = rendered("ValidatingAdmissionPolicy", "hamipy-pods")["spec"]
    variables = {v["name"]: v["expression"] for v in policy["variables"]}
    quoted = re.compile(r"'([^']*)'")
    assert set(quoted.findall(variables["changed"])) == set(names.RESERVED_ANNOTATIONS)
    env = {q for q in quoted.findall(variables["reservedEnv"]) if q.isupper()}
    assert env == {*names.RESERVED_ENV, *names.RESERVED_ENV_PREFIXES}
    assert f"== '{names.SCHEDULER_NAME}'" in str(policy["validations"])
    assert f"startsWith('{names.DOMAIN}/')" in variables["mentions"]


def test_unrequested_devices_are_refused_only_where_it_is_wished(render: Render, rendered: Rendered) -> None:
    assert not rendered.has("ValidatingAdmissionPolicy", "hamipy-unrequested-devices")
    wished = {"enabled": True, "exemptNamespaces": ["kube-system", "gpu-operator"]}
    chosen = render({"admission": {"refuseUnrequested": wished}})
    binding = chosen("ValidatingAdmissionPolicyBinding", "hamipy-unrequested-devices")["spec"]
    (exempt,) = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert exempt["operator"] == "NotIn"
    assert exempt["values"] == ["kube-system", "gpu-operator", "hamipy-system"]


def test_the_definition_of_nodedevices_is_hamipys_own(rendered: Rendered) -> None:
    shipped, own = CHART / "files" / "nodedevices.yaml", ROOT / "hamipy" / "kube" / "crd.yaml"
    assert shipped.read_bytes() == own.read_bytes()
    definition = rendered("CustomResourceDefinition", "nodedevices.hamipy.io")
    assert definition["spec"] == yaml.safe_load(own.read_text())["spec"]
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize("name", ["README.md"])
def test_the_chart_explains_every_value(name: str) -> None:
    text = (CHART / name).read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    missing = [key for key in values if f"`{key}" not in text]
    assert not missing


def test_kube_scheduler_leaves_the_published_names_to_the_ledger_and_keeps_the_kubelet_s_own(
    rendered: Rendered,
) -> None:
    (profile,) = scheduler_configuration(rendered)["profiles"]
    (fit,) = [c["args"] for c in profile["pluginConfig"] if c["name"] == "NodeResourcesFit"]
    published = {r.name for r in NEUTRAL.resources if r.meaning is not Meaning.COUNT}
    assert set(fit["ignoredResources"]) == published
    assert names.KUBELET_RESOURCE not in published
