"""Checks of arguments: each gives a plain value, or a UsageError that says what to give."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from edgecompile.errors import UsageError

T = TypeVar("T")


def describe(value: object) -> str:
    """``a dict``, or ``the class Net`` where a class was given in place of an object."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def instance(name: str, value: Any, kind: type, form: str) -> Any:
    """``value``, of type ``kind``; ``form`` says what to give instead.

    Raises:
        UsageError: it is of another type.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {describe(value)}", hint=f"give {form}")
    return value


def options(name: str, value: Any, kind: type[T]) -> T:
    """A group of options; None: all at their defaults.

    Raises:
        UsageError: it is of another type.
    """
    if value is None:
        return kind()
    made: T = instance(name, value, kind, f"edgecompile.{kind.__name__}(...)")
    return made


def whole(name: str, value: Any, least: int = 1) -> int | None:
    """A whole number from ``least`` up, of any integer type; None stays.

    Raises:
        UsageError: it isn't one.
    """
    if value is None:
        return None
    try:
        result = operator.index(value)
    except TypeError:
        result = least - 1
    if isinstance(value, bool) or result < least:
        raise UsageError(f"{name} is {value!r}", hint=f"give a whole number from {least} up")
    return result


def seed(value: Any) -> int:
    """A random seed.

    Raises:
        UsageError: it isn't one.
    """
    if value is None:
        raise UsageError("seed is None", hint="give a whole number from 0 up")
    return whole("seed", value, 0) or 0


def number(name: str, value: Any, least: float, most: float = math.inf) -> float | None:
    """A finite number from ``least`` to ``most``; None stays.

    Raises:
        UsageError: it isn't one.
    """
    if value is None:
        return None
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not least <= value <= most:
        bounds = f"from {least:g} up" if most == math.inf else f"from {least:g} to {most:g}"
        raise UsageError(f"{name} is {value!r}", hint=f"give a number {bounds}")
    return float(value)


def quantity(name: str, value: Any, parse: Callable[[str], T]) -> T | float | None:
    """A number from 0 up, or what ``parse`` makes of a text with a unit; None stays.

    Raises:
        UsageError: it is neither.
    """
    if not isinstance(value, str):
        return number(name, value, 0)
    try:
        return parse(value)
    except ValueError as error:
        raise UsageError(f"`{name}`: {error}") from error


def flag(name: str, value: Any) -> bool:
    """True or False.

    Raises:
        UsageError: it is neither.
    """
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}", hint="give True or False")
    return value


def choice(name: str, value: Any, choices: Collection[str | None]) -> Any:
    """One of ``choices``.

    Raises:
        UsageError: it is none of them.
    """
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise UsageError(
            f"{name} is {value!r}", hint="give one of " + ", ".join(map(repr, choices))
        )
    return value


def path(name: str, value: Any) -> Path | None:
    """A path, with ``~`` expanded; None stays.

    Raises:
        UsageError: it isn't one.
    """
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise UsageError(f"{name} is {value!r}", hint="give the path of a file or folder")
    return Path(os.fsdecode(value)).expanduser()
