"""A small synchronous client of the API server for tests: an observer that shares no code with what it observes."""

import base64
import http.client
import json
import ssl
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

JSON = dict[str, Any]
_GROUPS = {
    "apps/v1": ("deployments", "daemonsets", "replicasets", "statefulsets"),
    "batch/v1": ("jobs",),
    "policy/v1": ("poddisruptionbudgets",),
    "coordination.k8s.io/v1": ("leases",),
    "scheduling.k8s.io/v1": ("priorityclasses",),
    "rbac.authorization.k8s.io/v1": ("clusterroles", "clusterrolebindings", "roles", "rolebindings"),
    "apiextensions.k8s.io/v1": ("customresourcedefinitions",),
    "admissionregistration.k8s.io/v1": (
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ),
    "hamipy.io/v1alpha1": ("nodedevices",),
}
_GROUP = {resource: group for group, resources in _GROUPS.items() for resource in resources}
_KINDS = {
    "Pod": "pods", "Namespace": "namespaces", "Service": "services", "ConfigMap": "configmaps", "Secret": "secrets",
    "Node": "nodes", "Deployment": "deployments", "StatefulSet": "statefulsets", "Job": "jobs",
    "DaemonSet": "daemonsets",
    "PodDisruptionBudget": "poddisruptionbudgets", "PriorityClass": "priorityclasses", "NodeDevices": "nodedevices",
    "ResourceQuota": "resourcequotas", "ClusterRoleBinding": "clusterrolebindings", "ClusterRole": "clusterroles",
}  # fmt: skip


class ApiError(Exception):
    """The API server answered 4xx or 5xx."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status, self.reason, self.message = status, reason, message
        super().__init__(f"{status} {reason}: {message}")


def path(resource: str, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    """URL path of a resource by its plural name: `path("pods", "default", "a", "log")`."""
    group = _GROUP.get(resource)
    steps = ["apis", group] if group else ["api/v1"]
    steps += ["namespaces", namespace] if namespace else []
    return "/" + "/".join(filter(None, [*steps, resource, name, sub]))


class Api:
    """Requests with the identity of a kubeconfig; usable from several threads, one connection each.

    Raises, from every method:
        ApiError: an answer of 400 or more.
        OSError, http.client.HTTPException: no answer.
    """

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        url = urlsplit(cluster["server"])
        self._host, self._port = url.hostname or "", url.port or 443
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=ca)
        with tempfile.NamedTemporaryFile() as pair:  # ssl reads client certificates from files only
            pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
            pair.flush()
            self._tls.load_cert_chain(pair.name)
        self._local = threading.local()
        self._opened: list[http.client.HTTPSConnection] = []

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=timeout)
        self._opened.append(connection)
        return connection

    def close(self) -> None:
        """Close the connections of all threads; a later request opens a new one."""
        self._local = threading.local()
        while self._opened:
            self._opened.pop().close()

    def _forget(self, connection: http.client.HTTPSConnection) -> None:
        connection.close()
        self._local.connection = None
        self._opened.remove(connection)

    def request(
        self,
        method: str,
        where: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float = 30,
    ) -> bytes:
        """One request; a GET is sent again once when the kept connection turns out to be dead."""
        url = where + ("?" + urlencode(params) if params else "")
        data = None if body is None else json.dumps(body).encode()
        while True:
            kept: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
            connection = kept or self._connect(timeout)
            self._local.connection = connection
            try:
                connection.request(method, url, data, {"Content-Type": content_type, "Accept": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                self._forget(connection)
                if kept and method == "GET":
                    continue
                raise
            if answer.status >= 400:
                raise _error(answer.status, content)
            return content

    def get(self, resource: str, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> JSON:
        """One object."""
        return self._json(self.request("GET", path(resource, namespace, name, sub)))

    def find(self, resource: str, namespace: str | None, name: str) -> JSON | None:
        """One object, or None when there is none of that name."""
        try:
            return self.get(resource, namespace, name)
        except ApiError as e:
            if e.status == 404:
                return None
            raise

    def list(self, resource: str, namespace: str | None = None, **selectors: str) -> list[JSON]:
        """The objects of one namespace or of all; `labelSelector=…`, `fieldSelector=…`."""
        items = self._json(self.request("GET", path(resource, namespace), params=selectors))["items"]
        return list(items or [])

    def create(self, item: JSON, *, namespace: str | None = None) -> JSON:
        """Create an object; its kind says where."""
        meta = item.get("metadata", {})
        return self._json(self.request("POST", path(_KINDS[item["kind"]], namespace or meta.get("namespace")), item))

    def patch(self, resource: str, namespace: str | None, name: str, patch: JSON, sub: str | None = None) -> JSON:
        """JSON merge patch."""
        where = path(resource, namespace, name, sub)
        return self._json(self.request("PATCH", where, patch, content_type="application/merge-patch+json"))

    def delete(self, resource: str, namespace: str | None, name: str, grace: int | None = None) -> None:
        """Delete an object; one that is already gone is fine."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        try:
            self.request(
                "DELETE",
                path(resource, namespace, name),
                body | ({} if grace is None else {"gracePeriodSeconds": grace}),
            )
        except ApiError as e:
            if e.status != 404:
                raise

    def watch(
        self, resource: str, namespace: str | None, resource_version: str, timeout: float = 300
    ) -> Iterator[JSON]:
        """Events `{type, object}` from a resource version on, until the server ends the watch."""
        params = {"watch": "1", "resourceVersion": resource_version, "timeoutSeconds": str(int(timeout))}
        connection = self._connect(timeout + 10)
        try:
            connection.request("GET", path(resource, namespace) + "?" + urlencode(params))
            answer = connection.getresponse()
            if answer.status >= 400:
                raise _error(answer.status, answer.read())
            while line := answer.readline():
                yield json.loads(line)
        finally:
            connection.close()
            self._opened.remove(connection)

    @staticmethod
    def _json(content: bytes) -> JSON:
        value: JSON = json.loads(content)
        return value


def _error(status: int, content: bytes) -> ApiError:
    try:
        told = json.loads(content)
        return ApiError(status, told.get("reason", ""), told.get("message", ""))
    except ValueError:
        return ApiError(status, "", content.decode(errors="replace")[:500])
