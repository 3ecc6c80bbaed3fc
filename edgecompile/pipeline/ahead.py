"""Compiles native code that any model needs beside the first stages, which keep one core busy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

#: Of compilers that run ahead, above the build's own: on Linux it is of the thread that starts them. What the
#: build waits for gets ten times the time.
NICENESS = 10


@contextmanager
def compiling_ahead(calls: Iterable[Callable[[], object]]) -> Iterator[None]:
    """Makes the calls one after another meanwhile.

    Later stages find the objects in the compilers' cache, and say what is wrong where one can't be compiled.
    """
    pool = ThreadPoolExecutor(max_workers=1, initializer=_give_way)
    try:
        for call in calls:
            pool.submit(call)
        yield
    finally:
        # Where a stage failed nobody waits for compilers before that is told.
        pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    with suppress(OSError):  # it only takes longer
        os.nice(NICENESS)
