"""Functions that a caller gives, to be called during a run."""

from .errors import InputError


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
