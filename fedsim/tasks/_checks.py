"""Checks that several modules of this package share."""

from fedsim.tasks.errors import BadOption


def check_image(input_shape: tuple[int, ...], least: int) -> None:
    """Raise :class:`~fedsim.tasks.errors.BadOption` unless this is (channels, height, width) with sides >= `least`."""
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise BadOption(
            f"input shape {input_shape}: an image model needs (channels, height, width), sides at least {least}; "
            "use logistic or mlp for other data"
        )
