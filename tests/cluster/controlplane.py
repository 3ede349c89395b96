"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler on this machine; ready in three seconds."""

import http.client
import shutil
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import pki
from .api import Api, ApiError
from .binaries import Binaries
from .daemons import Daemon, environment, wait_until
from .errors import HarnessError

SERVICE_IP, GATEWAY = "10.96.0.1", "10.240.0.1"
SERVICES, PODS = "10.96.0.0/16", "10.244.0.0/16"


@dataclass(frozen=True)
class Options:
    """Settings of the control plane.

    Args:
        fake_nodes: Node objects have no kubelet: they stay Ready without heartbeats (no node-lifecycle controller).
        node_grace: seconds without a kubelet's heartbeat (every 2 s) until its node is NotReady.
        scheduler: run the default kube-scheduler.
        apiserver_flags: added to the API server's flags.
    """

    fake_nodes: bool = False
    node_grace: int = 12
    scheduler: bool = True
    apiserver_flags: tuple[str, ...] = ()


class ControlPlane:
    """The control plane with its files in `directory`.

    No kube-proxy is needed: the API server listens on 443 of 10.96.0.1 (an address of `lo`), the in-cluster address of
    the `kubernetes` Service, and sends webhooks to the Service's endpoints. Other ClusterIPs lead nowhere.
    """

    def __init__(self, directory: Path, binaries: Binaries, options: Options | None = None) -> None:
        self.directory, self.binaries, self.options = directory, binaries, options or Options()
        self.admin_kubeconfig = directory / "admin.kubeconfig"
        self.authority = pki.Authority(directory / "pki")
        env = environment(directory.parent, binaries.search_path)
        commands = {
            "etcd": self._etcd(),
            "kube-apiserver": self._apiserver(),
            "kube-controller-manager": self._controller_manager(),
            "kube-scheduler": [*self._client("kube-scheduler"), "--leader-elect=false"],
        }
        self.daemons = {n: Daemon(n, [binaries[n], *arguments], directory, env) for n, arguments in commands.items()}
        self.etcd, self.apiserver = self.daemons["etcd"], self.daemons["kube-apiserver"]
        self.controller_manager, self.scheduler = (
            self.daemons["kube-controller-manager"],
            self.daemons["kube-scheduler"],
        )

    def _pki(self, name: str) -> str:
        return str(self.directory / "pki" / name)

    def _etcd(self) -> list[str]:
        clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return [
            f"--data-dir={self.directory / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            "--log-level=warn",
        ]

    def _apiserver(self) -> list[str]:
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=443",
            "--bind-address=0.0.0.0",
            f"--advertise-address={GATEWAY}",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={self._pki('apiserver.crt')}",
            f"--tls-private-key-file={self._pki('apiserver.key')}",
            f"--client-ca-file={self._pki('ca.crt')}",
            f"--kubelet-certificate-authority={self._pki('ca.crt')}",
            f"--kubelet-client-certificate={self._pki('kubelet-client.crt')}",
            f"--kubelet-client-key={self._pki('kubelet-client.key')}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--requestheader-client-ca-file={self._pki('ca.crt')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--service-account-key-file={self._pki('service-accounts.key')}",
            f"--service-account-signing-key-file={self._pki('service-accounts.key')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--enable-aggregator-routing=true",
            *self.options.apiserver_flags,
        ]

    def _client(self, name: str) -> list[str]:
        path = self.directory / f"{name}.kubeconfig"
        return [f"--{flag}={path}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")]

    def _controller_manager(self) -> list[str]:
        return [
            *self._client("kube-controller-manager"),
            "--controllers=*" + (",-node-lifecycle-controller" if self.options.fake_nodes else ""),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._pki('service-accounts.key')}",
            f"--root-ca-file={self._pki('ca.crt')}",
            f"--cluster-signing-cert-file={self._pki('ca.crt')}",
            f"--cluster-signing-key-file={self._pki('ca.key')}",
            "--leader-elect=false",
            f"--node-monitor-grace-period={self.options.node_grace}s",
            "--node-monitor-period=1s",
        ]

    def start(self) -> None:
        """Start everything and wait until the API server is ready.

        Raises:
            HarnessError: port 443 is taken, or a component did not come up; with the end of its log.
        """
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", 443))
            except OSError as e:
                raise HarnessError(f"port 443 of this machine cannot be used ({e.strerror}), and pods need it") from e
        self._credentials()
        for address in (SERVICE_IP, GATEWAY):
            subprocess.run(["ip", "addr", "replace", f"{address}/32", "dev", "lo"], check=True)
        self.etcd.start()
        self.apiserver.start()
        self.wait_ready()
        # what kubeadm does too: the API server may use the kubelets' exec, logs, …
        admin = Api(self.admin_kubeconfig)
        admin.create(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": "kube-apiserver-kubelet-client"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "system:kubelet-api-admin",
                },
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kube-apiserver"}],
            }
        )
        admin.close()
        self.controller_manager.start()
        if self.options.scheduler:
            self.scheduler.start()

    def _credentials(self) -> None:
        dns = ["localhost", *(f"kubernetes{s}" for s in ("", ".default", ".default.svc", ".default.svc.cluster.local"))]
        self.authority.issue("apiserver", "kube-apiserver", dns=dns, ips=["127.0.0.1", SERVICE_IP, GATEWAY])
        self.authority.issue("kubelet-client", "kube-apiserver")
        pki.write_key(self.directory / "pki" / "service-accounts.key")
        self.kubeconfig("admin", "admin", ["system:masters"])
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.kubeconfig(name, f"system:{name}")

    def kubeconfig(self, name: str, user: str, groups: list[str] | None = None) -> Path:
        """A kubeconfig for any user and groups; RBAC decides what they may."""
        return self.authority.kubeconfig(self.directory / f"{name}.kubeconfig", user, groups or [])

    @property
    def ready(self) -> bool:
        """True when the API server says that it is."""
        api = Api(self.admin_kubeconfig)
        try:
            return api.request("GET", "/readyz", timeout=5) == b"ok"
        except (ApiError, OSError, http.client.HTTPException, ssl.SSLError):
            return False
        finally:
            api.close()

    def wait_ready(self, timeout: float = 60) -> None:
        """Wait for the API server."""

        def ready_or_dead() -> bool:
            for daemon in (self.etcd, self.apiserver):
                if not daemon.alive:
                    raise HarnessError(f"{daemon.name} ended:\n{daemon.tail()}")
            return self.ready

        wait_until(ready_or_dead, timeout, "the API server to be ready")

    def stop(self) -> None:
        """Kill everything, take the addresses away, remove the files."""
        for daemon in reversed(self.daemons.values()):
            daemon.resume()
            daemon.kill()
        for address in (SERVICE_IP, GATEWAY):
            subprocess.run(["ip", "addr", "del", f"{address}/32", "dev", "lo"], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.directory, ignore_errors=True)
