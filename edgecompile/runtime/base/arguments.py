"""Checks of values that a caller or a file gives."""

from .errors import InputError


def is_integer(value: object, least: int, most: int) -> bool:
    """Whether a value is an integer from ``least`` to ``most``, both included; truth values and numpy's numbers aren't."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def check_callback(name: str, value: object) -> None:
    """Refuses what can't be called, before anything runs.

    Args:
        name: Name of the argument.
        value: Function, or None.

    Raises:
        InputError: it is neither.
    """
    if value is not None and not callable(value):
        text = "{} is a {}, must be a function of one argument"
        raise InputError(text.format(name, type(value).__name__))
