"""Running a ``ClientApp`` for many virtual clients in one process, each as if it were alone."""

import importlib
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp

from fedsim.simulation.grid import FaultCode, client_seed, fault, number_reply
from fedsim.simulation.transit import copy_content


def load_client_app(app: ClientApp | str) -> ClientApp:
    """Return the app itself, or import it.

    Args:
        app: The app, or ``"module:attribute"``.

    Raises:
        ValueError: The text has no colon.
        TypeError: What is found is no ``ClientApp``.
        ImportError: The module, or the attribute, does not exist; whatever importing it raises.
    """
    found: Any = app
    if isinstance(app, str):
        module, colon, name = app.partition(":")
        if not colon:
            raise ValueError(f"client app {app!r} is not of the form 'module:attribute'; e.g. 'fedsim.client_app:app'")
        found = importlib.import_module(module)
        for part in name.split("."):
            if not hasattr(found, part):
                raise ImportError(f"client app {app!r}: {module} has no {name}; name the module's ClientApp")
            found = getattr(found, part)
    if not isinstance(found, ClientApp):
        raise TypeError(f"client app {app!r} is of type {type(found).__name__}; a flwr.clientapp.ClientApp is needed")
    return found


class ClientRunner:
    """Runs one client after another. What a client does to its message, to its state or to generators stays its own.

    Args:
        app: The clients' app.
        run_id: Of the run that the messages belong to.
        run_config: The run's settings.
        seed: The grid's.
    """

    def __init__(self, app: ClientApp, *, run_id: int, run_config: UserConfig, seed: int) -> None:
        self._app, self._run_id, self._run_config, self._seed = app, run_id, run_config, seed

    def run(
        self, message: Message, node_config: UserConfig, state: RecordDict | None
    ) -> tuple[Message, RecordDict | None]:
        """Run one client.

        Args:
            message: Its message; not shared with another client.
            node_config: Its settings.
            state: What it left in ``context.state`` last time, or None.

        Returns:
            Its reply, or an error reply, and its state afterwards: None where the client failed, whose state stays.
        """
        own = RecordDict() if state is None else copy_content(state)
        meta = message.metadata
        context = Context(self._run_id, meta.dst_node_id, dict(node_config), own, dict(self._run_config))
        seed_generators(client_seed(self._seed, int(node_config["partition-id"]), message))
        try:
            reply: object = self._app(message, context)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a client's error is its reply; others go on
            return fault(FaultCode.RAISED, message, node_config, _story(error)), None
        wrong = _wrong_reply(message, reply)
        if wrong or not isinstance(reply, Message):
            return fault(FaultCode.BAD_REPLY, message, node_config, wrong), None
        return number_reply(message, reply), context.state


#: Packages whose errors name value, rule and remedy.
_OURS = ("crypto", "strategies", "fedsim")


def _story(error: BaseException) -> str:
    """What a client raised: errors of ours in their own words, for they say all, others with the client's traceback."""
    if type(error).__module__.split(".")[0] in _OURS:
        return f"{type(error).__name__}: {error}"
    trace = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return f"raised {type(error).__name__}: {error}\n{text}"


def _wrong_reply(message: Message, reply: object) -> str:
    if not isinstance(reply, Message):
        return f"returned {type(reply).__name__}; a handler must return Message(content, reply_to=message)"
    if reply.metadata.reply_to_message_id != message.metadata.message_id or reply is message:
        return "returned a message that does not answer its own; make it by Message(content, reply_to=message)"
    if not reply.has_content() and not reply.has_error():
        return "returned a reply with neither content nor error; give it a RecordDict"
    return ""


def seed_generators(seed: int) -> None:
    """Seed the process's global generators: random, numpy, and torch where it is loaded."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch: Any = sys.modules.get("torch")
    if torch:
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@contextmanager
def guest(threads: int) -> Iterator[None]:
    """Let clients run in a process that is not theirs: generators and torch's thread count are restored afterwards."""
    torch: Any = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    if torch:
        torch_state, torch_threads = torch.default_generator.get_state(), torch.get_num_threads()
        if torch_threads != threads:
            torch.set_num_threads(threads)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch:
            torch.default_generator.set_state(torch_state)
            if torch_threads != threads:
                torch.set_num_threads(torch_threads)
