"""Runs the settings under Flower's own simulation engine: the same two apps, in Flower's processes."""

import os
from pathlib import Path

from fedsim.config import RunConfig, to_toml, with_values
from fedsim.errors import EngineError
from fedsim.own import OWN_MODULES
from fedsim.protections import KeyRing
from fedsim.simulation.flower import FlowerRunError, flwr_run

#: The app that Flower ships to its nodes: a stub, because inside the app our packages would shadow the installed ones
#: and lack the compiled module.
_PYPROJECT = """\
[project]
name = "fedsim-run"
version = "0.1.0"
description = "Stub: the code comes from the installed fedsim"
license = "Apache-2.0"
dependencies = ["flwr>=1.42"]

[tool.flwr.app]
publisher = "fedsim"

[tool.flwr.app.components]
serverapp = "flower_app.server_app:app"
clientapp = "flower_app.client_app:app"

[tool.flwr.app.config]
config = ""
resume = ""
"""
_STUB = '''"""Stub of the app that Flower ships; the code comes from the installed package."""

from fedsim.{0} import app

__all__ = ["app"]
'''
_LONGEST_RUN_S = 24 * 3600.0


def write_stub_app(folder: Path) -> Path:
    """Write the stub app's three files into `folder`; returns it."""
    package = folder / "flower_app"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PYPROJECT)
    (package / "__init__.py").write_text("")
    for name in ("server_app", "client_app"):
        (package / f"{name}.py").write_text(_STUB.format(name))
    return folder


def run_in_flower(folder: Path, config: RunConfig, keys: KeyRing) -> None:
    """Run under Flower's engine; the server app fills the run's folder.

    Args:
        folder: the run's folder, made; Flower's logs and the stub app go to ``flower/`` in it.
        config: the settings, with a name for the run.
        keys: reach the apps through the environment.

    Raises:
        EngineError: the SuperLink or the run could not be started, or the time is over.
    """
    place = (folder / "flower").resolve()
    app = write_stub_app(place / "app")
    absolute = with_values(config, {"output.folder": str(Path(config.output.folder).resolve())})
    settings = place / "config.toml"
    settings.write_text(to_toml(absolute))
    before = dict(os.environ)
    os.environ |= {k: v for k, v in (("FEDSIM_KEYS", keys.clients), ("FEDSIM_SERVER_KEYS", keys.server)) if v}
    # Flower's processes work elsewhere; strategies, data and models of one's own are found from here.
    os.environ[OWN_MODULES] = os.getcwd()
    try:
        flwr_run(
            app,
            {"config": str(settings)},
            num_supernodes=config.federation.num_clients,
            cpus=config.engine.workers or os.cpu_count() or 1,
            timeout_s=_LONGEST_RUN_S,
            log_folder=place,
        )
    except FlowerRunError as error:
        raise EngineError(str(error)) from error
    finally:
        os.environ.clear()
        os.environ |= before
