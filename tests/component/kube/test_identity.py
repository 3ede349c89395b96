"""Whom we trust, and who we are: certificates, tokens that rotate, credential plugins."""

import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from hamipy.kube.client import KubeClient
from hamipy.kube.config import ClusterConfig, ExecPlugin
from hamipy.kube.errors import ConfigError, Unauthorized, Unreachable
from hamipy.testing.apiserver import InMemoryApiServer

from .conftest import Seen, eventually, running
from .pki import Authority

NODES = "/api/v1/nodes"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("the cluster's")


async def list_nodes(config: ClusterConfig, **options: Any) -> None:
    async with KubeClient(config, **options) as client:
        await client.request("GET", NODES)


async def test_a_server_of_the_given_authority_is_trusted(tmp_path: Path, authority: Authority) -> None:
    tls = authority.server_context(tmp_path, "127.0.0.1")
    async with InMemoryApiServer(tls=tls, ca=authority.pem) as api:
        await list_nodes(api.config())
        ca_file = tmp_path / "ca.crt"
        ca_file.write_bytes(authority.pem)
        await list_nodes(api.config(ca_data=None, ca_file=str(ca_file)))
        assert len(api.requests) == 2


@pytest.mark.parametrize("given", ["another authority", "none"])
async def test_any_other_server_is_refused_before_it_gets_the_token(
    tmp_path: Path, authority: Authority, given: str
) -> None:
    tls = authority.server_context(tmp_path, "127.0.0.1")
    async with InMemoryApiServer(tls=tls, ca=authority.pem) as api:
        ca = Authority("another").pem if given == "another authority" else None
        with pytest.raises(Unreachable, match="certificate verify failed") as caught:
            await list_nodes(api.config(ca_data=ca, token="secret"))
        assert not caught.value.sent
        assert len(api.requests) == 0


async def test_a_certificate_for_another_name_is_refused_unless_that_name_is_expected(
    tmp_path: Path, authority: Authority
) -> None:
    tls = authority.server_context(tmp_path, "kubernetes.default.svc")
    async with InMemoryApiServer(tls=tls, ca=authority.pem) as api:
        with pytest.raises(Unreachable, match="certificate"):
            await list_nodes(api.config())
        await list_nodes(api.config(tls_server_name="kubernetes.default.svc"))


@pytest.mark.parametrize("from_files", [False, True])
async def test_a_client_certificate_identifies_us(tmp_path: Path, authority: Authority, from_files: bool) -> None:
    tls = authority.server_context(tmp_path, "127.0.0.1", clients=True)
    certificate, key = authority.issue("hamipy")
    identity: dict[str, Any] = {"client_cert_data": certificate, "client_key_data": key}
    if from_files:
        (tmp_path / "tls.crt").write_bytes(certificate)
        (tmp_path / "tls.key").write_bytes(key)
        identity = {"client_cert_file": str(tmp_path / "tls.crt"), "client_key_file": str(tmp_path / "tls.key")}
    async with InMemoryApiServer(tls=tls, ca=authority.pem) as api:
        await list_nodes(api.config(**identity))
        with pytest.raises(Unreachable):
            await list_nodes(api.config())


async def test_watches_run_over_tls(tmp_path: Path, authority: Authority) -> None:
    tls = authority.server_context(tmp_path, "127.0.0.1")
    async with (
        InMemoryApiServer(tls=tls, ca=authority.pem) as api,
        KubeClient(api.config()) as client,
    ):
        seen = Seen()
        async with running(client, seen):
            api.create("/api/v1/namespaces/default/pods", {"metadata": {"name": "a", "namespace": "default"}})
            await eventually(lambda: "a" in seen.now)


async def test_a_new_authority_in_the_file_is_trusted_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(authority.pem)
    new = Authority("the next")
    first = InMemoryApiServer(tls=authority.server_context(tmp_path, "127.0.0.1"))
    async with first:
        port = int(first.url.rpartition(":")[2])
        config = first.config(ca_file=str(ca_file))
        async with KubeClient(config, credentials_check=0.0) as client:
            await client.request("GET", NODES)
            await first.pause()
            async with InMemoryApiServer(tls=new.server_context(tmp_path, "127.0.0.1"), port=port):
                with pytest.raises(Unreachable, match="certificate verify failed"):
                    await client.request("GET", NODES)
                ca_file.write_bytes(new.pem)
                await client.request("GET", NODES)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"ca_data": b"no certificate"}, "certificate authority of https://127.0.0.1:1: cannot be read"),
        ({"ca_file": "/no/such/file"}, "certificate authority of https://127.0.0.1:1: cannot be read"),
        ({"client_cert_data": b"x", "client_key_data": b"y"}, "client certificate for .*: cannot be used"),
        ({"token_file": "/no/such/token"}, "token file /no/such/token: cannot be read"),
    ],
)
async def test_credentials_that_cannot_be_read_are_named(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await list_nodes(ClusterConfig(server="https://127.0.0.1:1", **config))


async def test_a_renewed_token_is_used_when_the_old_one_is_refused(tmp_path: Path, api: InMemoryApiServer) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    api.tokens = {"old"}
    async with KubeClient(api.config(token_file=str(token))) as client:
        await client.create(NODES, {"metadata": {"name": "a"}})
        token.write_text("new")
        api.tokens = {"new"}
        await client.create(NODES, {"metadata": {"name": "b"}})
        assert [r.token for r in api.requests] == ["old", "old", "new"]


async def test_a_renewed_token_is_found_by_looking_too(tmp_path: Path, api: InMemoryApiServer) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with KubeClient(api.config(token_file=str(token)), credentials_check=0.0) as client:
        await client.request("GET", NODES)
        token.write_text("new")
        await client.request("GET", NODES)
        token.unlink()  # a volume between two versions
        await client.request("GET", NODES)
        assert [r.token for r in api.requests] == ["old", "new", "new"]


async def test_a_refused_token_that_did_not_change_is_refused_once(api: InMemoryApiServer) -> None:
    api.tokens = {"right"}
    with pytest.raises(Unauthorized):
        await list_nodes(api.config(token="wrong"))
    assert len(api.requests) == 1


def plugin(path: Path, body: str) -> ExecPlugin:
    """A credential plugin: Python with `n` = how often it ran before, 0 for the first time."""
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "counter = pathlib.Path(__file__).with_suffix('.count')\n"
        "n = int(counter.read_text()) if counter.exists() else 0\n"
        "counter.write_text(str(n + 1))\n"
        "def answer(**status):\n"
        "    print(json.dumps({'kind': 'ExecCredential', 'apiVersion': info['apiVersion'], 'status': status}))\n"
        f"{body}\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return ExecPlugin(command=str(path), env={"PROFILE": "p"}, cluster={"server": "https://api"})


async def test_a_plugin_gives_the_token_until_it_expires(tmp_path: Path, api: InMemoryApiServer) -> None:
    own = plugin(
        tmp_path / "plugin",
        "when = '2000-01-01T00:00:00Z' if n == 0 else '2999-01-01T00:00:00Z'\n"
        "answer(token=os.environ['PROFILE'] + info['spec']['cluster']['server'] + str(n), expirationTimestamp=when)",
    )
    async with KubeClient(api.config(exec=own)) as client:
        for _ in range(3):
            await client.request("GET", NODES)
    assert [r.token for r in api.requests] == ["phttps://api0", "phttps://api1", "phttps://api1"]


async def test_a_plugin_is_asked_again_when_its_token_is_refused(tmp_path: Path, api: InMemoryApiServer) -> None:
    api.tokens = {"t1"}
    await list_nodes(api.config(exec=plugin(tmp_path / "plugin", "answer(token='t' + str(n))")))
    assert [r.token for r in api.requests] == ["t0", "t1"]


async def test_a_plugin_may_give_a_client_certificate(tmp_path: Path, authority: Authority) -> None:
    certificate, key = authority.issue("hamipy")
    pair = f"clientCertificateData={certificate.decode()!r}, clientKeyData={key.decode()!r}"
    tls = authority.server_context(tmp_path, "127.0.0.1", clients=True)
    async with InMemoryApiServer(tls=tls, ca=authority.pem) as api:
        await list_nodes(api.config(exec=plugin(tmp_path / "plugin", f"answer({pair})")))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("sys.exit('please log in')", "exit code 1: please log in"),
        ("print('hello')", "printed no ExecCredential"),
        ("answer()", "gave neither token nor client certificate"),
    ],
)
async def test_a_plugin_that_fails_is_named_with_what_it_said(
    tmp_path: Path, api: InMemoryApiServer, body: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        await list_nodes(api.config(exec=plugin(tmp_path / "plugin", body)))


async def test_a_missing_plugin_is_named_with_its_hint(api: InMemoryApiServer) -> None:
    missing = ExecPlugin(command="/no/such/plugin", install_hint="install it")
    with pytest.raises(ConfigError, match=r"/no/such/plugin: cannot be run.*\(install it\)"):
        await list_nodes(api.config(exec=missing))
