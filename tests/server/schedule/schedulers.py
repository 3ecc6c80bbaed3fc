"""A scheduler over a bundle, a clock that stands still, and runs that wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import Model, open_bundle
from edgecompile.server.schedule.scheduler import Scheduler

PLAN = {"rows": "independent", "padding": "proven"}
#: Two rows cost hardly more than one, so they run together wherever they can.
COSTS: dict[str, Any] = {
    "points": [[1, 1, 3, 1.0], [1, 1, 32, 10.0], [1, 2, 3, 1.1], [1, 2, 32, 11.0]],
    **PLAN,
    "length_percentiles": [3, 4, 9, 9, 31],
}


class Clock:
    """Seconds that go on only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def inputs(*ids: int, rows: int = 1) -> dict[str, Any]:
    array = np.array([ids] * rows, np.int64)
    return {"input_ids": array, "attention_mask": np.ones_like(array)}


def draw(seed: int, length: int) -> dict[str, Any]:
    return inputs(*np.random.default_rng(seed).integers(5, 30, length).tolist())


@asynccontextmanager
async def scheduling(
    bundle: Path, clock: Callable[[], float] | None = None, **options: Any
) -> AsyncIterator[tuple[Model, Scheduler]]:
    with open_bundle(bundle, threads=1, concurrency=4) as model:
        options.setdefault("costs", COSTS)
        scheduler = Scheduler(model, clock=clock or Clock(), **options)
        yield model, scheduler
        await scheduler.close()


class Held:
    """Lets a model's runs wait until they may go on, at its end at the latest, and keeps their inputs."""

    def __init__(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.runs = Event(), list[dict[str, Any]]()
        run = model.run

        def wait(arrays: dict[str, Any], **options: Any) -> Any:
            self.runs.append(arrays)
            self.go.wait()
            return run(arrays, **options)

        monkeypatch.setattr(model, "run", wait)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()


def same(answer: Any, wanted: Any) -> None:
    assert answer.outputs.keys() == wanted.keys()
    for name, array in wanted.items():
        assert answer.outputs[name].shape == array.shape
        np.testing.assert_allclose(answer.outputs[name], array, atol=1e-5)
