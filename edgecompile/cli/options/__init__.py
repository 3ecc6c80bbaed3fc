"""Options that commands share: each is declared once, and a group of them makes one object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def add_options(name: str, make: Callable[..., Any], *options: Decorator) -> Decorator:
    """Adds options to a command, which gets their values as one argument.

    Args:
        name: the name of the argument.
        make: a function that makes it from the options' values by name.
        options: the options in the order of the help.
    """

    def probe() -> None: ...

    for option in options:
        option(probe)
    names = [parameter.name for parameter in probe.__click_params__]  # type: ignore[attr-defined]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            own = {key: values.pop(key) for key in names}
            return function(*args, **{name: make(**own)}, **values)

        for option in reversed(options):
            option(command)
        return command

    return decorate
