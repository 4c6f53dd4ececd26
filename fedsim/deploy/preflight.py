"""What a client needs before it starts: an address, TLS that it can verify, a key, a clock. Each failure is a sentence.

Flower's SuperNode retries for ever and does not say why. This looks once, or until a time is over.
"""

import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPSConnection
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedsim.config import load_config
from fedsim.deploy.folder import Node
from fedsim.doctor import Check
from fedsim.errors import FedsimError

#: Flower accepts a node's signature from 5 s in the future to 305 s in the past of the server's clock.
AHEAD_S, BEHIND_S = 5.0, 305.0
_CONNECT_S = 5.0
_OWN_FILES = ("key", "certificate of the authority", "settings")
_HEALTH, _CONTROL = "/health", "/v1/control/list-nodes"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read ``host:port``; an IPv6 address stands in brackets.

        Raises:
            ValueError: it is something else.
        """
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"address {text!r}: must be host:port, such as fl.example.org:8443; correct node.toml")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def examine(node: Node, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> list[Check]:
    """Look at everything; a check that needs an earlier one is left out where that failed.

    Args:
        node: the client's settings, paths absolute.
        now: this host's clock.
    """
    checks = [check_key(Path(node.key)), check_authority(Path(node.certificate), now())]
    if node.settings:
        checks.append(check_settings(Path(node.settings)))
    if node.helper:
        checks.append(check_helper(Path(node.helper)))
    try:
        address = Address.parse(node.superlink)
    except ValueError as error:
        return [*checks, Check("address", "failed", str(error), 'write superlink = "host:port" into node.toml')]
    checks.append(check_address(address))
    if any(check.status == "failed" for check in checks):
        return checks
    tls, date = check_tls(address, Path(node.certificate))
    checks.append(tls)
    if date is not None:
        checks.append(check_clock(date, now()))
    if tls.status == "ok":
        checks.append(check_exposure(address, Path(node.certificate)))
    return checks


def wait_until_ready(node: Node, limit_s: float, tell: Callable[[str], None]) -> list[Check]:
    """Examine again and again until nothing has failed or the time is over; tell each new sentence once.

    Returns:
        The last checks.
    """
    end_s, pause_s, told = time.monotonic() + limit_s, 0.25, ""
    while True:
        checks = examine(node)
        failed = [check for check in checks if check.status == "failed"]
        text = "; ".join(check.detail for check in failed)
        if text and text != told:
            tell(text)
            told = text
        # What lies in this client's own files does not become right by waiting.
        hopeless = any(check.name in _OWN_FILES for check in failed)
        if not failed or hopeless or time.monotonic() >= end_s:
            return checks
        time.sleep(min(pause_s, max(0.0, end_s - time.monotonic())))
        pause_s = min(2 * pause_s, 4.0)


def check_key(path: Path) -> Check:
    """Check the node's private key: there, its owner's alone, on the curve that Flower takes."""
    name, remedy = "key", "make it with `fedsim deploy init` and copy the client's folder"
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except OSError as error:
        return Check(name, "failed", f"{path} cannot be read ({error.strerror})", remedy)
    if mode & 0o077:
        detail = f"{path} has mode {mode & 0o777:04o}: a private key must be its owner's alone"
        return Check(name, "failed", detail, f"chmod 600 {path}")
    try:
        key = load_ssh_private_key(data, None)
    except (ValueError, TypeError) as error:
        return Check(name, "failed", f"{path} is no OpenSSH private key ({error})", remedy)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return Check(name, "failed", f"{path} is no elliptic-curve key: Flower takes ECDSA keys only", remedy)
    return Check(name, "ok", f"ECDSA, {key.key_size} bits")


def check_authority(path: Path, now: datetime) -> Check:
    """Check the authority's certificate."""
    name = "certificate of the authority"
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        return Check(name, "failed", f"{path} cannot be read ({error.strerror})", "copy ca.crt of the deployment")
    except (ValueError, x509.InvalidVersion) as error:
        return Check(name, "failed", f"{path} is no certificate in PEM ({error})", "copy ca.crt of the deployment")
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        when = f"from {found.not_valid_before_utc:%Y-%m-%d} to {found.not_valid_after_utc:%Y-%m-%d}"
        return Check(name, "failed", f"{path} is valid {when} only", "renew it, or set this host's clock")
    return Check(name, "ok", f"valid until {found.not_valid_after_utc:%Y-%m-%d}")


def check_settings(path: Path) -> Check:
    """Check that the settings to which the client agreed are some that this version knows."""
    remedy = "install the version of fedsim that the server has, or copy the client's folder again"
    try:
        load_config(path)
    except FedsimError as error:
        return Check("settings", "failed", f"{path.name}: {' '.join(str(error).split())}", remedy)
    return Check("settings", "ok", "known to this version")


def check_helper(path: Path) -> Check:
    """Check that the second aggregator, to which this node relays, listens and lets this user in."""
    name, remedy = "helper", "start it here with `fedsim helper serve --listen SOCKET`, and --group for another user's"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
        plain.settimeout(_CONNECT_S)
        try:
            plain.connect(str(path))
        except OSError as error:
            return Check(name, "failed", f"no helper that this node may use listens at {path} ({error})", remedy)
    return Check(name, "ok", f"listens at {path}")


def check_address(address: Address) -> Check:
    """Check that the name resolves and something listens."""
    try:
        with socket.create_connection((address.host, address.port), timeout=_CONNECT_S):
            return Check("address", "ok", f"{address} answers")
    except socket.gaierror as error:
        detail, remedy = f"{address.host} is no known host ({error.strerror})", "correct the name, or the host's DNS"
    except TimeoutError:
        detail, remedy = f"{address} does not answer within {_CONNECT_S:g} s", "open the port in the firewalls between"
    except OSError as error:
        detail, remedy = f"{address} refuses connections ({error.strerror})", "start the server, or correct the port"
    return Check("address", "failed", detail, remedy)


def check_tls(address: Address, authority: Path) -> tuple[Check, datetime | None]:
    """Check that the server's certificate is the authority's and for this name; return the server's time as well."""
    name = "TLS"
    try:
        response = _get(address, authority, _HEALTH)
    except ssl.SSLCertVerificationError as error:
        reason = f"{address}: the server's certificate is not accepted ({error.verify_message})"
        return Check(name, "failed", reason, _tls_remedy(error)), None
    except ssl.SSLError as error:
        return Check(name, "failed", f"{address} speaks no TLS ({error.reason})", "connect to the proxy's port"), None
    except (OSError, HTTPException) as error:
        detail = f"{address} broke off ({error or type(error).__name__})"
        return Check(name, "failed", detail, "look at the server's log"), None
    status, date = response
    parsed = parsedate_to_datetime(date) if date else None
    if status != 200:
        detail = f"{address} answers {status} to {_HEALTH}"
        return Check(name, "failed", detail, "connect to the proxy in front of the SuperLink"), parsed
    return Check(name, "ok", "the server's certificate is the authority's"), parsed


def _tls_remedy(error: ssl.SSLCertVerificationError) -> str:
    text = error.verify_message.lower()
    if "expired" in text or "not yet valid" in text:
        return "renew the server's certificate, or set the clocks"
    if "mismatch" in text or "not valid for" in text:
        return "make the server's certificate for this name: `fedsim deploy init --host NAME`"
    return "ca.crt must be that of this server's deployment; copy the client's folder again"


def _get(address: Address, authority: Path, path: str) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=str(authority))
    connection = HTTPSConnection(address.host, address.port, timeout=_CONNECT_S, context=context)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers.get("date", "")
    finally:
        connection.close()


def check_clock(server: datetime, here: datetime) -> Check:
    """Check that the server will accept signatures with this host's time."""
    ahead_s = (here - server).total_seconds()
    # The server's Date has whole seconds.
    if -BEHIND_S + 5 < ahead_s < AHEAD_S:
        return Check("clock", "ok", f"{abs(ahead_s):.0f} s from the server's")
    side = "ahead of" if ahead_s > 0 else "behind"
    detail = f"this host's clock is {abs(ahead_s):.0f} s {side} the server's: at most {AHEAD_S:g} s ahead and "
    return Check("clock", "failed", f"{detail}{BEHIND_S:g} s behind are accepted", "synchronise both with NTP")


def check_exposure(address: Address, authority: Path) -> Check:
    """Check that the server does not offer its Control API, with which anybody runs code on all clients, out here."""
    try:
        status, _ = _get(address, authority, _CONTROL)
    except (OSError, HTTPException):
        status = 404
    if status == 404:
        return Check("exposure", "ok", "the server shows clients its Fleet API only")
    detail = f"{address} answers {status} to {_CONTROL}: whoever reaches it can run code on all clients"
    return Check("exposure", "warning", detail, "put the proxy of `fedsim deploy` in front of the SuperLink")


__all__ = ["Address", "check_address", "check_helper", "examine", "wait_until_ready"]
