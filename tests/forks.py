"""Runs a function in a forked process and tells its outcome."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> str:
    """The result of ``work`` in a forked process as ``gave RESULT``, or its error as ``TYPE: TEXT``."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = f"gave {work()}"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        text = stream.read().decode()
    assert os.waitpid(child, 0)[1] == 0, text
    return text
