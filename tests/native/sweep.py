"""Runs a test once for each of many values, as one test that names the value at which it fails."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from typing import Any

#: Set by tests that run others under an emulator, where a second takes a minute.
EMULATED = "EDGECOMPILE_TEST_EMULATED"


def sweep(
    name: str, values: Iterable[Any], *, emulated: Iterable[Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for tests: their parameter ``name`` takes each of the values in turn.

    Where ``pytest.mark.parametrize`` makes a test of each value, this makes one of all; what fails
    at a value is raised as an AssertionError that begins with it. Under an emulator the values are
    those of ``emulated``, where it is there.
    """
    all_values = list(values if emulated is None or EMULATED not in os.environ else emulated)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        def swept(**fixtures: Any) -> None:
            for value in all_values:
                try:
                    test(**fixtures, **{name: value})
                except Exception as error:
                    text = (
                        f"{name}={getattr(value, 'name', value)}: {error or type(error).__name__}"
                    )
                    raise AssertionError(text) from error

        swept.__name__ = test.__name__
        swept.__doc__ = test.__doc__
        swept.__module__ = test.__module__
        rest = [item for item in signature.parameters.values() if item.name != name]
        swept.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return swept

    return decorate
