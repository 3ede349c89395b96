"""Paths of the API: which collection, namespace, object and subresource a URL means."""

from typing import NamedTuple

from hamipy.testing._refusal import Refused

KINDS = {
    "/api/v1/pods": "Pod",
    "/api/v1/nodes": "Node",
    "/api/v1/namespaces": "Namespace",
    "/api/v1/events": "Event",
    "/api/v1/configmaps": "ConfigMap",
    "/api/v1/secrets": "Secret",
    "/api/v1/services": "Service",
    "/api/v1/serviceaccounts": "ServiceAccount",
    "/apis/apps/v1/deployments": "Deployment",
    "/apis/apps/v1/replicasets": "ReplicaSet",
    "/apis/apps/v1/statefulsets": "StatefulSet",
    "/apis/apps/v1/daemonsets": "DaemonSet",
    "/apis/policy/v1/poddisruptionbudgets": "PodDisruptionBudget",
    "/apis/coordination.k8s.io/v1/leases": "Lease",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": "CustomResourceDefinition",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": "ValidatingWebhookConfiguration",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies": "ValidatingAdmissionPolicy",
    "/apis/scheduling.k8s.io/v1/priorityclasses": "PriorityClass",
}
"""Built-in resources served; others come with their CustomResourceDefinition."""

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class Target(NamedTuple):
    """What a path means; `name` and `subresource` are empty for a collection."""

    collection: str
    namespace: str
    name: str
    subresource: str


def parse_path(path: str) -> Target:
    """Read a path such as `/api/v1/namespaces/a/pods/b/binding`.

    Raises:
        Refused: 404, when it is no path of the API.
    """
    parts = path.strip("/").split("/")
    head = 2 if parts[0] == "api" else 3
    if parts[0] not in {"api", "apis"} or len(parts) <= head:
        raise Refused(404, "the server could not find the requested resource")
    base, rest = "/" + "/".join(parts[:head]), parts[head:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3:
        raise Refused(404, "the server could not find the requested resource")
    resource, name, subresource = (*rest, "", "")[:3]
    return Target(f"{base}/{resource}", namespace, name, subresource)
