"""A user's own classes and functions, by the name ``module:thing``.

A name with a colon is looked up in a Python module, which may be a file in the folder where the program was started, or
anything installed. So a strategy, a data set or a model needs no place in this package.
"""

import importlib
import os
import sys
from typing import Any

__all__ = ["OWN_MODULES", "OwnNameError", "is_own", "own_thing"]

#: Variable of the environment with the folder where a run was started, for processes that work elsewhere.
OWN_MODULES = "FEDSIM_MODULES"


class OwnNameError(ValueError):
    """A name ``module:thing`` that leads nowhere, or to something of another kind."""


def is_own(name: str) -> bool:
    """Tell whether a name is ``module:thing``."""
    module, colon, thing = name.partition(":")
    return (
        bool(colon) and module != "flwr" and thing.isidentifier() and all(p.isidentifier() for p in module.split("."))
    )


def own_thing(name: str) -> Any:
    """Return what a name ``module:thing`` stands for.

    Args:
        name: such as ``my_strategy:Trimmed``; the folder where the program was started counts as a place of modules.

    Raises:
        OwnNameError: there is no such module, it does not load, or it has no such thing.
    """
    module_name, _, thing = name.partition(":")
    for place in (os.environ.get(OWN_MODULES, ""), os.getcwd()):
        if place and place not in sys.path:
            sys.path.append(place)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise OwnNameError(
            f"module {module_name!r} of {name!r} does not load ({type(error).__name__}: {error}); start from the "
            f"folder that holds {module_name.split('.')[0]}.py, or install it"
        ) from error
    if not hasattr(module, thing):
        names = ", ".join(sorted(n for n in vars(module) if not n.startswith("_"))[:12]) or "nothing"
        raise OwnNameError(f"module {module_name!r} has no {thing!r}: it has {names}; correct the name after the colon")
    return getattr(module, thing)
