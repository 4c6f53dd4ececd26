"""Key bundles and files."""

import os
import stat
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import InputError, IntegrityError, KeyMismatch, WireError
from crypto.keys import KeyBundle, committee, key_id, key_path, load_key, save_keys, without_secret

BUNDLE = KeyBundle(
    role="clients", scheme="bfv", params_hash=bytes(range(16)), key_id=b"12345678", public=b"pub", secret=b"s3cret"
)
ROLES = st.sampled_from(["clients", "helper", "committee-0", "committee-12"])


@given(role=ROLES, public=st.binary(max_size=40), secret=st.binary(max_size=40))
def test_encode_and_decode_agree(role: str, public: bytes, secret: bytes) -> None:
    bundle = replace(BUNDLE, role=role, public=public, secret=secret)
    assert KeyBundle.decode(bundle.encode()) == bundle


@pytest.mark.parametrize("show", [repr, str, "{}".format])
def test_no_representation_shows_key_bytes(show) -> None:
    text = show(BUNDLE)
    assert "s3cret" not in text and "[redacted]" in text and BUNDLE.key_id.hex() in text
    assert "[redacted]" not in show(without_secret(BUNDLE))


def test_a_server_bundle_holds_no_secret() -> None:
    with pytest.raises(InputError, match="6 secret bytes in a server bundle: the server must hold none"):
        replace(BUNDLE, role="server")
    assert without_secret(BUNDLE).secret == b""


@pytest.mark.parametrize("role", ["", "Server", "committee", "committee-01", "../clients", "committee-0/..", "client"])
def test_refuses_unknown_roles(role: str) -> None:
    with pytest.raises(InputError, match="key role"):
        replace(BUNDLE, role=role)


@pytest.mark.parametrize("scheme", ["", "a/b", "..", "UPPER", "elevenchars"])
def test_refuses_unusable_scheme_names(scheme: str) -> None:
    with pytest.raises(InputError, match="key scheme"):
        replace(BUNDLE, scheme=scheme)


def test_refuses_a_key_id_of_zeros() -> None:
    with pytest.raises(InputError, match="not all zero"):
        replace(BUNDLE, key_id=bytes(8))


def test_committee_names_members() -> None:
    assert replace(BUNDLE, role=committee(3)).role == "committee-3"


@given(st.data())
def test_every_damaged_file_is_refused(data: st.DataObject) -> None:
    good = BUNDLE.encode()
    kind = data.draw(st.sampled_from(["flip", "cut", "append"]))
    if kind == "flip":
        at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
        bad = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
    elif kind == "cut":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    else:
        bad = good + data.draw(st.binary(min_size=1, max_size=9))
    with pytest.raises(WireError):
        KeyBundle.decode(bad)


def test_damage_in_the_key_is_an_integrity_error() -> None:
    with pytest.raises(IntegrityError, match="damaged"):
        KeyBundle.decode(BUNDLE.encode()[:-1] + b"?")


def test_enormous_lengths_are_refused() -> None:
    bad = bytearray(BUNDLE.encode())
    bad[55:63] = struct.pack("<Q", 2**64 - 1)
    with pytest.raises(WireError, match="the file says 18446744073709551615"):
        KeyBundle.decode(bytes(bad))


def test_key_ids_depend_on_everything() -> None:
    base = key_id("bfv", bytes(16), b"public")
    assert len(base) == 8
    others = {key_id("ckks", bytes(16), b"public"), key_id("bfv", b"1" * 16, b"public"), key_id("bfv", bytes(16), b"")}
    assert len(others | {base}) == 4


def test_require_names_what_differs() -> None:
    BUNDLE.require("bfv", BUNDLE.params_hash, BUNDLE.key_id)
    with pytest.raises(KeyMismatch, match="scheme 'bfv': this run uses 'ckks'"):
        BUNDLE.require("ckks", BUNDLE.params_hash)
    with pytest.raises(KeyMismatch, match="parameters 00010203: this run uses 00000000"):
        BUNDLE.require("bfv", bytes(16))
    with pytest.raises(KeyMismatch, match="one key set"):
        BUNDLE.require("bfv", BUNDLE.params_hash, b"87654321")


class TestFiles:
    """One folder a role, closed to others."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        old = os.umask(0)
        try:
            save_keys(tmp_path / "keys", [BUNDLE, without_secret(BUNDLE)])
        finally:
            os.umask(old)
        return tmp_path / "keys"

    @pytest.mark.report("U19")
    def test_each_role_has_a_folder_closed_to_others(self, root: Path) -> None:
        assert sorted(p.name for p in root.iterdir()) == ["clients", "server"]
        for role in ("clients", "server"):
            assert stat.S_IMODE((root / role).stat().st_mode) == 0o700
            assert stat.S_IMODE((root / role / "bfv.key").stat().st_mode) == 0o600

    def test_what_was_saved_is_loaded(self, root: Path) -> None:
        assert load_key(root, "clients", "bfv") == BUNDLE
        assert load_key(root, "server", "bfv") == without_secret(BUNDLE)

    def test_the_servers_folder_holds_no_secret_byte(self, root: Path) -> None:
        assert not any(b"s3cret" in p.read_bytes() for p in (root / "server").rglob("*"))

    def test_keys_are_never_overwritten(self, root: Path) -> None:
        with pytest.raises(FileExistsError, match="never overwritten"):
            save_keys(root, [replace(BUNDLE, role="helper"), BUNDLE])
        assert not (root / "helper").exists()

    def test_a_secret_that_others_may_read_is_refused(self, root: Path) -> None:
        key_path(root, "clients", "bfv").chmod(0o640)
        with pytest.raises(PermissionError, match="mode 0640.*chmod 600"):
            load_key(root, "clients", "bfv")

    def test_a_missing_key_names_the_command(self, root: Path) -> None:
        with pytest.raises(FileNotFoundError, match="fedsim keys"):
            load_key(root, "helper", "bfv")

    def test_a_key_under_another_roles_name_is_refused(self, root: Path) -> None:
        (root / "helper").mkdir()
        key_path(root, "clients", "bfv").rename(key_path(root, "helper", "bfv"))
        with pytest.raises(KeyMismatch, match="holds the 'clients' key"):
            load_key(root, "helper", "bfv")
