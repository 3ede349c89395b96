"""Where the webhook's certificate comes from, and how it is replaced while serving.

`SecretCertificates` keeps the self-made one in a Secret: whoever is first creates it, every write carries the
resourceVersion it was decided on, so racing replicas end with one certificate; only the leader rotates.
`DirectoryCertificates` reads what somebody else (cert-manager) puts into a directory.
"""

import asyncio
import base64
import binascii
import logging
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hamipy.core.errors import HamipyError
from hamipy.kube.client import KubeClient
from hamipy.kube.errors import Conflict, NotFound
from hamipy.scheduler.certificates import BadCertificate, Clock, Lifetimes, Pair, Stored, check, plan, utc_now

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
"""Lost races in a row after which the next look waits its turn."""


class ServingCertificate:
    """The TLS context of the webhook's server; each handshake gets the pair that was loaded last.

    Every pair has a context of its own: one context would keep the old certificate beside a new one with another kind
    of key, and go on serving it.

    Attributes:
        context: for the server.
        pair: what is served now; None before the first.
        loads: how often a pair was loaded.
    """

    def __init__(self, clock: Clock = utc_now) -> None:
        self.pair: Pair | None = None
        self.loads = 0
        self._clock = clock
        self._current: ssl.SSLContext | None = None
        self.context = _server_context()
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG002
        if self._current is not None:
            connection.context = self._current

    def load(self, pair: Pair) -> bool:
        """Serve `pair` from the next handshake on; whether it is a new one.

        Raises:
            BadCertificate: OpenSSL does not take it; the old one stays.
        """
        if pair == self.pair:
            return False
        context = _server_context()
        with tempfile.TemporaryDirectory(prefix="hamipy-") as directory:  # mode 0700; OpenSSL reads files only
            certificate, key = Path(directory, "tls.crt"), Path(directory, "tls.key")
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            try:
                context.load_cert_chain(certificate, key)
            except (ssl.SSLError, OSError) as error:
                raise BadCertificate(f"tls.crt, tls.key: cannot be served: {error}") from error
        self._current, self.pair = context, pair
        self.loads += 1
        logger.info("serving the webhook with the certificate that expires %s", pair.leaf.not_valid_after_utc)
        return True

    @property
    def usable(self) -> bool:
        """Whether a certificate is loaded that has not expired."""
        return self.pair is not None and self._clock() < self.pair.leaf.not_valid_after_utc


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class SecretCertificates:
    """Keeps the Secret right and `serving` up to date with it.

    Args:
        client: the API server.
        namespace, name: of the Secret.
        names: DNS names to serve.
        serving: gets what is to be served.
        leads: whether this replica leads.
        trusts: whether API servers are told to trust exactly this bundle.
        changed: called when `bundle` has changed.
        lifetimes: how long things hold.
        interval: seconds between looks at the Secret.
        clock: the time.

    Attributes:
        bundle: the CAs that API servers must trust, in PEM; None until the Secret was read.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        names: tuple[str, ...],
        serving: ServingCertificate,
        leads: Callable[[], bool],
        trusts: Callable[[bytes], bool],
        changed: Callable[[], None] = lambda: None,
        lifetimes: Lifetimes = Lifetimes(),  # noqa: B008 - frozen
        interval: float = 10.0,
        clock: Clock = utc_now,
    ) -> None:
        self.bundle: bytes | None = None
        self._client, self._names, self._serving = client, names, serving
        self._namespace, self._name = namespace, name
        self._leads, self._trusts, self._lifetimes = leads, trusts, lifetimes
        self._changed, self._interval, self._clock = changed, interval, clock

    async def run(self) -> None:
        """Look at the Secret for ever; what is served stays as it is while the API server is away."""
        await _forever(self.refresh, self._interval)

    async def refresh(self) -> None:
        """Read the Secret, put it right where it is not, and serve what it holds.

        Raises:
            KubeError: the Secret can be neither read nor written.
            BadCertificate: it holds what cannot be served.
        """
        for _ in range(_ATTEMPTS):
            document = await self._read()
            stored = None if document is None else _stored(document)
            wanted = plan(
                stored,
                self._names,
                now=self._clock(),
                lifetimes=self._lifetimes,
                may_rotate=self._leads(),
                trusted=stored is not None and self._trusts(stored.bundle),
            )
            if wanted is None and stored is not None:
                self._serving.load(stored.pair)
                if stored.bundle != self.bundle:
                    self.bundle = stored.bundle
                    self._changed()
                return
            if wanted is not None:
                await self._write(document, wanted)

    async def _read(self) -> dict[str, Any] | None:
        try:
            return await self._client.get(f"{self._collection}/{self._name}", dict[str, Any])
        except NotFound:
            return None

    async def _write(self, document: dict[str, Any] | None, wanted: Stored) -> None:
        """Create or replace the Secret; a lost race is no error, for what the other wrote is read next."""
        try:
            if document is None:
                await self._client.create(self._collection, self._document({}, wanted))
                logger.info("created Secret %s/%s with the webhook's certificate", self._namespace, self._name)
            else:
                path = f"{self._collection}/{self._name}"
                await self._client.request("PUT", path, body=self._document(document, wanted))
                logger.info("wrote Secret %s/%s", self._namespace, self._name)
        except (Conflict, NotFound):
            logger.debug("Secret %s/%s was changed by another replica; reading it again", self._namespace, self._name)

    @property
    def _collection(self) -> str:
        return f"/api/v1/namespaces/{self._namespace}/secrets"

    def _document(self, before: dict[str, Any], wanted: Stored) -> dict[str, Any]:
        data = {
            "tls.crt": wanted.pair.certificate,
            "tls.key": wanted.pair.key,
            "ca.crt": wanted.bundle,
            "next.crt": wanted.successor and wanted.successor.certificate,
            "next.key": wanted.successor and wanted.successor.key,
        }
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            **before,
            "metadata": {**before.get("metadata", {}), "namespace": self._namespace, "name": self._name},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items() if value},
        }


def _stored(document: dict[str, Any]) -> Stored | None:
    """What a Secret holds; None when it lacks a part, so that a new one is made."""
    data = document.get("data") or {}
    try:
        parts = {key: base64.b64decode(text, validate=True) for key, text in data.items()}
    except (binascii.Error, TypeError, ValueError):
        return None
    if not all(parts.get(key) for key in ("tls.crt", "tls.key", "ca.crt")):
        return None
    successor = None
    if parts.get("next.crt") and parts.get("next.key"):
        successor = Pair(parts["next.crt"], parts["next.key"])
    return Stored(Pair(parts["tls.crt"], parts["tls.key"]), parts["ca.crt"], successor)


class DirectoryCertificates:
    """Serves `tls.crt` and `tls.key` of a directory, and reads them again when they change.

    Attributes:
        bundle: always None; whoever made the certificate tells API servers whom to trust.
    """

    bundle: bytes | None = None

    def __init__(
        self,
        directory: Path,
        *,
        names: tuple[str, ...],
        serving: ServingCertificate,
        interval: float = 5.0,
        clock: Clock = utc_now,
    ) -> None:
        self._directory, self._names, self._serving = directory, names, serving
        self._interval, self._clock = interval, clock

    async def run(self) -> None:
        """Look at the files for ever."""
        await _forever(self.refresh, self._interval)

    async def refresh(self) -> None:
        """Serve what the files hold, if they are a pair that can be served; else keep what is served.

        Raises:
            BadCertificate: names the file and what is wrong.
        """
        try:
            pair = await asyncio.to_thread(_read_pair, self._directory)
        except OSError as error:
            raise BadCertificate(f"cert-dir {self._directory}: {error.strerror}: {error.filename}") from error
        if pair != self._serving.pair:
            check(pair, self._names, now=self._clock())
            self._serving.load(pair)


def _read_pair(directory: Path) -> Pair:
    return Pair((directory / "tls.crt").read_bytes(), (directory / "tls.key").read_bytes())


async def _forever(refresh: Callable[[], Any], interval: float) -> None:
    """Call `refresh` every `interval` seconds; a problem is logged when it is new."""
    before = ""
    while True:
        try:
            await refresh()
            before = ""
        except HamipyError as problem:
            if str(problem) != before:
                logger.warning("webhook certificate: %s; trying again", problem)
            before = str(problem)
        await asyncio.sleep(interval)
