"""Requests are counted by their own lengths, and compared with those that a bundle was planned for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from edgecompile.lengths.stats_files import read_stats
from edgecompile.server.schedule.request_counts import drift_distance
from tests.server.schedule.schedulers import draw, same, scheduling


def test_traffic_is_counted_by_request(tiny_bundle: Path, tmp_path: Path) -> None:
    """What ``plan --from-stats`` reads has each request's own length, whatever it ran with."""

    async def ask() -> None:
        async with scheduling(tiny_bundle) as (_, scheduler):
            await asyncio.gather(*scheduler.submit_all([draw(n, 3 + n % 4) for n in range(40)]))
            scheduler.traffic.write(tmp_path / "stats.json")
            assert scheduler.traffic.drift == pytest.approx(0.75)
            assert scheduler.speed.factor > 0

    asyncio.run(ask())
    found = read_stats([tmp_path / "stats.json"])
    assert found.distribution is not None
    assert dict(zip(found.distribution.lengths, found.distribution.counts, strict=True)) == {
        3: 10, 4: 10, 5: 10, 6: 10
    }  # fmt: skip
    document = json.loads((tmp_path / "stats.json").read_text())
    assert document["runs"] == 40 and document["sizes"] is None and document["axes"] == ["length"]


def test_statistics_that_can_not_be_written_stop_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    async def ask() -> None:
        async with scheduling(tiny_bundle) as (model, scheduler):
            scheduler.traffic.schedule(folder / "stats.json", 1e-9)
            folder.rmdir()
            for n in range(3):
                same(await scheduler.submit(draw(n, 5)), model.run(draw(n, 5)))

    asyncio.run(ask())
    assert not folder.exists()


@pytest.mark.parametrize(
    ("counts", "planned", "distance"),
    [
        ({5: 10}, [5] * 101, 0.0),
        ({5: 10}, [9] * 101, 1.0),
        ({n: 1 for n in range(1, 101)}, list(range(101)), 0.0),
        ({n: 1 for n in range(51, 101)}, list(range(101)), 0.5),
    ],
)
def test_drift(counts: dict[int, int], planned: Sequence[int], distance: float) -> None:
    assert drift_distance(counts, list(planned)) == pytest.approx(distance, abs=0.011)
