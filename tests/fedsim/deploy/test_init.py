"""Each party gets what it needs and nothing of another's: every secret is searched for in every other folder."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from crypto.keys import KeyBundle
from fedsim.cli import app
from fedsim.config import load_config
from fedsim.deploy.folder import Deployment, Node
from fedsim.deploy.init import initialise
from fedsim.errors import ConfigError

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=3", "federation.rounds=2"]
PROTECTIONS = ("plain", "bfv", "rlwe-threshold", "preamble", "relay")


@pytest.fixture(scope="module", params=PROTECTIONS)
def made(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("made") / request.param
    own = {"relay": ["protection.name=preamble", "protection.transport=relay"]}
    return initialise(place, load_config(None, [*SMALL, *own.get(request.param, [f"protection.name={request.param}"])]))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def secrets(folder: Path) -> list[bytes]:
    """Return the secret bytes of all keys in a folder: ours, PEM bodies, and raw ones."""
    found = []
    for path, data in contents(folder).items():
        if path.suffix == ".key" and data[:4] == b"FSKY":
            if secret := KeyBundle.decode(data).secret:
                found.append(secret)
        elif b"PRIVATE KEY" in data:
            found.append(data.partition(b"PRIVATE KEY-----")[2].partition(b"-----END")[0].strip())
        elif path.name == "runner.secret":
            found.append(data)
    return found


def test_no_secret_of_one_party_lies_with_another(made):
    root = made.deployment.root
    parties = {"authority": root / "ca", "proxy": root / "proxy", "server": root / "server", "admin": root / "admin"}
    if (root / "helper").exists():
        parties["helper"] = root / "helper"
    if (root / "relay").exists():
        parties["relay"] = root / "relay"
    own = {name: secrets(folder) for name, folder in parties.items()}
    assert all(own[name] for name in ("authority", "proxy", "server"))
    for number in range(3):
        own[f"client {number}"] = secrets(made.deployment.client(number))
        parties[f"client {number}"] = made.deployment.client(number)
    for name, held in own.items():
        for other, folder in parties.items():
            if name == other or (name.startswith("client") and other.startswith("client")):
                continue
            for path, data in contents(folder).items():
                assert not any(secret in data for secret in held), f"{name}'s secret lies in {path}"


def test_a_client_holds_the_common_key_and_its_own_share_of_a_committees(made):
    name = made.deployment.root.name
    for number in range(3):
        folder = made.deployment.client(number) / "keys"
        roles = {path.name for path in folder.iterdir()} if folder.exists() else set()
        assert roles == {"plain": set(), "rlwe-threshold": {"clients", f"committee-{number}"}}.get(name, {"clients"})


def test_the_node_of_a_helpers_owner_has_its_socket_and_no_key_of_it(made):
    root = made.deployment.root
    if root.name != "relay":
        assert not (root / "relay").exists() and made.deployment.relays == 0
        return
    node = Node.read(root / "relay")
    assert node.app_config() == {"helper": str(root / "helper/socket/helper.sock"), "settings": node.settings}
    assert node.title == "the node that relays to the helper" and made.deployment.relays == 1
    assert {path.name for path in (root / "relay").iterdir()} == {"node.toml", "node.key", "ca.crt", "settings.toml"}
    assert not list((root / "server").rglob("helper.address"))
    assert "COMPOSE_PROFILES=preamble,relay" in made.deployment.environment.read_text()


def test_a_node_that_relays_has_no_number(tmp_path):
    (tmp_path / "node.toml").write_text('superlink = "a:1"\nhelper = "s"\npartition_id = 0\n')
    with pytest.raises(ConfigError, match="partition_id = 0: has no place beside helper"):
        Node.read(tmp_path)
    (tmp_path / "node.toml").write_text('superlink = "a:1"\nhelper = ""\n')
    with pytest.raises(ConfigError, match="partition_id = not set: must be given"):
        Node.read(tmp_path)


def test_each_client_has_an_identity_of_its_own(made):
    keys = {(made.deployment.client(n) / "node.key").read_bytes() for n in range(3)}
    nodes = [Node.read(made.deployment.client(n)) for n in range(3)]
    assert len(keys) == 3 and [node.partition_id for node in nodes] == [0, 1, 2]
    assert {node.app for node in nodes} == {made.app_sha256} and len(made.app_sha256) == 64
    assert all(Path(node.settings).read_text() == made.deployment.settings.read_text() for node in nodes)


def test_secret_files_are_their_owners_alone(made):
    for path, data in contents(made.deployment.root).items():
        if b"PRIVATE KEY" in data or path.suffix in (".key", ".secret"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_ports_and_hosts_reach_the_files(tmp_path):
    made = initialise(tmp_path / "it", load_config(None, SMALL), ["fl.example.org", "10.0.0.7"], 9000, 9001)
    assert Node.read(made.deployment.client(0)).superlink == "fl.example.org:9000"
    found = Deployment.open(tmp_path / "it")
    assert (found.port, found.superlink_port) == (9000, 9001)
    assert "127.0.0.1:9001" in (found.admin / "config.toml").read_text()


def test_the_app_is_the_same_every_time(tmp_path):
    one, two = (initialise(tmp_path / name, load_config(None, SMALL)).app_sha256 for name in "ab")
    assert one == two


@pytest.mark.parametrize(
    ("settings", "hosts", "message"),
    [
        (["output.name=mine"], [], "a deployment has many"),
        ([], ["bücher.example"], "ASCII host name"),
        ([], ["a b"], "ASCII host name"),
        ([], ["https://fl.example.org"], "ASCII host name"),
        ([], ["-x.example.org"], "ASCII host name"),
    ],
)
def test_refuses_what_cannot_be_deployed(tmp_path, settings, hosts, message):
    with pytest.raises(ConfigError, match=message):
        initialise(tmp_path / "it", load_config(None, [*SMALL, *settings]), hosts)


def test_never_overwrites_a_folder(tmp_path):
    (tmp_path / "something").write_text("")
    with pytest.raises(ConfigError, match="holds something already"):
        initialise(tmp_path, load_config(None, SMALL))


@pytest.mark.parametrize(
    ("arguments", "clients"),
    [
        (["settings.toml"], 2),
        (["settings.toml", "--clients", "4"], 4),
        (["settings.toml", "--clients", "4", "--set", "federation.num_clients=1"], 1),
        (["--set", "task.name=digits", "--set", "model.name=mlp"], 3),
    ],
)
def test_the_number_of_clients_is_the_settings_unless_one_is_given(tmp_path, arguments, clients, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = '[task]\nname = "digits"\n[model]\nname = "mlp"\n[federation]\nnum_clients = 2\n'
    Path("settings.toml").write_text(text)
    done = CliRunner().invoke(app, ["deploy", "init", "it", *arguments])
    assert done.exit_code == 0, done.output
    assert len(list(Path("it/clients").iterdir())) == clients
    assert load_config(Path("it/settings.toml")).federation.num_clients == clients


@pytest.mark.parametrize(
    "arguments",
    [["init", "x", "--port", "0"], ["init", "x", "--port", "65536"], ["init", "x", "--superlink-port", "-1"]]
    + [["init", "x", "--clients", "0"]]
    + [["run", "x", "--direct", "--wait", value] for value in ("nan", "inf", "-1")],
)
def test_refuses_ports_and_waits_that_are_none(tmp_path, arguments, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["deploy", *arguments])
    assert done.exit_code == 2 and not any(tmp_path.iterdir())
