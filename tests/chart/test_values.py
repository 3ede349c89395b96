"""Wrong values are refused, with a sentence that names the value and what would be right."""

from collections.abc import Callable

import pytest

from tests.chart.bare import JSON
from tests.chart.conftest import CHART, Helm, HelmError, Rendered

Render = Callable[..., Rendered]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"replicas": 0}, "at '/replicas': minimum: got 0, want 1"),
        ({"replicas": "two"}, "at '/replicas': got string, want integer"),
        ({"replica": 2}, "additional properties 'replica' not allowed"),
        ({"scheduler": {"lease": {}}}, "at '/scheduler': additional properties 'lease' not allowed"),
        ({"policies": {"node": "tight"}}, "at '/policies/node': value must be one of 'binpack', 'spread'"),
        ({"logLevel": "loud"}, "at '/logLevel': value must be one of 'debug', 'info', 'warning', 'error'"),
        ({"lease": {"duration": 0}}, "at '/lease/duration': exclusiveMinimum: got 0, want 0"),
        ({"kubeScheduler": {"percentageOfNodesToScore": 101}}, "percentageOfNodesToScore': maximum: got 101, want 100"),
        ({"node": {"maxUnavailable": "0%"}}, "at '/node/maxUnavailable'"),
        ({"node": {"paths": {"state": "var/lib/hamipy"}}}, "at '/node/paths/state': 'var/lib/hamipy' does not match"),
        ({"scheduler": {"extraArgs": ["log"]}}, "at '/scheduler/extraArgs/0': 'log' does not match pattern '^-'"),
        ({"webhook": {"timeoutSeconds": 31}}, "at '/webhook/timeoutSeconds': maximum: got 31, want 30"),
        ({"webhook": {"certManager": {"issuerRef": {"secret": "x"}}}}, "additional properties 'secret' not allowed"),
        (
            {"lease": {"renewDeadline": 3}},
            "lease.renewDeadline is 3s: it must be shorter than lease.duration (3s), for the time between them keeps "
            "two schedulers from binding at once",
        ),
        (
            {"lease": {"retryPeriod": 2}},
            "lease.retryPeriod is 2s: 1.2 times it must be less than lease.renewDeadline (2s)",
        ),
        (
            {"vendors": {"mock": {"enabled": False}}},
            "vendors: none is enabled, so there is nothing to share; set vendors.mock.enabled=true to try hamipy "
            "without hardware, or name the vendor packages of your image in vendors.others",
        ),
        (
            {"image": {"repository": ""}},
            "image.repository is empty: make the image with `make image`, push it to a registry that the nodes reach, "
            "and set image.repository (and image.tag) to it",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, values: JSON, sentence: str) -> None:
    with pytest.raises(HelmError) as refusal:
        helm.template(values)
    assert sentence in str(refusal.value)


def test_a_cluster_older_than_the_chart_needs_is_refused(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"requires kubeVersion: >=1.34.0-0"):
        helm.template(version="v1.33.9")


def test_lint_has_nothing_to_say(helm: Helm) -> None:
    out = helm(
        "lint", str(CHART), "--strict", "--quiet", "--set", "vendors.mock.enabled=true", "--set", "image.repository=x"
    )
    assert "WARNING" not in out
    assert "ERROR" not in out


def test_the_image_can_be_given_by_parts_and_the_scheduler_image_follows_the_cluster(render: Render) -> None:
    chosen = render(
        {
            "image": {"repository": "local/hamipy", "tag": "dev"},
            "kubeScheduler": {"image": {"repository": "local/kube-scheduler"}},
        },
        version="v1.34.4",
    )
    assert chosen.container("Deployment", "hamipy-scheduler", "scheduler")["image"] == "local/hamipy:dev"
    assert chosen.container("DaemonSet", "hamipy-node", "node")["image"] == "local/hamipy:dev"
    kube_scheduler = chosen.container("Deployment", "hamipy-scheduler", "kube-scheduler")
    assert kube_scheduler["image"] == "local/kube-scheduler:v1.34.4"


@pytest.mark.parametrize("version", ["v1.35.2", "v1.35.2-eks-1a2b3c", "v1.35.2-gke.1043000", "v1.35.2+k3s1"])
def test_the_scheduler_image_is_upstreams_tag_of_the_clusters_version(render: Render, version: str) -> None:
    image = render(version=version).container("Deployment", "hamipy-scheduler", "kube-scheduler")["image"]
    assert image == "registry.k8s.io/kube-scheduler:v1.35.2"


def test_a_scheduler_tag_of_ones_own_wins(render: Render) -> None:
    values = {"kubeScheduler": {"image": {"tag": "v9"}}}
    image = render(values).container("Deployment", "hamipy-scheduler", "kube-scheduler")["image"]
    assert image == "registry.k8s.io/kube-scheduler:v9"


def test_only_enabled_vendors_are_looked_for(render: Render) -> None:
    def arguments(vendors: JSON) -> list[str]:
        args: list[str] = render({"vendors": vendors}).container("DaemonSet", "hamipy-node", "node")["args"]
        return [a for a in args if "vendors" in a or "mock" in a]

    assert arguments({"mock": {"enabled": True, "profile": "a100x8"}}) == ["--vendors=mock", "--mock-profile=a100x8"]
    assert arguments({"mock": {"enabled": False}, "others": ["acme"]}) == ["--vendors=acme"]
    assert arguments({"mock": {"enabled": True}, "others": ["acme"]}) == ["--vendors=acme,mock", "--mock-profile=t4x1"]


def test_cert_manager_takes_over_the_certificates(render: Render) -> None:
    with_it = render({"webhook": {"certManager": {"enabled": True}}})
    webhook = with_it("MutatingWebhookConfiguration", "hamipy")
    assert webhook["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "hamipy-system/hamipy-webhook"}
    certificate = with_it("Certificate", "hamipy-webhook")["spec"]
    assert certificate["secretName"] == "hamipy-webhook-tls"
    assert "hamipy-webhook.hamipy-system.svc" in certificate["dnsNames"]
    assert certificate["issuerRef"]["name"] == with_it("Issuer", "hamipy-webhook")["metadata"]["name"]
    arguments = with_it.container("Deployment", "hamipy-scheduler", "scheduler")["args"]
    assert "--cert-dir=/etc/hamipy/tls" in arguments
    assert not [a for a in arguments if a.startswith("--cert-secret")]
    assert not [r for r in with_it("Role", "hamipy-scheduler")["rules"] if "secrets" in r["resources"]]
    assert not with_it.has("ValidatingAdmissionPolicy", "hamipy-scheduler-secrets")


def test_an_issuer_of_ones_own_is_used(render: Render) -> None:
    issuer = {"name": "corporate", "kind": "ClusterIssuer"}
    with_it = render({"webhook": {"certManager": {"enabled": True, "issuerRef": issuer}}})
    assert with_it("Certificate", "hamipy-webhook")["spec"]["issuerRef"] == issuer
    assert not with_it.has("Issuer", "hamipy-webhook")


def test_names_with_a_namespace_follow_the_release(render: Render) -> None:
    elsewhere = render(namespace="accelerators")
    assert {d["metadata"]["namespace"] for d in elsewhere.documents if "namespace" in d["metadata"]} == {
        "accelerators",
        "kube-system",
    }
    text = str(elsewhere.documents)
    assert "hamipy-system" not in text


def test_what_is_switched_off_is_not_there(render: Render) -> None:
    without = render(
        {"podDisruptionBudget": {"enabled": False}, "uninstall": {"cleanUp": False}, "crd": {"keep": False}}
    )
    assert not without.has("PodDisruptionBudget", "hamipy-scheduler")
    assert not without.has("Job", "hamipy-uninstall")
    assert "annotations" not in without("CustomResourceDefinition", "nodedevices.hamipy.io")["metadata"]


def test_scheduling_wishes_reach_the_pods(render: Render) -> None:
    wishes: JSON = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
    }
    chosen = render({"scheduler": wishes, "node": wishes, "imagePullSecrets": [{"name": "pull"}]})
    for kind, name in (("Deployment", "hamipy-scheduler"), ("DaemonSet", "hamipy-node")):
        template = chosen(kind, name)["spec"]["template"]
        assert template["metadata"]["labels"]["team"] == "a"
        assert template["metadata"]["annotations"]["note"] == "b"
        assert {k: template["spec"][k] for k in ("nodeSelector", "tolerations", "affinity")} == {
            k: wishes[k] for k in ("nodeSelector", "tolerations", "affinity")
        }
        assert template["spec"]["imagePullSecrets"] == [{"name": "pull"}]
