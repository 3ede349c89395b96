"""Certificates in a Secret of an API server and in a directory, served to real TLS clients."""

import asyncio
import base64
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hamipy.kube.client import KubeClient
from hamipy.kube.errors import KubeError
from hamipy.scheduler.certificate_sources import DirectoryCertificates, SecretCertificates, ServingCertificate
from hamipy.scheduler.certificates import BadCertificate, Lifetimes, Pair, issue
from hamipy.testing.apiserver import InMemoryApiServer
from tests.component.scheduler.world import until

HOST = "hamipy-webhook.hamipy-system.svc"
NAMES = (HOST, f"{HOST}.cluster.local")
SECRETS = "/api/v1/namespaces/hamipy-system/secrets"
SECRET = f"{SECRETS}/hamipy-webhook-tls"
DAY = datetime.timedelta(days=1)
LIFETIMES = Lifetimes(valid=90 * DAY, renew_before=30 * DAY, settle=DAY)


class Clock:
    """A clock that stands still until it is moved. It ends today, for OpenSSL has a clock of its own."""

    def __init__(self, *, days: int = 0) -> None:
        self.now = datetime.datetime.now(datetime.UTC) - days * DAY

    def __call__(self) -> datetime.datetime:
        return self.now


class Replica:
    """One scheduler's part in it."""

    def __init__(self, client: KubeClient, clock: Clock, *, leads: bool = True) -> None:
        self.leads, self.trusts, self.changes = leads, True, 0
        self.serving = ServingCertificate(clock)
        self.keeper = SecretCertificates(
            client,
            namespace="hamipy-system",
            name="hamipy-webhook-tls",
            names=NAMES,
            serving=self.serving,
            leads=lambda: self.leads,
            trusts=lambda _: self.trusts,
            changed=self._changed,
            lifetimes=LIFETIMES,
            interval=0.01,
            clock=clock,
        )

    def _changed(self) -> None:
        self.changes += 1

    @property
    def bundle(self) -> bytes:
        assert self.keeper.bundle is not None
        return self.keeper.bundle


@pytest.fixture
async def api() -> AsyncIterator[InMemoryApiServer]:
    async with InMemoryApiServer() as server:
        yield server


@pytest.fixture
async def client(api: InMemoryApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(api.config()) as made:
        yield made


@contextlib.asynccontextmanager
async def listening(serving: ServingCertificate) -> AsyncIterator[int]:
    """A TLS server with this certificate, as uvicorn opens it; it answers nothing."""

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=serving.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def handshake(port: int, bundle: bytes, *, host: str | None = HOST, tls: ssl.TLSVersion | None = None) -> bytes:
    """The certificate (DER) that a client gets which trusts `bundle`; ssl.SSLError when it does not trust it."""
    context = ssl.create_default_context(cadata=bundle.decode())
    if tls is not None:
        context.minimum_version = context.maximum_version = tls
    context.check_hostname = bool(host)
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host or "")
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(der, bytes)
        return der
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


def der(pair: Pair) -> bytes:
    return pair.leaf.public_bytes(serialization.Encoding.DER)


# -- the Secret ----------------------------------------------------------------------------------------------------


async def test_the_first_replica_makes_the_secret_and_the_second_adopts_it(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    first, second = Replica(client, Clock(), leads=False), Replica(client, Clock())

    await first.keeper.refresh()
    await second.keeper.refresh()

    secret = api.get(SECRET)
    assert secret["type"] == "kubernetes.io/tls"
    assert sorted(secret["data"]) == ["ca.crt", "tls.crt", "tls.key"]
    assert first.serving.pair == second.serving.pair
    assert first.bundle == second.bundle == base64.b64decode(secret["data"]["ca.crt"])
    assert first.serving.usable
    assert (first.changes, first.serving.loads) == (1, 1)
    assert client.writes == {"create secrets": 1}


async def test_racing_replicas_end_with_one_certificate(api: InMemoryApiServer) -> None:
    api.faults.add("get", SECRET, times=4, delay=0.05)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(KubeClient(api.config())) for _ in range(4)]
        clock = Clock()
        replicas = [Replica(c, clock) for c in clients]

        await asyncio.gather(*(r.keeper.refresh() for r in replicas))

        assert len({r.serving.pair for r in replicas}) == 1
        assert len({r.bundle for r in replicas}) == 1
        assert sum(c.writes["create secrets"] for c in clients) == 4, "all of them saw that there was none"


async def test_racing_replicas_replace_an_unusable_secret_once(api: InMemoryApiServer) -> None:
    api.create(SECRETS, {"metadata": {"name": "hamipy-webhook-tls"}, "type": "Opaque", "data": {"tls.crt": "AA=="}})
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(KubeClient(api.config())) for _ in range(4)]
        replicas = [Replica(c, Clock(), leads=False) for c in clients]

        await asyncio.gather(*(r.keeper.refresh() for r in replicas))

        assert len({r.serving.pair for r in replicas}) == 1
        assert api.get(SECRET)["type"] == "Opaque", "the type of a Secret cannot be changed"


@pytest.mark.parametrize("data", [None, {"tls.crt": "***"}, {"tls.crt": "AA==", "tls.key": "AA==", "ca.crt": "AA=="}])
async def test_a_secret_with_nonsense_is_replaced(
    api: InMemoryApiServer, client: KubeClient, data: dict[str, str] | None
) -> None:
    labels = {"team": "x"}
    api.create(SECRETS, {"metadata": {"name": "hamipy-webhook-tls", "labels": labels}, "data": data})
    replica = Replica(client, Clock())

    await replica.keeper.refresh()

    assert replica.serving.usable
    assert api.get(SECRET)["metadata"]["labels"] == labels


async def test_an_api_server_that_is_away_changes_nothing_that_is_served(
    api: InMemoryApiServer, client: KubeClient
) -> None:
    replica = Replica(client, Clock())
    await replica.keeper.refresh()
    pair = replica.serving.pair

    api.faults.add("get", SECRET, status=503)
    with pytest.raises(KubeError):
        await replica.keeper.refresh()

    assert replica.serving.pair == pair
    assert replica.serving.usable


async def test_the_keeper_goes_on_after_errors(api: InMemoryApiServer, client: KubeClient) -> None:
    api.faults.add("get", SECRET, times=2, status=500)
    replica = Replica(client, Clock())

    task = asyncio.create_task(replica.keeper.run())
    await until(lambda: replica.serving.usable, "a certificate")
    task.cancel()


# -- serving -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_that_trusts_the_bundle_gets_through(client: KubeClient, tls: ssl.TLSVersion) -> None:
    replica = Replica(client, Clock())
    await replica.keeper.refresh()
    assert replica.serving.pair is not None
    stranger, _ = issue(NAMES, now=datetime.datetime.now(datetime.UTC), valid=DAY)

    async with listening(replica.serving) as port:
        assert await handshake(port, replica.bundle, tls=tls) == der(replica.serving.pair)
        assert await handshake(port, replica.bundle, host=NAMES[1], tls=tls) == der(replica.serving.pair)
        with pytest.raises(ssl.SSLCertVerificationError):
            await handshake(port, stranger)
        with pytest.raises(ssl.SSLCertVerificationError):
            await handshake(port, replica.bundle, host="other.svc")


async def test_before_there_is_a_certificate_handshakes_fail_and_nothing_is_usable() -> None:
    serving = ServingCertificate()
    stranger, _ = issue(NAMES, now=datetime.datetime.now(datetime.UTC), valid=DAY)

    async with listening(serving) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await handshake(port, stranger)
    assert not serving.usable


async def test_every_step_of_a_rotation_is_trusted_by_whoever_was_told_one_step_before_or_after(
    client: KubeClient,
) -> None:
    clock = Clock(days=63)
    leader, follower = Replica(client, clock), Replica(client, clock, leads=False)
    bundles: list[bytes] = []
    seen: set[bytes] = set()

    async with listening(leader.serving) as one, listening(follower.serving) as two:
        for days in (0, 61, 1, 1):
            clock.now += days * DAY
            await leader.keeper.refresh()
            for bundle in [*bundles[-1:], leader.bundle]:  # told before this step, and after it
                seen.add(await handshake(one, bundle))
                if follower.keeper.bundle is not None:
                    seen.add(await handshake(two, bundle))  # has not looked yet
            await follower.keeper.refresh()
            bundles.append(leader.bundle)
            seen.add(await handshake(two, leader.bundle))

    assert len(seen) == 2
    assert leader.serving.pair == follower.serving.pair
    assert leader.serving.loads == 2


async def test_a_rotation_waits_until_api_servers_were_told(client: KubeClient) -> None:
    clock = Clock()
    leader = Replica(client, clock)
    await leader.keeper.refresh()
    leader.trusts = False

    for days in (61, 2, 17):
        clock.now += days * DAY
        await leader.keeper.refresh()
    assert leader.serving.loads == 1

    leader.trusts = True
    await leader.keeper.refresh()
    assert leader.serving.loads == 2


async def test_an_expired_certificate_is_not_usable(client: KubeClient) -> None:
    clock = Clock()
    replica = Replica(client, clock)
    await replica.keeper.refresh()

    clock.now += 91 * DAY

    assert not replica.serving.usable


# -- a directory ---------------------------------------------------------------------------------------------------


def serves(serving: ServingCertificate, pair: Pair) -> bool:
    return serving.pair == pair


def write_as_the_kubelet_does(directory: Path, pair: Pair, revision: str) -> None:
    """A mounted Secret: files are links through `..data`, which is replaced at once."""
    target = directory / f"..{revision}"
    target.mkdir()
    (target / "tls.crt").write_bytes(pair.certificate)
    (target / "tls.key").write_bytes(pair.key)
    link = directory / "..data_tmp"
    link.symlink_to(target.name)
    link.rename(directory / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


def rsa_pair() -> tuple[bytes, Pair]:
    """A self-signed RSA certificate with a PKCS#1 key, cert-manager's default kind."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cert-manager")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    kind = serialization.PrivateFormat.TraditionalOpenSSL
    pem = key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    return certificate, Pair(certificate, pem)


async def test_files_are_read_again_when_they_change_and_another_kind_of_key_replaces_the_old_one(
    tmp_path: Path,
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    elliptic_ca, elliptic = issue((HOST,), now=now, valid=DAY)
    rsa_ca, plain = rsa_pair()
    serving = ServingCertificate()
    keeper = DirectoryCertificates(tmp_path, names=(HOST,), serving=serving, interval=0.01)
    task = asyncio.create_task(keeper.run())
    try:
        async with listening(serving) as port:
            for revision, (ca, pair) in enumerate([(rsa_ca, plain), (elliptic_ca, elliptic), (rsa_ca, plain)]):
                write_as_the_kubelet_does(tmp_path, pair, str(revision))
                await until(partial(serves, serving, pair), "the new pair is served")
                assert await handshake(port, ca) == der(pair)
                assert await handshake(port, ca, host=None) == der(pair), "also for a client that names no host"
        assert keeper.bundle is None
    finally:
        task.cancel()


async def test_files_that_cannot_be_served_are_named_and_the_old_ones_stay(tmp_path: Path) -> None:
    serving = ServingCertificate()
    keeper = DirectoryCertificates(tmp_path, names=(HOST,), serving=serving)
    with pytest.raises(BadCertificate, match=rf"^cert-dir {tmp_path}: No such file or directory: .*tls.crt"):
        await keeper.refresh()

    _, good = issue((HOST,), now=datetime.datetime.now(datetime.UTC), valid=DAY)
    write_as_the_kubelet_does(tmp_path, good, "good")
    await keeper.refresh()
    _, foreign = issue(("other.svc",), now=datetime.datetime.now(datetime.UTC), valid=DAY)
    for revision, bad, sentence in (
        ("half", Pair(foreign.certificate, good.key), "tls.key: does not belong to tls.crt"),
        ("names", foreign, f"tls.crt: made for other.svc, not for {HOST}"),
    ):
        write_as_the_kubelet_does(tmp_path, bad, revision)
        with pytest.raises(BadCertificate, match=f"^{sentence}"):
            await keeper.refresh()
        assert serving.pair == good


def left_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_the_key_is_left_nowhere_on_disk(
    client: KubeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    replica = Replica(client, Clock())

    await replica.keeper.refresh()

    assert replica.serving.usable
    assert left_in(tmp_path) == []
