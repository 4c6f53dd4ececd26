import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedsim.deploy.certificates import issue, make_authority, make_node_key, utc_now, write_private

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def test_a_server_certificate_names_every_host_and_is_signed_by_the_authority():
    authority = make_authority("test", NOW)
    issued = issue(authority, ["fl.example.org", "10.0.0.7", "::1"], NOW)
    found = x509.load_pem_x509_certificate(issued.certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7", "::1"]
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_server_certificate_does_not_outlive_its_authority():
    authority = make_authority("test", NOW, days=10)
    found = x509.load_pem_x509_certificate(issue(authority, ["a"], NOW, days=100).certificate)
    assert found.not_valid_after_utc == NOW + timedelta(days=10)


def test_tls_of_the_standard_library_takes_them(tmp_path):
    authority = make_authority("test", utc_now())
    issued = issue(authority, ["localhost"], utc_now())
    (tmp_path / "crt").write_bytes(issued.certificate)
    write_private(tmp_path / "key", issued.key)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "crt", tmp_path / "key")
    ssl.create_default_context(cadata=authority.certificate.decode())


@pytest.mark.parametrize("hosts", [[], ["bücher.example"]])
def test_refuses_what_is_no_host(hosts):
    with pytest.raises(ValueError, match="host"):
        issue(make_authority("test", NOW), hosts, NOW)


def test_a_node_key_is_what_flower_takes():
    private, public = make_node_key()
    key = load_ssh_private_key(private, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey) and key.key_size == 384
    assert load_ssh_public_key(public) == key.public_key()
    assert make_node_key()[0] != private


def test_a_private_file_is_its_owners_and_never_overwritten(tmp_path):
    write_private(tmp_path / "key", b"1")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        write_private(tmp_path / "key", b"2")
