"""Files exchanged or written to at a chosen moment, for tests of what happens between check and use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime.model.open_bundle import open_bundle
from tests.hostile.conftest import Toy
from tests.hostile.toy import WEIGHTS


def before(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], None]
) -> list[bool]:
    """Runs ``action`` once, before the next call of ``owner.name``; the result tells whether."""
    return _wrap(monkeypatch, owner, name, action, False)


def after(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], None]
) -> list[bool]:
    """Runs ``action`` once, after the next call of ``owner.name``."""
    return _wrap(monkeypatch, owner, name, action, True)


def _wrap(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    action: Callable[[], None],
    is_after: bool,
) -> list[bool]:
    original = getattr(owner, name)
    done: list[bool] = []

    def act() -> None:
        if not done:
            done.append(True)
            action()

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if not is_after:
            act()
        result = original(*arguments, **named)
        if is_after:
            act()
        return result

    monkeypatch.setattr(owner, name, wrapped)
    return done


def exchange(path: Path, data: bytes) -> None:
    """Puts another file in the place of one, as renaming does."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(data)
    os.replace(beside, path)


def run_once(toy: Toy, **options: Any) -> None:
    with open_bundle(toy.bundle.folder, threads=1, **options) as opened:
        ids = np.ones((1, 5), dtype=np.int64)
        outputs = opened.run({"input_ids": ids, "attention_mask": ids})
        assert outputs["states"].shape == (1, 5, 2)


def write_into(place: Path, data: bytes) -> None:
    """The same inode gets another content, and its time of modification back."""
    info = place.stat()
    time.sleep(0.02)  # the kernel's clock for times of files ticks every 1 to 10 ms
    with place.open("r+b") as file:
        file.write(data)
    os.utime(place, ns=(info.st_atime_ns, info.st_mtime_ns))


def other_weights(toy: Toy) -> bytes:
    data = bytearray(toy.bundle.files[WEIGHTS])
    data[-1] ^= 1
    return bytes(data)
