"""The fields of requests: those that are done, those without effect, and values that ask for nothing.

A field that isn't listed may change the answer, so it is refused rather than ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgecompile.server.errors import Unprocessable


class Fields:
    """The known fields of one kind of request; null is the same as no field at all."""

    def __init__(
        self, done: str, idle: str = "", plain: Mapping[str, tuple[Any, ...]] = {}
    ) -> None:
        """
        Args:
            done: names of fields that are read, separated by spaces.
            idle: names of fields that have no effect on an answer here.
            plain: fields that aren't done, with the values that ask for nothing.
        """
        self._known = frozenset((*done.split(), *idle.split()))
        self._plain = plain

    def check(self, document: Mapping[str, Any], where: str = "") -> None:
        """Raises Unprocessable where a field would change the answer and isn't done.

        Args:
            document: the request, or an object in it.
            where: the prefix of its fields' names in a message.
        """
        if document.keys() <= self._known:
            return
        for key, value in document.items():
            if key in self._known or value is None:
                continue
            plain = self._plain.get(key, ())
            if any(
                value == item and isinstance(value, bool) == isinstance(item, bool)
                for item in plain
            ):
                continue
            name = f"{where}{key:.80}"
            if not plain:
                raise Unprocessable(f"{name} isn't supported")
            values = " or ".join(json.dumps(item) for item in plain)
            raise Unprocessable(f"{name} isn't supported except as {values}")
