"""Makes a deployment's folder: certificates, node keys, the protection's keys, one folder for each party."""

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from crypto.keys import CLIENTS, HELPER, SERVER, KeyBundle, save_keys
from fedsim.config import PreambleConfig, RunConfig, to_run_config, to_toml, with_values
from fedsim.deploy.app import make_app
from fedsim.deploy.certificates import issue, make_authority, make_node_key, utc_now, write_private
from fedsim.deploy.folder import HELPER_PORT, NODE_FILE, PROXY_PORT, SOCKET_FILE, SUPERLINK_PORT, Deployment, Node
from fedsim.deploy.proxy import Proxy
from fedsim.errors import ConfigError, Problem
from fedsim.helper_daemon import TASK_FILE
from fedsim.protections import helper_task
from fedsim.site import secure_plan, site_of
from strategies import preamble
from strategies.helper_link import ADDRESS_FILE, parse_address
from strategies.helper_tls import write_identities
from strategies.keyed import KeyedProtection
from strategies.preamble import PreambleProtection

#: Names by which the services of docker-compose.yml and those on one host find each other.
_LOCAL = ("localhost", "127.0.0.1")
#: User of the containers where root made the folder: no container works as root.
_UNPRIVILEGED = 10001
_SECRETS = "/run/secrets"


@dataclass(frozen=True, slots=True)
class Made:
    """What was made.

    Attributes:
        deployment: the folder.
        app_sha256: of the one app that the clients accept.
        key_id: of the protection's key, empty without one.
    """

    deployment: Deployment
    app_sha256: str
    key_id: str


def initialise(
    root: Path,
    config: RunConfig,
    hosts: Sequence[str] = (),
    port: int = PROXY_PORT,
    superlink_port: int = SUPERLINK_PORT,
    helper: str = f"tls://helper:{HELPER_PORT}",
    limits: Mapping[str, str] | None = None,
) -> Made:
    """Make a deployment's folder.

    Args:
        root: must not exist, or be empty.
        config: the run's settings; ``federation.num_clients`` clients get a folder each.
        hosts: names and addresses of the server besides ``localhost`` and those in docker-compose.yml; clients connect
            to the first.
        port: that clients connect to.
        superlink_port: of the SuperLink on the server's host, where it runs without containers.
        helper: where the server finds the second aggregator, under preamble; default: the service of that name.
        limits: variables more of docker-compose.yml, see :mod:`fedsim.deploy.limits`.

    Raises:
        ConfigError: `root` holds something, a host is no name, or `output` names a run.
        BudgetExceeded: the protection does not carry the run.
    """
    _check(root, config)
    bundles = _bundles(config)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    deployment = Deployment(root.resolve())
    deployment.settings.write_text(to_toml(_public(config)), encoding="utf-8")
    _certificates(deployment, hosts)
    (deployment.server / "keys").mkdir(mode=0o700)
    app = make_app(deployment.server / "app")
    write_private(deployment.server / "runner.secret", secrets.token_bytes(32))
    address = f"{hosts[0] if hosts else 'localhost'}:{port}"
    _clients(deployment, config, address, app)
    if _relays(config):
        _relay(deployment, address, app)
    _protection_keys(deployment, config, bundles, helper)
    _admin(deployment.admin, superlink_port)
    for name in ("state", "runs", "out"):
        (root / name).mkdir()
    _environment(deployment, config, port, superlink_port, limits or {})
    _hand_over(deployment)
    return Made(deployment, app, bundles[0].key_id.hex() if bundles else "")


def _check(root: Path, config: RunConfig) -> None:
    problems = []
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        problems.append(Problem("FOLDER", str(root), "holds something already", "name a new folder"))
    if config.output.name is not None:
        rule = "names one run, and a deployment has many"
        problems.append(Problem("output.name", f'"{config.output.name}"', rule, "leave it out"))
    if problems:
        raise ConfigError(problems)


def _public(config: RunConfig) -> RunConfig:
    """Return the settings as all parties agree to them: nothing of where files lie or which machine runs what."""
    return with_values(config, {"output.folder": "runs"})


def _certificates(deployment: Deployment, hosts: Sequence[str]) -> None:
    now = utc_now()
    authority = make_authority("fedsim deployment", now)
    deployment.authority.mkdir(mode=0o700)
    (deployment.authority / "ca.crt").write_bytes(authority.certificate)
    write_private(deployment.authority / "ca.key", authority.key)
    listeners = {"superlink": (deployment.server, ()), "proxy": (deployment.proxy, hosts)}
    for name, (folder, more) in listeners.items():
        folder.mkdir(mode=0o700)
        try:
            issued = issue(authority, [*dict.fromkeys([*more, name, *_LOCAL])], now)
        except ValueError as error:
            raise ConfigError([Problem("--host", " ".join(hosts), str(error), "correct it")]) from None
        (folder / "ca.crt").write_bytes(authority.certificate)
        (folder / f"{name}.crt").write_bytes(issued.certificate)
        write_private(folder / f"{name}.key", issued.key)
    proxy = Proxy(
        listen=f"0.0.0.0:{PROXY_PORT}",
        upstream=f"superlink:{SUPERLINK_PORT}",
        certificate=f"{_SECRETS}/proxy.crt",
        key=f"{_SECRETS}/proxy.key",
        authority=f"{_SECRETS}/ca.crt",
        resolver="127.0.0.11",
    )
    (deployment.proxy / "nginx.conf").write_text(proxy.config(), encoding="utf-8")


def _node(deployment: Deployment, folder: Path, name: str) -> None:
    """Make a node's folder but for its settings, and let the server know its public key."""
    folder.mkdir(mode=0o700, parents=True)
    private, public = make_node_key()
    write_private(folder / "node.key", private)
    (deployment.server / "nodes" / f"{name}.pub").write_bytes(public)
    shutil.copy(deployment.authority / "ca.crt", folder / "ca.crt")
    shutil.copy(deployment.settings, folder / "settings.toml")


def _clients(deployment: Deployment, config: RunConfig, address: str, app: str) -> None:
    count = config.federation.num_clients
    (deployment.server / "nodes").mkdir()
    for number in range(count):
        folder = deployment.client(number)
        _node(deployment, folder, str(number))
        keys = "" if config.protection.name == "plain" else "keys"
        node = Node(
            superlink=address, partition_id=number, num_partitions=count, app=app, keys=keys, out=f"../../out/{number}"
        )
        node.write(folder / NODE_FILE)


def _relay(deployment: Deployment, address: str, app: str) -> None:
    """Make the node of the helper's owner, which has the helper's socket and none of its keys."""
    _node(deployment, deployment.relay, "relay")
    node = Node(superlink=address, app=app, helper=f"../{deployment.helper.name}/socket/{SOCKET_FILE}")
    node.write(deployment.relay / NODE_FILE)


def _relays(config: RunConfig) -> bool:
    return isinstance(config.protection, PreambleConfig) and config.protection.transport == "relay"


def _bundles(config: RunConfig) -> tuple[KeyBundle, ...]:
    """Make the protection's keys; refuses what does not fit before any file exists."""
    site = site_of(to_run_config(config))
    if isinstance(site.protection, KeyedProtection):
        return site.protection.describe(secure_plan(site)).make_keys()
    if isinstance(site.protection, PreambleProtection):
        helper_task(site.protection, secure_plan(site))
        return preamble.make_keys()
    return ()


def _protection_keys(
    deployment: Deployment, config: RunConfig, bundles: Sequence[KeyBundle], helper_address: str
) -> None:
    """Give each party its own keys and no other."""
    for bundle in bundles:
        if bundle.role == SERVER:
            save_keys(deployment.server / "keys", [bundle])
        elif bundle.role == HELPER:
            save_keys(deployment.helper / "keys", [bundle])
        elif bundle.role == CLIENTS:
            for number in range(config.federation.num_clients):
                save_keys(deployment.client(number) / "keys", [bundle])
        else:
            save_keys(deployment.client(int(bundle.role.rpartition("-")[2])) / "keys", [bundle])
    site = site_of(to_run_config(_public(config)))
    if isinstance(site.protection, PreambleProtection):
        own, leader = deployment.helper / "keys" / HELPER, deployment.server / "keys" / SERVER
        helper_task(site.protection, secure_plan(site)).write(own / TASK_FILE)
        write_identities(own, leader)
        parse_address(helper_address)
        if not site.protection.relayed:
            (deployment.server / "keys" / ADDRESS_FILE).write_text(helper_address, encoding="utf-8")
        for name in ("state", "socket"):
            (deployment.helper / name).mkdir(mode=0o700)


def _admin(folder: Path, port: int) -> None:
    folder.mkdir(mode=0o700)
    connections = {
        "default": "compose",
        "compose": _connection(f"superlink:{SUPERLINK_PORT}", "/run/fedsim/server/ca.crt"),
        "direct": _connection(f"127.0.0.1:{port}", str(folder.parent / "server" / "ca.crt")),
    }
    (folder / "config.toml").write_text(tomli_w.dumps({"superlink": connections}), encoding="utf-8")


def _connection(address: str, authority: str) -> dict[str, str]:
    return {"address": address, "root-certificates": authority}


def _environment(
    deployment: Deployment, config: RunConfig, port: int, superlink_port: int, limits: Mapping[str, str]
) -> None:
    user, group = _owner()
    values = {
        "FEDSIM_DEPLOYMENT": deployment.root,
        "FEDSIM_UID": user,
        "FEDSIM_GID": group,
        "FEDSIM_CLIENTS": config.federation.num_clients,
        "FEDSIM_PORT": port,
        "FEDSIM_SUPERLINK_PORT": superlink_port,
        "COMPOSE_PROFILES": "preamble" if config.protection.name == "preamble" else "",
        **limits,
    }
    if _relays(config):
        values |= {
            "COMPOSE_PROFILES": "preamble,relay",
            "FEDSIM_HELPER_LISTEN": f"unix:/run/fedsim/socket/{SOCKET_FILE}",
        }
    deployment.environment.write_text("".join(f"{name}={value}\n" for name, value in values.items()), encoding="utf-8")


def _owner() -> tuple[int, int]:
    return (os.getuid(), os.getgid()) if os.getuid() else (_UNPRIVILEGED, _UNPRIVILEGED)


def _hand_over(deployment: Deployment) -> None:
    """Give what services read to the containers' user where root made it; the authority's key stays root's."""
    if os.getuid():
        return
    user, group = _owner()
    os.chown(deployment.root, user, group)
    for path in deployment.root.rglob("*"):
        if deployment.authority not in (path, *path.parents):
            os.chown(path, user, group)


__all__ = ["Made", "initialise"]
