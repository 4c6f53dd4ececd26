"""The folder of a deployment: who gets which files. ``fedsim deploy init`` makes it.

::

    settings.toml         the run's settings; server and clients have equal copies
    .env                  variables of docker-compose.yml
    ca/                   ca.crt, ca.key: signs certificates; no running service needs the key
    server/               superlink.crt/.key, runner.secret, app/ (what Flower ships), nodes/*.pub, keys/ (public)
    proxy/                proxy.crt/.key, nginx.conf: the only listener that clients reach
    admin/                config.toml: Flower's home of whoever starts runs
    clients/0, 1, ...     node.toml, node.key, ca.crt, settings.toml, keys/: one client's, for its machine alone
    helper/               keys/, state/: the second aggregator's (preamble); socket/ with transport = relay
    relay/                node.toml, node.key, ca.crt, settings.toml: the helper's owner's node, with transport = relay
    state/ runs/ out/     what the services write: SuperLink's database, run folders, the clients' models
"""

import re
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedsim.errors import ConfigError, Problem
from fedsim.toml import text_of, toml_of

NODE_FILE = "node.toml"
#: Where the second aggregator listens in ``helper/socket``, with transport = relay.
SOCKET_FILE = "helper.sock"
#: Exit code of a SuperNode whose key the SuperLink does not let in: unknown, or still connected as it seems.
REFUSED = 75
#: Ports of the proxy, which clients connect to, of the SuperLink behind it, and of the second aggregator.
PROXY_PORT, SUPERLINK_PORT, HELPER_PORT = 8443, 8000, 9443


@dataclass(frozen=True, slots=True)
class Deployment:
    """Paths of a deployment's folder.

    Attributes:
        root: the folder.
    """

    root: Path

    @property
    def settings(self) -> Path:
        """The run's settings."""
        return self.root / "settings.toml"

    @property
    def environment(self) -> Path:
        """Variables of docker-compose.yml."""
        return self.root / ".env"

    @property
    def authority(self) -> Path:
        """Certificate and key of the authority."""
        return self.root / "ca"

    @property
    def server(self) -> Path:
        """What SuperLink and ServerApp read."""
        return self.root / "server"

    @property
    def proxy(self) -> Path:
        """What the proxy reads."""
        return self.root / "proxy"

    @property
    def admin(self) -> Path:
        """Flower's home of whoever starts runs."""
        return self.root / "admin"

    @property
    def helper(self) -> Path:
        """What the second aggregator reads."""
        return self.root / "helper"

    @property
    def relay(self) -> Path:
        """What the node of the helper's owner reads, where the server reaches the helper through it."""
        return self.root / "relay"

    @property
    def relays(self) -> int:
        """Number of nodes beside the clients: 1 where the server reaches the helper through one, else 0."""
        return int((self.server / "nodes" / "relay.pub").exists())

    @property
    def runs(self) -> Path:
        """Run folders."""
        return self.root / "runs"

    @property
    def port(self) -> int:
        """Port that clients connect to."""
        return self._port("FEDSIM_PORT", PROXY_PORT)

    @property
    def superlink_port(self) -> int:
        """Port of the SuperLink on the server's host, where it runs without containers."""
        return self._port("FEDSIM_SUPERLINK_PORT", SUPERLINK_PORT)

    def _port(self, name: str, default: int) -> int:
        """Return a port that ``.env`` names.

        Raises:
            ConfigError: the file cannot be read, or names no port.
        """
        try:
            text = self.environment.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(
                [Problem(".env", str(self.environment), f"cannot be read ({error})", "restore it")]
            ) from None
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        found = lines.get(name, str(default)).strip()
        if not re.fullmatch("[0-9]{1,5}", found) or not 0 < int(found) < 65536:
            raise ConfigError([Problem(name, found, "must be a port, 1 to 65535", f"correct {self.environment}")])
        return int(found)

    def client(self, number: int) -> Path:
        """One client's folder."""
        return self.root / "clients" / str(number)

    @classmethod
    def open(cls, root: Path) -> "Deployment":
        """Return the deployment in a folder.

        Raises:
            ConfigError: there is none.
        """
        found = cls(root.resolve())
        if not found.settings.is_file():
            rule, remedy = "holds no settings.toml", "make it with `fedsim deploy init FOLDER`"
            raise ConfigError([Problem("FOLDER", str(root), rule, remedy)])
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One client's settings of its own, ``node.toml``; paths are relative to the file's folder.

    The node of a helper's owner has one as well, with `helper` and without a number.

    Attributes:
        superlink: ``host:port`` of the proxy in front of the SuperLink.
        partition_id: the client's number, from 0; -1 for a node that relays.
        num_partitions: number of clients; 0 for a node that relays.
        app: SHA-256 of the only app that this client executes, 64 hexadecimal digits; empty for any.
        certificate: file of the authority that signed the server's certificate.
        key: file of this client's private key.
        settings: file of the settings that this client agreed to; empty to take the server's.
        keys: folder of the protection's keys; empty where it has none.
        data: file or folder of this client's own data, for the task ``files``; empty for a share of the task's data.
        out: folder that the model is written to; empty to write none.
        helper: Unix socket of the second aggregator, to which this node relays; empty for a client.
    """

    superlink: str
    partition_id: int = -1
    num_partitions: int = 0
    app: str = ""
    certificate: str = "ca.crt"
    key: str = "node.key"
    settings: str = "settings.toml"
    keys: str = ""
    data: str = ""
    out: str = ""
    helper: str = ""

    @property
    def title(self) -> str:
        """What to call the node in sentences."""
        return "the node that relays to the helper" if self.helper else f"client {self.partition_id}"

    def app_config(self) -> dict[str, bool | int | float | str]:
        """Return what the app learns of the node."""
        found: dict[str, bool | int | float | str] = {}
        if not self.helper:
            found = {"partition-id": self.partition_id, "num-partitions": self.num_partitions}
        names = ("settings", "keys", "data", "out", "helper")
        return found | {name: value for name in names if (value := getattr(self, name))}

    def write(self, path: Path) -> None:
        """Write the file."""
        numbers = ("partition_id", "num_partitions") if self.helper else ("helper",)
        path.write_text(tomli_w.dumps({k: v for k, v in asdict(self).items() if k not in numbers}), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, environment: dict[str, str] | None = None) -> "Node":
        """Read ``node.toml`` and make its paths absolute.

        Args:
            folder: that holds it.
            environment: FEDSIM_SUPERLINK, FEDSIM_DATA and FEDSIM_OUT override the file.

        Raises:
            ConfigError: no such file, or a key that is missing, unknown or of the wrong kind; all problems together.
        """
        path = folder / NODE_FILE
        try:
            values = toml_of(text_of(path))
        except FileNotFoundError:
            remedy = "name a client's folder, such as deployment/clients/0"
            raise ConfigError([Problem("FOLDER", str(folder), f"holds no {NODE_FILE}", remedy)]) from None
        except (OSError, ValueError) as error:
            raise ConfigError([Problem(NODE_FILE, str(path), f"cannot be read ({error})", "restore it")]) from None
        for key, name in (("superlink", "FEDSIM_SUPERLINK"), ("data", "FEDSIM_DATA"), ("out", "FEDSIM_OUT")):
            if name in (environment or {}):
                values[key] = (environment or {})[name]
        if problems := list(_problems(values)):
            raise ConfigError(problems)
        node = cls(**values)
        absolute: dict[str, Any] = {
            name: str((folder / value).resolve())
            for name in ("certificate", "key", "settings", "keys", "data", "out", "helper")
            if (value := getattr(node, name))
        }
        return replace(node, **absolute)


def _problems(values: dict[str, object]) -> list[Problem]:
    kinds = {field.name: int if field.type in (int, "int") else str for field in fields(Node)}
    found = [
        Problem(key, str(value), "is unknown in node.toml", "remove it")
        for key, value in values.items()
        if key not in kinds
    ]
    numbers: tuple[str, ...] = ("partition_id", "num_partitions")
    if values.get("helper"):
        rule = "has no place beside helper: the node of a helper's owner is no client"
        found += [Problem(key, str(values[key]), rule, "remove it, or helper") for key in numbers if key in values]
        numbers = ()
    for key, kind in kinds.items():
        if key in ("superlink", *numbers) and values.get(key, "") == "":
            found.append(Problem(key, "not set", "must be given", f"write it into node.toml{_variable(key)}"))
        elif key in values and (not isinstance(values[key], kind) or isinstance(values[key], bool)):
            found.append(Problem(key, repr(values[key]), f"must be of kind {kind.__name__}", "correct node.toml"))
    number, of = values.get("partition_id"), values.get("num_partitions")
    if isinstance(number, int) and isinstance(of, int) and not 0 <= number < of:
        found.append(Problem("partition_id", str(number), f"must lie in [0, {of})", "correct node.toml"))
    return found


def _variable(key: str) -> str:
    return ", or set FEDSIM_SUPERLINK=host:port" if key == "superlink" else ""


__all__ = ["HELPER_PORT", "NODE_FILE", "PROXY_PORT", "REFUSED", "SOCKET_FILE", "SUPERLINK_PORT", "Deployment", "Node"]
