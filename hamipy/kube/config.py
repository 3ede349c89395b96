"""How to reach the API server: service account of the pod we run in, or a kubeconfig.

TLS is always verified: `insecure-skip-tls-verify` is refused, and plain `http://` is for servers on this machine.
Formats: `client-go/tools/clientcmd/api/v1`, and the service account volume every pod gets.
"""

import base64
import binascii
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from hamipy.kube.errors import ConfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, CA and namespace."""

_EXEC_API = "client.authentication.k8s.io/v1"


class ExecPlugin(Struct, frozen=True):
    """A credential plugin of a kubeconfig (`client.authentication.k8s.io`), run when credentials are needed.

    `cluster` is what the plugin is told about the cluster, None unless it wants to know.
    """

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    api_version: str = _EXEC_API
    install_hint: str = ""
    cluster: dict[str, Any] | None = None


class ClusterConfig(Struct, frozen=True, kw_only=True):
    """One API server and one identity there. Files are read again when they change; data wins over files.

    Raises:
        ConfigError: no usable server address, or plain HTTP to another machine.
    """

    server: str
    ca_file: str | None = None
    ca_data: bytes | None = None
    token: str | None = None
    token_file: str | None = None
    client_cert_file: str | None = None
    client_cert_data: bytes | None = None
    client_key_file: str | None = None
    client_key_data: bytes | None = None
    exec: ExecPlugin | None = None
    namespace: str | None = None
    tls_server_name: str | None = None

    def __post_init__(self) -> None:
        url = urlsplit(self.server)
        if url.scheme not in {"https", "http"} or not url.hostname:
            raise ConfigError(f"server {self.server!r}: write the API server's address as https://host:port")
        if url.scheme == "http" and not _is_loopback(url.hostname):
            raise ConfigError(f"server {self.server!r}: plain http is for 127.0.0.1 only, use https")

    def __repr__(self) -> str:
        return f"ClusterConfig({self.server})"


def load_config(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> ClusterConfig:
    """Find the API server: the given kubeconfig, else the pod's service account, else `~/.kube/config`.

    Args:
        kubeconfig: one path, or several joined by `:` as in `$KUBECONFIG` (the first to say something wins).
        context: its context; default is the file's current one.
        environ: where the kubelet's `KUBERNETES_SERVICE_HOST` is looked up; default is the process environment.

    Raises:
        ConfigError: one sentence with file, field and what would be right.
    """
    if kubeconfig:
        return _from_kubeconfig([Path(p).expanduser() for p in kubeconfig.split(os.pathsep) if p], context)
    environ = os.environ if environ is None else environ
    if environ.get("KUBERNETES_SERVICE_HOST") and context is None:
        return in_cluster(environ)
    home = Path("~/.kube/config").expanduser()
    if home.exists():
        return _from_kubeconfig([home], context)
    raise ConfigError("no cluster found: give --kubeconfig, or run in a pod with a service account")


def in_cluster(environ: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> ClusterConfig:
    """The API server as the kubelet tells it to every pod.

    Raises:
        ConfigError: the service account volume is not there.
    """
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    token, ca, namespace = account / "token", account / "ca.crt", account / "namespace"
    for file in (token, ca):
        if not file.is_file():
            raise ConfigError(f"{file}: missing; set automountServiceAccountToken: true on the pod")
    return ClusterConfig(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        ca_file=str(ca),
        token_file=str(token),
        namespace=namespace.read_text().strip() if namespace.is_file() else None,
    )


def _from_kubeconfig(paths: list[Path], context: str | None) -> ClusterConfig:
    files = [(path, _read(path)) for path in paths if path.exists()]
    if not files:
        raise ConfigError(f"kubeconfig {os.pathsep.join(map(str, paths))}: no such file")
    where = files[0][0]
    name = context or next((d["current-context"] for _, d in files if d.get("current-context")), None)
    if not name:
        raise ConfigError(f"kubeconfig {where}: has no current-context; choose one with --context")
    _, chosen = _named(files, "contexts", "context", name)
    base, cluster = _named(files, "clusters", "cluster", str(chosen.get("cluster", "")))
    if cluster.get("insecure-skip-tls-verify"):
        raise ConfigError(f"kubeconfig {base}: insecure-skip-tls-verify is refused, give certificate-authority instead")
    if cluster.get("proxy-url"):
        raise ConfigError(f"kubeconfig {base}: proxy-url is not supported, give a server that is reached directly")
    if not isinstance(cluster.get("server"), str):
        raise ConfigError(f"kubeconfig {base}: cluster {chosen.get('cluster')!r} has no server")
    user_base, user = _named(files, "users", "user", str(chosen["user"])) if chosen.get("user") else (base, {})
    if "auth-provider" in user or "username" in user:
        raise ConfigError(f"kubeconfig {user_base}: user {chosen['user']!r} must use token, client certificate or exec")
    has_token = bool(user.get("token") or user.get("tokenFile"))
    return ClusterConfig(
        server=cluster["server"].rstrip("/"),
        ca_file=_path(base, cluster, "certificate-authority"),
        ca_data=_data(base, cluster, "certificate-authority-data"),
        tls_server_name=cluster.get("tls-server-name") or None,
        token=user.get("token") or None,
        token_file=_path(user_base, user, "tokenFile"),
        client_cert_file=_path(user_base, user, "client-certificate"),
        client_cert_data=_data(user_base, user, "client-certificate-data"),
        client_key_file=_path(user_base, user, "client-key"),
        client_key_data=_data(user_base, user, "client-key-data"),
        exec=_exec(user_base, user["exec"], cluster) if user.get("exec") and not has_token else None,
        namespace=chosen.get("namespace") or None,
    )


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"kubeconfig {path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"kubeconfig {path}: is not a kubeconfig (a mapping with clusters, users and contexts)")
    return document


def _named(files: list[tuple[Path, dict[str, Any]]], kind: str, key: str, name: str) -> tuple[Path, dict[str, Any]]:
    """The entry `name` of a list such as `clusters`, with the file it stands in."""
    for path, document in files:
        entries = document.get(kind) or []
        if not isinstance(entries, list):
            raise ConfigError(f"kubeconfig {path}: {kind} must be a list")
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                value = entry.get(key) or {}
                if not isinstance(value, dict):
                    raise ConfigError(f"kubeconfig {path}: {kind}[{name}].{key} must be a mapping")
                return path, value
    raise ConfigError(f"kubeconfig {files[0][0]}: has no entry {name!r} in {kind}")


def _path(base: Path, entry: dict[str, Any], key: str) -> str | None:
    """A file named in a kubeconfig: relative to the kubeconfig's own directory."""
    value = entry.get(key)
    return str(base.parent / str(value)) if value else None


def _data(base: Path, entry: dict[str, Any], key: str) -> bytes | None:
    value = entry.get(key)
    if not value:
        return None
    try:
        return base64.b64decode(str(value), validate=True)
    except binascii.Error as error:
        raise ConfigError(f"kubeconfig {base}: {key} is not base64") from error


def _exec(base: Path, entry: Any, cluster: dict[str, Any]) -> ExecPlugin:
    if not isinstance(entry, dict) or not entry.get("command"):
        raise ConfigError(f"kubeconfig {base}: exec needs a command")
    if entry.get("interactiveMode") == "Always":
        raise ConfigError(f"kubeconfig {base}: exec plugin {entry['command']!r} wants a terminal; use a token instead")
    command = str(entry["command"])
    if "/" in command:
        command = str(base.parent / command)
    told = {
        wire: cluster[key]
        for wire, key in (
            ("server", "server"),
            ("tls-server-name", "tls-server-name"),
            ("certificate-authority-data", "certificate-authority-data"),
        )
        if cluster.get(key)
    }
    return ExecPlugin(
        command=command,
        args=tuple(str(a) for a in entry.get("args") or ()),
        env={str(e["name"]): str(e["value"]) for e in entry.get("env") or ()},
        api_version=str(entry.get("apiVersion") or _EXEC_API),
        install_hint=str(entry.get("installHint") or ""),
        cluster=told if entry.get("provideClusterInfo") else None,
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
