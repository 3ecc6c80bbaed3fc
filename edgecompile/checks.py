"""Checks of arguments: each gives a plain value, or a UsageError that says what to give.

Here and below, errors name arguments as Python does, in backticks, alone or with a value: `max_length`,
`mode="pad"`. The command line puts its flags in their place (``cli/terminal/failures.py``).
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from edgecompile.errors import UsageError

T = TypeVar("T")

#: Lengths and other sizes have 32 bits.
MOST = 2**31 - 1


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
        raise UsageError(f"`{name}` is {describe(value)}", hint=f"give {form}")
    return value


def settle(options: object, **checks: Callable[[str, Any], Any]) -> None:
    """Checks fields of a frozen object, by name, and puts what the checks give in their place.

    Raises:
        UsageError: the first that a check refuses.
    """
    for name, check in checks.items():
        object.__setattr__(options, name, check(name, getattr(options, name)))


def options(name: str, value: Any, kind: type[T]) -> T:
    """A group of options; None: all at their defaults.

    Raises:
        UsageError: it is of another type.
    """
    if value is None:
        return kind()
    made: T = instance(name, value, kind, f"edgecompile.{kind.__name__}(...)")
    return made


def text(name: str, value: Any, form: str = "a text of one line") -> str | None:
    """A text that can be printed; ``form`` says what to give instead. None stays.

    Raises:
        UsageError: it isn't one.
    """
    if value is not None and not (isinstance(value, str) and value.isprintable()):
        raise UsageError(f"`{name}` is {value!r}", hint=f"give {form}")
    return value


def whole(name: str, value: Any, least: int = 1, most: int = MOST) -> int | None:
    """A whole number from ``least`` to ``most``, of any integer type; None stays.

    Raises:
        UsageError: it isn't one.
    """
    if value is None:
        return None
    try:
        result = operator.index(value)
    except TypeError:
        result = least - 1
    if isinstance(value, bool) or not least <= result <= most:
        end = "up" if result < least and most == MOST else f"to {most}"
        raise UsageError(f"`{name}` is {value!r}", hint=f"give a whole number from {least} {end}")
    return result


def seed(name: str, value: Any) -> int:
    """A random seed.

    Raises:
        UsageError: it isn't one.
    """
    if value is None:
        raise UsageError(f"`{name}` is None", hint="give a whole number from 0 up")
    return whole(name, value, 0, 2**63 - 1) or 0


def span(name: str, value: Any) -> tuple[int, int] | None:
    """A size from 1 up, or two as (smallest, largest), as such a pair; None stays.

    Raises:
        UsageError: it is neither.
    """
    if value is None:
        return None
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value, value)
    low = high = 0
    if len(sizes) == 2:
        with suppress(UsageError):
            low, high = (whole(name, size) or 0 for size in sizes)
    if not 1 <= low <= high:
        raise UsageError(
            f"`{name}` is {value!r}", hint="give a size from 1 up, or (smallest, largest)"
        )
    return low, high


def number(name: str, value: Any, least: float, most: float = math.inf) -> float | None:
    """A finite number from ``least`` to ``most``; None stays.

    Raises:
        UsageError: it isn't one.
    """
    if value is None:
        return None
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        result = float(value) if real else math.nan
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or not least <= result <= most:
        bounds = f"from {least:g} up" if most == math.inf else f"from {least:g} to {most:g}"
        raise UsageError(f"`{name}` is {value!r}", hint=f"give a number {bounds}")
    return result


def quantity(name: str, value: Any, parse: Callable[[str], T]) -> T | float | None:
    """A number from 0 up, or the result of ``parse`` for a text with a unit; None stays.

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
        raise UsageError(f"`{name}` is {value!r}", hint="give True or False")
    return value


def choice(name: str, value: Any, choices: Collection[str | None]) -> Any:
    """One of ``choices``.

    Raises:
        UsageError: it is none of them.
    """
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise UsageError(
            f"`{name}` is {value!r}", hint="give one of " + ", ".join(map(repr, choices))
        )
    return value


def path(name: str, value: Any) -> Path | None:
    """A path, with ``~`` expanded; None stays.

    Raises:
        UsageError: it isn't one.
    """
    return None if value is None else given_path(name, value)


def given_path(name: str, value: Any, form: str = "the path of a file or folder") -> Path:
    """A path, with ``~`` expanded; ``form`` says what to give instead.

    Raises:
        UsageError: it isn't one, or holds what no name of a file can.
    """
    usable = isinstance(value, (str, os.PathLike)) and bool(os.fspath(value))
    try:
        usable = usable and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:  # half a surrogate
        usable = False
    if not usable:
        raise UsageError(f"`{name}` is {value!r}", hint=f"give {form}")
    return Path(os.fsdecode(value)).expanduser()
