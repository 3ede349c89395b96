"""What becomes of the webhook's certificate over the years, without waiting for them."""

import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from hamipy.scheduler.certificates import BACKDATE, BadCertificate, Lifetimes, Pair, Stored, check, issue, plan

NAMES = ("hamipy-webhook.hamipy-system.svc", "hamipy-webhook.hamipy-system.svc.cluster.local")
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)
LIFETIMES = Lifetimes(valid=90 * DAY, renew_before=30 * DAY, settle=HOUR)


def after(
    stored: Stored | None,
    now: datetime.datetime,
    *,
    may_rotate: bool = True,
    trusted: bool = True,
    names: tuple[str, ...] = NAMES,
) -> Stored | None:
    return plan(stored, names, now=now, lifetimes=LIFETIMES, may_rotate=may_rotate, trusted=trusted)


def made(now: datetime.datetime = NOW) -> Stored:
    stored = after(None, now)
    assert stored is not None
    return stored


def authorities(stored: Stored) -> int:
    return stored.bundle.count(b"BEGIN CERTIFICATE")


def test_a_new_pair_serves_the_names_and_is_signed_by_its_authority() -> None:
    stored = made()

    check(stored.pair, NAMES, now=NOW, bundle=stored.bundle)
    leaf = stored.pair.leaf
    assert leaf.not_valid_before_utc == NOW - BACKDATE
    assert leaf.not_valid_after_utc == NOW + 90 * DAY
    assert authorities(stored) == 1
    assert stored.successor is None


def test_an_authority_can_sign_nothing_but_what_it_signed_for_its_key_is_nowhere() -> None:
    ca, pair = issue(NAMES, now=NOW, valid=DAY)

    key = serialization.load_pem_private_key(pair.key, None)
    authority = x509.load_pem_x509_certificate(ca)
    assert key.public_key() != authority.public_key()
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)


@pytest.mark.parametrize("may_rotate", [True, False])
def test_what_is_right_stays(may_rotate: bool) -> None:
    assert after(made(), NOW + 59 * DAY, may_rotate=may_rotate) is None


def test_a_rotation_overlaps_from_its_first_step_to_the_end_of_the_old_authority() -> None:
    first = made()

    prepared = after(first, NOW + 60 * DAY)
    assert prepared is not None
    assert prepared.pair == first.pair
    assert prepared.successor is not None
    assert authorities(prepared) == 2
    check(prepared.pair, NAMES, now=NOW + 60 * DAY, bundle=prepared.bundle)
    check(prepared.successor, NAMES, now=NOW + 60 * DAY, bundle=prepared.bundle)

    assert after(prepared, NOW + 60 * DAY + HOUR / 2) is None, "API servers get their time to learn"
    assert after(prepared, NOW + 60 * DAY + 2 * HOUR, trusted=False) is None, "nobody was told yet"
    assert after(prepared, NOW + 60 * DAY + 2 * HOUR, may_rotate=False) is None, "only the leader rotates"

    promoted = after(prepared, NOW + 60 * DAY + HOUR)
    assert promoted == Stored(prepared.successor, prepared.bundle)
    assert after(promoted, NOW + 89 * DAY) is None, "replicas that still serve the old one are still trusted"

    cleaned = after(promoted, NOW + 91 * DAY)
    assert cleaned is not None
    assert cleaned.pair == prepared.successor
    assert authorities(cleaned) == 1
    check(cleaned.pair, NAMES, now=NOW + 91 * DAY, bundle=cleaned.bundle)
    assert after(cleaned, NOW + 91 * DAY) is None


@pytest.mark.parametrize("may_rotate", [True, False])
def test_an_expired_certificate_is_replaced_by_whoever_sees_it(may_rotate: bool) -> None:
    first = made()

    renewed = after(first, NOW + 90 * DAY, may_rotate=may_rotate)

    assert renewed is not None
    check(renewed.pair, NAMES, now=NOW + 90 * DAY, bundle=renewed.bundle)
    assert authorities(renewed) == 1, "the old authority ended too"


def test_a_successor_takes_over_at_once_when_the_one_in_use_has_expired() -> None:
    prepared = after(made(), NOW + 60 * DAY)
    assert prepared is not None

    assert after(prepared, NOW + 90 * DAY, may_rotate=False, trusted=False) == Stored(
        prepared.successor or prepared.pair, prepared.bundle
    )


def test_a_successor_that_cannot_be_served_is_dropped() -> None:
    first = made()
    broken = Stored(first.pair, first.bundle, Pair(b"no certificate", b"no key"))

    assert after(broken, NOW) == Stored(first.pair, first.bundle)


def test_other_names_need_another_certificate() -> None:
    first = made()

    renewed = after(first, NOW, names=("other.ns.svc",), may_rotate=False)

    assert renewed is not None
    check(renewed.pair, ("other.ns.svc",), now=NOW, bundle=renewed.bundle)
    assert first.bundle in renewed.bundle, "a replica that still serves the old one is still trusted"


def rsa_key() -> bytes:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def test_what_cannot_be_served_is_refused_by_name_and_replaced() -> None:
    good, other = made(), made()
    cases = [
        (Stored(Pair(b"garbage", good.pair.key), good.bundle), NOW, "tls.crt: not a certificate in PEM"),
        (Stored(Pair(good.pair.certificate, b"garbage"), good.bundle), NOW, "tls.key: not a private key in PEM"),
        (Stored(Pair(good.pair.certificate, other.pair.key), good.bundle), NOW, "tls.key: does not belong to tls.crt"),
        (Stored(Pair(good.pair.certificate, rsa_key()), good.bundle), NOW, "tls.key: does not belong to tls.crt"),
        (Stored(good.pair, other.bundle), NOW, "ca.crt: holds no CA that signed tls.crt"),
        (Stored(good.pair, b"garbage"), NOW, "ca.crt: holds no CA that signed tls.crt"),
        (good, NOW - DAY, "tls.crt: valid 2025-12-31 23:00:00 to 2026-04-01 00:00:00"),
    ]
    for stored, now, sentence in cases:
        with pytest.raises(BadCertificate, match=f"^{sentence}"):
            check(stored.pair, NAMES, now=now, bundle=stored.bundle)
        renewed = after(stored, now, may_rotate=False)
        assert renewed is not None, sentence
        check(renewed.pair, NAMES, now=now, bundle=renewed.bundle)


def test_openssl_trusts_what_the_bundle_says() -> None:
    prepared = after(made(), NOW + 60 * DAY)
    assert prepared is not None

    context = ssl.create_default_context(cadata=prepared.bundle.decode())

    assert context.cert_store_stats()["x509_ca"] == 2
