"""Certificates of a deployment: one authority of its own, and a server certificate for each listener.

The authority's private key signs and is then of no use to any running service; it stays with whoever made it.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
SERVER_DAYS = 397
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?")
#: Clocks of a federation's hosts may differ by this much.
_SKEW = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(name: str, start: datetime, days: int = CA_DAYS) -> Issued:
    """Make a certificate authority on P-256.

    Args:
        name: what its certificate calls it.
        start: valid from an hour before, UTC.
        days: how long it is valid.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = _builder(subject, subject, key.public_key(), start, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _sealed(builder, key, key)


def issue(authority: Issued, hosts: Sequence[str], start: datetime, days: int = SERVER_DAYS) -> Issued:
    """Issue a server's certificate.

    Args:
        authority: signs it.
        hosts: host names and IP addresses that it is for, at least one; all of them stand in the certificate.
        start: valid from an hour before, UTC.
        days: how long it is valid; never longer than the authority.

    Raises:
        ValueError: no hosts, or one that is neither a name nor an address.
    """
    if not hosts:
        raise ValueError("a server's certificate for no host: must name one or more; add a host name or address")
    root = x509.load_pem_x509_certificate(authority.certificate)
    signer = serialization.load_pem_private_key(authority.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    builder = _builder(subject, root.subject, key.public_key(), start, days, root.not_valid_after_utc)
    builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return _sealed(builder.add_extension(identifier, critical=False), key, signer)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    start: datetime,
    days: int,
    latest: datetime | None = None,
) -> x509.CertificateBuilder:
    end = start + timedelta(days=days)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start - _SKEW)
    return builder.not_valid_after(min(end, latest) if latest else end)


def _usage(**chosen: bool) -> x509.KeyUsage:
    first = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    names = (*first, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**(dict.fromkeys(names, False) | chosen))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"host {host!r} is neither an address nor an ASCII host name; write it as one")
    return x509.DNSName(host)


def _sealed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey
) -> Issued:
    certificate = builder.sign(signer, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Issued(certificate.public_bytes(serialization.Encoding.PEM), private)


def make_node_key() -> tuple[bytes, bytes]:
    """Make a SuperNode's authentication key: (private, public) on P-384 in OpenSSH's format, as Flower wants it."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read.

    Raises:
        FileExistsError: it is there already.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def utc_now() -> datetime:
    """Return the time of this host's clock in whole seconds, UTC."""
    return datetime.now(UTC).replace(microsecond=0)


__all__ = ["Issued", "issue", "make_authority", "make_node_key", "utc_now", "write_private"]
