"""A bare API server (etcd and kube-apiserver, no controllers, no nodes) to hold the chart to what it really does."""

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hamipy.kube.config import ClusterConfig
from tests.cluster.binaries import Binaries
from tests.cluster.daemons import wait_until
from tests.cluster.pki import Authority, write_key

JSON = dict[str, Any]
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"


class Refused(Exception):
    """The API server answered 4xx or 5xx."""

    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message
        super().__init__(f"{status}: {message}")


class Client:
    """Requests to the API server as one user, by certificate or by token."""

    def __init__(self, server: str, authority: Path, context: ssl.SSLContext, token: str | None = None) -> None:
        self._server, self._authority, self._context, self._token = server, authority, context, token

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> JSON:
        """One request; raises `Refused` with the server's message."""
        headers = {"Content-Type": content_type}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = http.client.HTTPSConnection(urlsplit(self._server).netloc, context=self._context, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status >= 400:
            try:
                message = json.loads(content)["message"]
            except (ValueError, KeyError):
                message = content.decode(errors="replace")
            raise Refused(answer.status, message)
        value: JSON = json.loads(content) if content.startswith(b"{") else {"text": content.decode()}
        return value

    def config(self) -> ClusterConfig:
        """The same identity for hamipy's own client."""
        return ClusterConfig(server=self._server, ca_file=str(self._authority), token=self._token)

    def kubeconfig(self) -> JSON:
        """The same identity for Kubernetes' components."""
        cluster = {"server": self._server, "certificate-authority": str(self._authority)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self._token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }

    def get(self, path: str) -> JSON:
        """Read an object."""
        return self.request("GET", path)

    def create(self, path: str, body: JSON) -> JSON:
        """Create an object in a collection."""
        return self.request("POST", path, body)

    def merge(self, path: str, body: JSON) -> JSON:
        """JSON merge patch."""
        return self.request("PATCH", path, body, MERGE)

    def delete(self, path: str) -> JSON:
        """Delete at once."""
        return self.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})


class BareApiServer:
    """etcd and kube-apiserver on free ports of 127.0.0.1.

    Args:
        directory: for data, certificates and logs.
        binaries: where the executables are.
    """

    def __init__(self, directory: Path, binaries: Binaries) -> None:
        self.directory, self.binaries = directory, binaries
        self.authority = Authority(directory / "pki")
        self.port, self._etcd, self._peer = _free_ports(3)
        self.server = f"https://127.0.0.1:{self.port}"
        self.kubeconfig = directory / "admin.kubeconfig"
        self.admin: Client
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start both and wait until the server is ready."""
        self.authority.issue("apiserver", "kube-apiserver", dns=["localhost"], ips=["127.0.0.1"])
        write_key(self.directory / "pki" / "accounts.key")
        self.authority.kubeconfig(self.kubeconfig, "admin", ["system:masters"], server=self.server)
        self.admin = self.user("admin", "system:masters")
        pki, etcd = self.directory / "pki", f"http://127.0.0.1:{self._etcd}"
        peer = f"http://127.0.0.1:{self._peer}"
        self._run(
            "etcd", f"--data-dir={self.directory}/etcd", "--unsafe-no-fsync", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}", "--log-level=warn",
        )  # fmt: skip
        self._run(
            "kube-apiserver", f"--etcd-servers={etcd}", f"--secure-port={self.port}", "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--tls-cert-file={pki}/apiserver.crt", f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt", f"--service-account-key-file={pki}/accounts.key",
            f"--service-account-signing-key-file={pki}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            "--disable-admission-plugins=ServiceAccount",  # no controller makes the accounts that pods would need
        )  # fmt: skip
        wait_until(self._ready, 60, "the API server to be ready")
        wait_until(self._namespace, 30, "namespace default")

    def _run(self, name: str, *arguments: str) -> None:
        log = (self.directory / f"{name}.log").open("wb")
        self._processes.append(subprocess.Popen([self.binaries[name], *arguments], stdout=log, stderr=log, cwd="/"))
        log.close()

    def _ready(self) -> bool:
        for process in self._processes:
            if process.poll() is not None:
                logs = "\n".join((self.directory / f"{n}.log").read_text()[-3000:] for n in ("etcd", "kube-apiserver"))
                raise RuntimeError(f"{process.args!r} ended:\n{logs}")
        with contextlib.suppress(Refused, OSError, http.client.HTTPException):
            return bool(self.admin.get("/readyz")["text"] == "ok")
        return False

    def _namespace(self) -> bool:
        with contextlib.suppress(Refused):
            return bool(self.admin.get("/api/v1/namespaces/default"))
        return False

    def user(self, name: str, *groups: str) -> Client:
        """A client with a certificate of that user."""
        certificate, key = self.authority.issue(f"user-{abs(hash((name, groups)))}", name, groups)
        context = self._trust()
        context.load_cert_chain(certificate, key)
        return Client(self.server, self.authority.certificate, context)

    def account(self, namespace: str, name: str, pod: Mapping[str, Any] | None = None) -> Client:
        """A client with a token of that service account, bound to `pod` if there is one."""
        spec: JSON = {"expirationSeconds": 3600}
        if pod is not None:
            meta = pod["metadata"]
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token = self.admin.create(path, body)["status"]["token"]
        return Client(self.server, self.authority.certificate, self._trust(), token)

    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.certificate))

    @contextlib.contextmanager
    def type_checker(self) -> Iterator[None]:
        """Run the controller that type-checks the expressions of policies."""
        identity = [f"--{f}kubeconfig={self.kubeconfig}" for f in ("", "authentication-", "authorization-")]
        only = ["--controllers=validatingadmissionpolicy-status-controller", "--leader-elect=false", "--secure-port=0"]
        with self.running("kube-controller-manager", *identity, *only):
            yield

    @contextlib.contextmanager
    def running(self, name: str, *arguments: str) -> Iterator[Path]:
        """Run a component for a while; yields its log."""
        path = self.directory / f"{name}.log"
        with path.open("wb") as log:
            process = subprocess.Popen([self.binaries[name], *arguments], stdout=log, stderr=log, cwd="/")
            try:
                yield path
            finally:
                process.kill()
                process.wait()

    def stop(self) -> None:
        """Kill both."""
        for process in reversed(self._processes):
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
