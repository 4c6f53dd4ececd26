"""What docker-compose.yml promises, read from the file; `tests/deploy/compose/run.sh` runs it."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from fedsim.config import load_config
from fedsim.deploy.init import initialise

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = yaml.safe_load(TEXT)
SERVICES = COMPOSE["services"]
RUNNING = {name: s for name, s in SERVICES.items() if name not in ("admin", "keys")}


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_more_rights_than_it_needs(name):
    service = SERVICES[name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["init"]
    assert service["user"] == "${FEDSIM_UID}:${FEDSIM_GID}"
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "network_mode", "pid", "cap_add"} & set(service)


@pytest.mark.report("U79", "every service has a health check and a memory limit")
@pytest.mark.report("U80", "services restart a bounded number of times")
@pytest.mark.parametrize("name", RUNNING)
def test_services_have_a_health_check_limits_and_do_not_start_for_ever(name):
    service = RUNNING[name]
    assert service["healthcheck"]["test"] and service["deploy"]["resources"]["limits"]["memory"]
    assert re.fullmatch(r"on-failure:\d", service["restart"])


def test_clients_reach_the_proxy_alone():
    assert SERVICES["client"]["networks"] == ["fleet"]
    assert SERVICES["relay"]["networks"] == ["fleet"]
    others = {name for name, service in SERVICES.items() if "fleet" in service["networks"]} - {"client", "relay"}
    assert others == {"proxy"}
    assert all(COMPOSE["networks"][name]["internal"] for name in ("server", "fleet", "helper"))
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]


def places(name):
    """Return the deployment's folders and secrets that a service can read."""
    volumes = [
        volume.split(":")[0].removeprefix("${FEDSIM_DEPLOYMENT}/") for volume in SERVICES[name].get("volumes", [])
    ]
    return {*volumes, *SERVICES[name].get("secrets", [])}


def test_the_helper_shares_nothing_with_the_server():
    for name in ("superlink", "runner", "proxy", "admin", "client"):
        mine = {place.split("/")[0] for place in places("helper")}
        assert not mine & {place.split("/")[0] for place in places(name)}, name


def test_no_service_of_the_server_reads_a_clients_folder():
    for name in ("superlink", "runner", "proxy", "admin", "keys", "helper"):
        assert "clients" not in places(name) and "ca" not in places(name), name


def test_the_relaying_node_has_the_helpers_socket_alone():
    assert places("relay") & places("helper") == {"helper/socket"}
    assert places("relay") == {"relay", "helper/socket"}


@pytest.fixture(scope="module", params=["plain", "preamble", "relay"])
def made(request, tmp_path_factory):
    settings = ["task.name=digits", "model.name=mlp", "federation.num_clients=2"]
    settings += {"relay": ["protection.name=preamble", "protection.transport=relay"]}.get(
        request.param, [f"protection.name={request.param}"]
    )
    return initialise(tmp_path_factory.mktemp("made") / "it", load_config(None, settings)).deployment.root


def test_every_file_that_it_names_is_made(made):
    wanted = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    wanted |= {secret["file"] for secret in COMPOSE["secrets"].values()}
    paths = [path.replace("${FEDSIM_DEPLOYMENT}", str(made)) for path in sorted(wanted)]
    helper, relay = [path for path in paths if "/helper/" in path], [path for path in paths if path.endswith("/relay")]
    assert all(Path(path).exists() for path in paths if path not in helper + relay)
    protection = (made / "settings.toml").read_text().split("[protection]")[1]
    assert all(Path(path).exists() for path in helper) == ("preamble" in protection)
    assert all(Path(path).exists() for path in relay) == ('transport = "relay"' in protection)


def test_variables_without_a_default_are_those_that_init_writes(made):
    wanted = set(re.findall(r"\$\{(\w+)\}", TEXT))
    written = {line.split("=")[0] for line in (made / ".env").read_text().splitlines()}
    assert wanted <= written


def test_nothing_of_one_machine_stands_in_it():
    for word in ("host.docker.internal", "/root", "/home", "localhost"):
        assert word not in TEXT, word


@pytest.mark.parametrize(
    "script", sorted((ROOT / "docker").glob("*.sh")) + sorted((ROOT / "tests/deploy/compose").glob("*.sh"))
)
def test_scripts_parse(script):
    shell = script.read_text().splitlines()[0].rpartition("/")[2].split()[-1]
    done = subprocess.run([shell, "-n", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
