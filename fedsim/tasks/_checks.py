"""Checks that several modules of this package share."""

from collections.abc import Callable, Mapping
from typing import Any

from fedsim.own import OwnNameError, own_thing
from fedsim.tasks.errors import BadOption, TaskError, UnknownName


def check_image(input_shape: tuple[int, ...], least: int) -> None:
    """Raise :class:`~fedsim.tasks.errors.BadOption` unless this is (channels, height, width) with sides >= `least`."""
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise BadOption(
            f"input shape {input_shape}: an image model needs (channels, height, width), sides at least {least}; "
            "use logistic or mlp for other data"
        )


def bad_options(what: str, options: Mapping[str, Any], defaults: Mapping[str, Any], error: Exception) -> Exception:
    """Return the error to raise where building something from options failed.

    Args:
        what: such as ``model 'mlp'``.
        options: as given.
        defaults: the values that work.
        error: as raised.

    Returns:
        :class:`~fedsim.tasks.errors.BadOption` that names the options, or `error` itself where it says so already or
        no option was given.
    """
    if isinstance(error, TaskError) or not options:
        return error
    given = ", ".join(f"{name} = {value!r}" for name, value in options.items())
    good = ", ".join(f"{name} = {defaults[name]!r}" for name in options)
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return BadOption(f"{what} cannot be made with {given} ({reason}): give values of the kind of the default, {good}")


def own_function(name: str) -> Callable[..., Any]:
    """Return a user's own loader or builder.

    Args:
        name: ``module:function``.

    Raises:
        UnknownName: there is none.
    """
    try:
        found = own_thing(name)
    except OwnNameError as error:
        raise UnknownName(str(error)) from error
    if not callable(found):
        raise UnknownName(f"{name!r} is {type(found).__name__}: must be a function")
    function: Callable[..., Any] = found
    return function
