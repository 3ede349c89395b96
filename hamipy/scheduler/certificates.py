"""The webhook's self-made certificates: how they are made, what makes them unfit, and when they are replaced.

A CA that signs one serving certificate, whose key is then thrown away, so the Secret never holds a key that
could sign more. Rotation in two writes: first a successor with its own CA is laid beside the certificate in use and the
CA is added to the bundle that API servers are told to trust; only when they have had time to learn of it does the
successor take over. An old CA stays in the bundle until it expires, so a replica that lags behind is still trusted.

Nothing here does I/O; `scheduler.certificate_sources` keeps the Secret and loads what is served.
"""

import datetime
import logging
from collections.abc import Callable

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from hamipy.core.errors import HamipyError

logger = logging.getLogger(__name__)

BACKDATE = datetime.timedelta(hours=1)
"""Certificates begin this long before they are made, for clocks differ."""

Clock = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    """Now, with its zone."""
    return datetime.datetime.now(datetime.UTC)


class BadCertificate(HamipyError):
    """A certificate or key that cannot be served; the text says why."""


class Lifetimes(Struct, frozen=True):
    """How long things hold.

    Attributes:
        valid: of a certificate and its CA.
        renew_before: a successor is made this long before the end.
        settle: how long API servers have to learn of a successor's CA before the successor is used.
    """

    valid: datetime.timedelta = datetime.timedelta(days=365)
    renew_before: datetime.timedelta = datetime.timedelta(days=120)
    settle: datetime.timedelta = datetime.timedelta(minutes=10)


class Pair(Struct, frozen=True):
    """A serving certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    @property
    def leaf(self) -> x509.Certificate:
        """The certificate itself (the first in the file)."""
        try:
            return x509.load_pem_x509_certificates(self.certificate)[0]
        except ValueError as error:
            raise BadCertificate(f"tls.crt: not a certificate in PEM: {error}") from error


class Stored(Struct, frozen=True):
    """What the Secret holds: the pair in use, the CAs to trust, and the successor while there is one."""

    pair: Pair
    bundle: bytes
    successor: Pair | None = None


def issue(names: tuple[str, ...], *, now: datetime.datetime, valid: datetime.timedelta) -> tuple[bytes, Pair]:
    """A new CA (PEM) and a serving certificate for `names` that it signed; the CA's key is gone afterwards."""
    serial = x509.random_serial_number()
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = _name(f"hamipy webhook CA {serial:040x}"[:40])
    begin, end = now - BACKDATE, now + valid
    ca_identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())

    def build(subject: x509.Name, public: ec.EllipticCurvePublicKey, *, ca: bool) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(serial if ca else x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
            .add_extension(_key_usage(ca=ca), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_identifier), critical=False
            )
        )

    ca = build(ca_name, ca_key.public_key(), ca=True).sign(ca_key, hashes.SHA256())
    leaf = (
        build(_name(names[0][:64]), key.public_key(), ca=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ca.public_bytes(pem), Pair(leaf.public_bytes(pem), secret)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def check(pair: Pair, names: tuple[str, ...], *, now: datetime.datetime, bundle: bytes | None = None) -> None:
    """Hold a pair to what serving needs.

    Args:
        pair: certificate and key.
        names: DNS names it must be made for.
        now: it must be valid at this time.
        bundle: CAs of which one must have signed it; None to leave that to the client.

    Raises:
        BadCertificate: says what is wrong.
    """
    leaf = pair.leaf
    try:
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError) as error:
        raise BadCertificate(f"tls.key: not a private key in PEM without a password: {error}") from error
    if key.public_key() != leaf.public_key():
        raise BadCertificate("tls.key: does not belong to tls.crt")
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        raise BadCertificate(f"tls.crt: valid {leaf.not_valid_before_utc:%F %T} to {leaf.not_valid_after_utc:%F %T}")
    try:
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        there = alternatives.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        there = []
    if not set(names) <= set(there):
        raise BadCertificate(f"tls.crt: made for {', '.join(there) or 'no name'}, not for {', '.join(names)}")
    if bundle is not None and not any(_signed(leaf, ca) for ca in _certificates(bundle)):
        raise BadCertificate("ca.crt: holds no CA that signed tls.crt")


def _problem(pair: Pair, names: tuple[str, ...], now: datetime.datetime, bundle: bytes) -> BadCertificate | None:
    try:
        check(pair, names, now=now, bundle=bundle)
    except BadCertificate as problem:
        return problem
    return None


def _signed(leaf: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []


def _unexpired(bundle: bytes, now: datetime.datetime) -> bytes:
    kept = [c for c in _certificates(bundle) if now < c.not_valid_after_utc]
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in kept)


def plan(
    stored: Stored | None,
    names: tuple[str, ...],
    *,
    now: datetime.datetime,
    lifetimes: Lifetimes,
    may_rotate: bool,
    trusted: bool,
) -> Stored | None:
    """What the Secret should hold next; None when it is right as it is.

    Args:
        stored: what it holds; None when there is none, or nothing readable.
        names: DNS names to serve.
        now: the time.
        lifetimes: how long things hold.
        may_rotate: whether this replica leads; what cannot be served is replaced by anyone.
        trusted: whether API servers are told to trust the bundle as stored.
    """
    if stored is None:
        ca, pair = issue(names, now=now, valid=lifetimes.valid)
        return Stored(pair, ca)
    problem = _problem(stored.pair, names, now, stored.bundle)
    if problem is not None:
        if stored.successor is not None and _problem(stored.successor, names, now, stored.bundle) is None:
            return Stored(stored.successor, stored.bundle)
        logger.warning("the webhook's certificate cannot be used (%s); making a new one", problem)
        ca, pair = issue(names, now=now, valid=lifetimes.valid)
        return Stored(pair, ca + _unexpired(stored.bundle, now))
    if not may_rotate:
        return None
    if stored.successor is not None:
        if _problem(stored.successor, names, now, stored.bundle) is not None:
            return Stored(stored.pair, stored.bundle)
        since = stored.successor.leaf.not_valid_before_utc + BACKDATE
        if trusted and now >= since + lifetimes.settle:
            return Stored(stored.successor, stored.bundle)
        return None
    if now >= stored.pair.leaf.not_valid_after_utc - lifetimes.renew_before:
        ca, pair = issue(names, now=now, valid=lifetimes.valid)
        return Stored(stored.pair, ca + _unexpired(stored.bundle, now), pair)
    kept = _unexpired(stored.bundle, now)
    return None if len(_certificates(kept)) == len(_certificates(stored.bundle)) else Stored(stored.pair, kept)
