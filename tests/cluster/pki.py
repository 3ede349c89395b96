"""The cluster's certificate authority, and kubeconfigs signed by it. Elliptic keys: a certificate takes 1 ms."""

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER = "https://10.96.0.1:443"


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a private key and write it as PEM, readable by its owner only."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(*pem))
    return key


def _sign(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(
        now + datetime.timedelta(days=365)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


class Authority:
    """A certificate authority in a directory: `ca.crt`, `ca.key`; made at first use, found again later."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.certificate = directory, directory / "ca.crt"
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hamipy-cluster")])
        directory.mkdir(parents=True, exist_ok=True)
        if not self.certificate.exists():
            key = write_key(directory / "ca.key")
            self.certificate.write_bytes(
                _sign(self._name, key, self._name, key, [(x509.BasicConstraints(ca=True, path_length=None), True)])
            )

    def issue(
        self, name: str, user: str, groups: Sequence[str] = (), *, dns: Sequence[str] = (), ips: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """Certificate and key `<name>.crt`, `<name>.key` for a client, or with `dns` or `ips` for a server too."""
        certificate, key_file = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        key = write_key(key_file)
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, g) for g in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        extensions: list[tuple[x509.ExtensionType, bool]] = [
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), False)
        ]
        names = [*(x509.DNSName(d) for d in dns), *(x509.IPAddress(ipaddress.ip_address(i)) for i in ips)]
        if names:
            extensions.append((x509.SubjectAlternativeName(names), False))
        loaded = serialization.load_pem_private_key((self.directory / "ca.key").read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        certificate.write_bytes(_sign(x509.Name(subject), key, self._name, loaded, extensions))
        return certificate, key_file

    def kubeconfig(self, path: Path, user: str, groups: Sequence[str] = (), *, server: str = SERVER) -> Path:
        """Write a self-contained kubeconfig for a user with these groups."""
        certificate, key = self.issue(user.replace(":", "-"), user, groups)
        ca, crt, private = (base64.b64encode(f.read_bytes()).decode() for f in (self.certificate, certificate, key))
        text = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "hamipy", "cluster": {"server": server, "certificate-authority-data": ca}}],
            "users": [{"name": user, "user": {"client-certificate-data": crt, "client-key-data": private}}],
            "contexts": [{"name": "hamipy", "context": {"cluster": "hamipy", "user": user}}],
            "current-context": "hamipy",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(text))
        return path
