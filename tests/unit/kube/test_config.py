"""How the API server is found: kubeconfig, service account, and what is refused with which sentence."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from hamipy.kube.config import ClusterConfig, in_cluster, load_config
from hamipy.kube.errors import ConfigError


def write(path: Path, **changes: Any) -> str:
    """A kubeconfig with one context; `cluster` and `user` are merged into its entries."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://api:6443", **changes.pop("cluster", {})}}],
        "users": [{"name": "u", "user": changes.pop("user", {"token": "t"})}],
        **changes,
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_a_kubeconfig_gives_server_token_and_namespace(tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "config"))
    assert (config.server, config.token, config.namespace) == ("https://api:6443", "t", "team")


def test_certificates_come_from_data_or_from_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    pem = base64.b64encode(b"PEM").decode()
    config = load_config(
        write(
            tmp_path / "config",
            cluster={"certificate-authority-data": pem, "tls-server-name": "kubernetes"},
            user={"client-certificate": "pki/me.crt", "client-key": "/abs/me.key"},
        )
    )
    assert config.ca_data == b"PEM"
    assert config.tls_server_name == "kubernetes"
    assert config.client_cert_file == str(tmp_path / "pki/me.crt")
    assert config.client_key_file == "/abs/me.key"


def test_several_files_are_merged_and_the_first_to_say_something_wins(tmp_path: Path) -> None:
    first = write(tmp_path / "a", contexts=[], clusters=[], users=[{"name": "u", "user": {"token": "first"}}])
    config = load_config(f"{first}:{write(tmp_path / 'b')}:{tmp_path / 'missing'}")
    assert config.token == "first"
    assert config.server == "https://api:6443"


def test_a_context_is_chosen_by_name(tmp_path: Path) -> None:
    path = write(
        tmp_path / "config",
        contexts=[{"name": "other", "context": {"cluster": "k", "user": "u"}}],
        **{"current-context": "gone"},
    )
    assert load_config(path, "other").server == "https://api:6443"
    with pytest.raises(ConfigError, match="has no entry 'gone' in contexts"):
        load_config(path)


def test_an_exec_plugin_is_read_with_its_cluster_information(tmp_path: Path) -> None:
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "./bin/get-token",
            "args": ["--cluster", "x"],
            "env": [{"name": "PROFILE", "value": "p"}],
            "provideClusterInfo": True,
            "installHint": "install it",
        }
    }
    plugin = load_config(write(tmp_path / "config", user=user)).exec
    assert plugin is not None
    assert plugin.command == str(tmp_path / "bin/get-token")
    assert plugin.args == ("--cluster", "x")
    assert plugin.env == {"PROFILE": "p"}
    assert plugin.cluster == {"server": "https://api:6443"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cluster": {"insecure-skip-tls-verify": True}}, "give certificate-authority instead"),
        ({"cluster": {"proxy-url": "http://p"}}, "proxy-url is not supported"),
        ({"cluster": {"certificate-authority-data": "%%"}}, "certificate-authority-data is not base64"),
        ({"cluster": {"server": None}}, "cluster 'k' has no server"),
        ({"cluster": {"server": "http://api:80"}}, "plain http is for 127.0.0.1 only"),
        ({"cluster": {"server": "api:6443"}}, "write the API server's address as https://host:port"),
        ({"user": {"auth-provider": {"name": "gcp"}}}, "must use token, client certificate or exec"),
        ({"user": {"exec": {"command": "x", "interactiveMode": "Always"}}}, "wants a terminal"),
        ({"user": {"exec": {"args": []}}}, "exec needs a command"),
        ({"current-context": ""}, "has no current-context; choose one with --context"),
        ({"clusters": "k"}, "clusters must be a list"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path, changes: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_config(write(tmp_path / "config", **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "\x00"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        load_config(str(path))


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_config(str(tmp_path / "none"))


def test_in_a_pod_the_service_account_is_used(tmp_path: Path) -> None:
    for name, text in (("token", "secret\n"), ("ca.crt", "PEM"), ("namespace", "hamipy-system\n")):
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    config = in_cluster(environ, tmp_path)
    assert config.server == "https://[fd00::1]:443"
    assert config.token_file == str(tmp_path / "token")
    assert config.token is None
    assert config.namespace == "hamipy-system"


def test_a_pod_without_service_account_is_told_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="automountServiceAccountToken: true"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def test_without_any_cluster_the_way_to_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="give --kubeconfig"):
        load_config(environ={})


def test_the_home_kubeconfig_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube/config")
    assert load_config(environ={}).token == "t"


def test_secrets_do_not_show_in_the_representation() -> None:
    assert "secret" not in repr(ClusterConfig(server="https://api", token="secret", client_key_data=b"secret"))
