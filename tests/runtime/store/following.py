"""A model that follows a link, whose answers tell which release gave them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from edgecompile.runtime import follow
from edgecompile.runtime.store.disk import point
from tests.runtime.bundles import make_case
from tests.runtime.store.device import Device

INPUTS = make_case(7)[0]
OLD, NEW = 1, 2


class Followed:
    """A link to a version, and the model that follows it."""

    def __init__(self, made: Device, place: Path, **options: Any) -> None:
        self.made = made
        self.link = str(place / "current")
        self.serve(OLD)
        self.options = {"trust": str(made.signed.trust), **options}
        self.model = follow(self.link, **self.options)

    def serve(self, version: int | Path) -> None:
        """Points the link to a release, or to another folder."""
        path = version if isinstance(version, Path) else self.made.place / f"{version}.ecb"
        point(self.link, str(path))

    def answer(self) -> int:
        return answer_of(self.model.run(INPUTS))


def answer_of(outputs: dict[str, Any]) -> int:
    """The one number that all outputs hold."""
    (value,) = {float(value) for array in outputs.values() for value in np.unique(array)}
    return int(value)


def wait_for(condition: Callable[[], bool], *threads: Thread) -> None:
    """Waits for what these threads bring about, as long as all of them live."""
    while True:
        alive = all(thread.is_alive() for thread in threads)
        if condition():
            return
        assert alive, "a thread has ended before"
        time.sleep(0.005)
