"""TLS between leader and helper: each side holds one key and one pinned certificate of the other.

There is no authority: the certificates sign themselves, and each side trusts exactly the one that lies in its folder of
keys. Whoever has neither can open no connection, so a stranger cannot spend the helper's rounds. What the helper
promises does not depend on it: it would refuse the same things from anybody.

========================== =========================================
file in the role's folder  holds
========================== =========================================
``helper/tls.pem``         the helper's TLS key and certificate
``helper/leader.pem``      the leader's certificate
``server/tls.pem``         the leader's TLS key and certificate
``server/helper.pem``      the helper's certificate
========================== =========================================

These keys authenticate and encrypt the link alone; they open no report.
"""

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from strategies.errors import HelperLost

LEADER_NAME, HELPER_NAME = "fedsim-leader", "fedsim-helper"
OWN_FILE, LEADER_FILE, HELPER_FILE = "tls.pem", "leader.pem", "helper.pem"
#: How long the certificates are valid; new ones are made with the next set of keys.
DAYS = 730
_SKEW = timedelta(hours=1)


def make_identity(name: str, days: int = DAYS) -> tuple[bytes, bytes]:
    """Return a fresh P-256 key and its self-signed certificate for a name, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(key, hashes.SHA256())
    )
    form, clear = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return key.private_bytes(pem, form, clear), certificate.public_bytes(pem)


def write_identities(helper: Path, server: Path) -> list[Path]:
    """Make both ends' keys and certificates, and give each folder its own and the other's certificate.

    Args:
        helper, server: the two roles' own folders (``keys/helper``, ``keys/server``), made if need be.

    Raises:
        FileExistsError: a file is there already; keys are never overwritten.
    """
    helper_key, helper_certificate = make_identity(HELPER_NAME)
    leader_key, leader_certificate = make_identity(LEADER_NAME)
    contents = {
        helper / OWN_FILE: helper_key + helper_certificate,
        helper / LEADER_FILE: leader_certificate,
        server / OWN_FILE: leader_key + leader_certificate,
        server / HELPER_FILE: helper_certificate,
    }
    for path, content in contents.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return list(contents)


def helper_context(folder: Path) -> ssl.SSLContext:
    """Return the helper's side of TLS 1.3: only the pinned leader gets in.

    Args:
        folder: the helper's own folder of keys.

    Raises:
        FileNotFoundError: a file is missing; names it.
    """
    return _context(ssl.PROTOCOL_TLS_SERVER, folder, LEADER_FILE)


def leader_context(folder: Path) -> ssl.SSLContext:
    """Return the leader's side of TLS 1.3: it speaks to the pinned helper alone.

    Args:
        folder: the server's own folder of keys.

    Raises:
        HelperLost: a file is missing or no certificate; names it.
    """
    try:
        return _context(ssl.PROTOCOL_TLS_CLIENT, folder, HELPER_FILE)
    except (FileNotFoundError, ssl.SSLError) as error:
        raise HelperLost(f"no TLS to the helper: {error}; copy the 'server' folder of `fedsim keys` again") from error


def _context(protocol: int, folder: Path, pinned: str) -> ssl.SSLContext:
    for name in (OWN_FILE, pinned):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is not there: make keys with `fedsim keys` and copy the folder")
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / OWN_FILE)
    context.load_verify_locations(folder / pinned)
    return context


__all__ = [
    "DAYS",
    "HELPER_FILE",
    "HELPER_NAME",
    "LEADER_FILE",
    "LEADER_NAME",
    "OWN_FILE",
    "helper_context",
    "leader_context",
    "make_identity",
    "write_identities",
]
