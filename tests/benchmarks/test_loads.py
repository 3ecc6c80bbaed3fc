"""Shapes of loads, and the drawings of what servers did under them."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.loads import bound, goodput_page, policies_page
from benchmarks.serving.loads.arrivals import QUERIES, SHAPES, STEP, draw_times, mixtures
from benchmarks.serving.loads.bound import CLASSES, classes
from benchmarks.serving.loads.clients import Load
from benchmarks.serving.loads.rounds import Point, interval, median_interval, tell_ratios
from benchmarks.serving.peers import open_page
from edgecompile.report.load_plot import latency_plot
from tests.report.svg import read_words


@pytest.mark.parametrize("shape", [*SHAPES, STEP])
def test_a_load_has_its_rate_whatever_was_drawn(shape: str) -> None:
    for seed in range(3):
        times = draw_times(shape, 80.0, 5.0, seed)
        assert len(times) == 400 and times == sorted(times)
        assert times[0] >= 0 and times[-1] <= 5.0
    assert draw_times(shape, 80.0, 5.0, 0) != draw_times(shape, 80.0, 5.0, 1)


def variation(times: list[float]) -> float:
    gaps = [b - a for a, b in pairwise(times)]
    return statistics.stdev(gaps) / statistics.mean(gaps)


def test_bursts_are_bursts() -> None:
    assert variation(draw_times("poisson", 1000.0, 20.0, 1)) == pytest.approx(1.0, rel=0.1)
    assert variation(draw_times("bursts", 1000.0, 20.0, 1)) == pytest.approx(4.0, rel=0.15)
    eights = draw_times("eights", 8.0, 10.0, 1)
    assert [eights.count(at) for at in sorted(set(eights))] == [8] * 10


def test_a_step_goes_from_half_to_one_and_a_half() -> None:
    times = draw_times(STEP, 100.0, 4.0, 1)
    assert sum(at < 2.0 for at in times) == 100 and len(times) == 400


def test_a_mixture_has_its_shares() -> None:
    found = mixtures({5: 3, 200: 1}, 512)
    both = found["both"]
    whole = sum(both.values())
    assert both[200] / whole == pytest.approx(0.3 / 4, abs=1e-5)
    wanted = 0.7 * QUERIES[5] / sum(QUERIES.values()) + 0.3 * 3 / 4
    assert both[5] / whole == pytest.approx(wanted, abs=1e-5)
    assert found["long"] == {256: 1} and mixtures({5: 1}, 128)["long"] == {128: 1}


def test_classes_of_lengths_hold_all_of_them() -> None:
    few = classes({4: 3, 9: 1})
    assert few == [(4, 0.75), (9, 0.25)]
    many = classes({length: 200 - length for length in range(1, 200)})
    assert len(many) == CLASSES and sum(share for _, share in many) == pytest.approx(1.0)
    assert [length for length, _ in many] == sorted(length for length, _ in many)
    mean = sum(length * share for length, share in many)
    assert mean == pytest.approx(sum(n * (200 - n) for n in range(1, 200)) / 19900, abs=0.5)


def test_a_bound_stands_beside_what_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs, lengths = tmp_path / "costs.json", tmp_path / "lengths.json"
    points = [[1, rows, length, 40 * rows] for rows in (1, 32) for length in (1, 256)]
    costs.write_text(json.dumps({"points": points}))
    lengths.write_text(json.dumps({"lengths": [5, 200], "counts": [3, 1]}))
    # Its linear program needs scipy, which comes with the baselines.
    monkeypatch.setattr(bound, "bound", lambda costs, lengths, rate, *_: rate)
    monkeypatch.setattr("sys.argv", ["bound", str(costs), "--lengths", str(lengths)])
    bound.main()
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows[::2]] == list(mixtures({5: 1}, 256))
    for _, capacity, load, ours, *bounds in rows:
        assert float(capacity) == pytest.approx(50, rel=0.1), "two CPUs, 40 ms a text"
        assert 0 < float(ours) <= float(load) and bounds == [f"{float(load):.2f}"] * 4


def test_intervals_are_student_s() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0 and half == pytest.approx(2.484, abs=5e-3)
    assert math.isnan(interval([1.0, 2.0])[1])


def test_intervals_of_medians_are_those_of_coins() -> None:
    eight = [8.0, 1.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]
    assert median_interval(eight) == (4.5, 1.0, 8.0)  # (2nd, 7th) would hold 93 %
    assert median_interval(range(24)) == (11.5, 6, 17)
    assert math.isnan(median_interval([1.0, 2.0, 3.0, 4.0, 5.0])[1])
    assert tell_ratios([2.0, 4.0], [1.0, 1.0]) == "3.00"
    assert tell_ratios([2.0] * 6, [1.0] * 6) == "2.00 (2.00 to 2.00)"


def test_the_highest_load_within_a_bound_lies_between_two() -> None:
    line = [Point(load, [], [], [late]) for load, late in ((0.5, 40.0), (1.0, 140.0))]
    found = [goodput_page.highest(line, bound) for bound in (30.0, 50.0, 140.0, 200.0)]
    assert found == ["< 0.5", "0.55", "> 1", "> 1"]


async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that answers the first request of a connection alone."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
    await reader.read()
    writer.close()


def test_a_load_ends_where_answers_would_be_too_late() -> None:
    async def run() -> tuple[Load, float]:
        server = await asyncio.start_server(never, "127.0.0.1", 0)
        load = Load([b"GET / HTTP/1.1\r\n\r\n"], [0.0] * 5, 0.1)
        took = await load.run(server.sockets[0].getsockname()[1], 2, limit=0.3)
        server.close()
        return load, took

    load, took = asyncio.run(run())
    assert load.asked == 5 and load.statuses == {200: 2}
    assert load.kept == [(0, b"hi")] * 2
    assert 0.3 <= took < 3.0


def row(number: int, shape: str, load: float | None, share: float) -> dict[str, Any]:
    return {
        "round": number, "bundle": "m", "traffic": "long", "shape": shape, "load": load, "share": share,
        "asked_per_s": 100.0, "in_time_per_s": 100 * share, "statuses": {"200": 90, "429": 10},
        "p50_ms": 20.0, "p99_ms": 90.0, "texts_a_run": 2.0, "worker_cpus": 1.9, "loop_cpus": 0.3,
        "client_cpus": 0.2, "lag_p99_ms": 1.0, "error": 1e-7,
    }  # fmt: skip


def test_a_record_of_goodput_is_told_and_drawn(tmp_path: Path) -> None:
    rows = [
        item
        for n, share in enumerate((0.90, 0.94, 0.98))
        for item in (
            row(n, "", None, 0.1),
            row(n, "poisson", 0.5, 0.5),
            row(n, "poisson", 1, share),
        )
    ]
    shares = {"poisson": {"0.5": 0.5, "1": 0.97}}
    result = {"slo": 0.1, "predicted": {"m": {"long": {"shares": shares}}}, "rows": rows}
    page = goodput_page.write_page(result, tmp_path / "record.json")
    assert "| poisson | 1 | 0.97 | 100 | 94 ± 10 | 0.94 ± 0.10 | 20 | 90 | 10.0% |" in page
    words = read_words((tmp_path / "record-goodput.svg").read_text())
    assert {"256 tokens each", "poisson", "load, of the capacity"} <= set(words)
    assert not any("$" in item for item in words)
    assert "100" in read_words((tmp_path / "record-latency.svg").read_text())


def test_a_record_of_rules_is_drawn_with_ours_first(tmp_path: Path) -> None:
    load = [
        {
            "traffic": "mixed", "policy": rule, "factor": factor, "capacity": 100.0,
            "goodput_per_s": goodput, "p50_ms": 10.0, "p99_ms": 95.0,
        }
        for rule, factor, goodput in (
            ("tei", 0.5, 40.0), ("tei", 1.5, 2.0), ("by-cost", 1.5, 130.0), ("by-cost", 0.5, 50.0),
        )
    ]  # fmt: skip
    result = {"slo": 0.1, "predicted": {"mixed": {}}, "load": load}
    policies_page.write_drawings(result, tmp_path / "record.json")
    words = read_words((tmp_path / "record-goodput.svg").read_text())
    assert [item for item in words if item in ("tei", "by-cost")] == ["by-cost", "tei"]


def test_a_record_of_peers_is_told_and_each_drawn_in_its_best_setting(tmp_path: Path) -> None:
    def at(system: str, load: float | None, share: float, p99: float | None) -> dict[str, Any]:
        return {
            "round": 0, "traffic": "mixed", "system": system, "load": load, "share": share,
            "answered_per_s": 100 * share, "p50_ms": p99 and p99 / 2, "p99_ms": p99,
        }  # fmt: skip

    ours, slow, fast = "ours, 1 x 1 threads, batches to 1", "ray, a", "ray, b"
    rows = [at(ours, None, 1.0, 90.0), at(ours, 0.5, 0.5, 70.0), at(ours, 1.5, 1.2, 98.0)]
    rows += [at(slow, 0.5, 0.1, None), at(fast, 0.5, 0.4, 300.0), at(fast, 1.5, 0.0, None)]
    failed = {"round": 0, "system": "triton, 2 x 1 threads, batches to 8", "failed": "why"}
    result = {"slo": 0.1, "rows": [*rows, failed]}
    page = open_page.write_page(result, tmp_path / "record.json")
    assert "| ours | 100 | 0.50 | 70 | 1.20 | 98 |" in page
    assert "| ray, b |  | 0.40 | 300 | 0.00 | – |" in page
    words = read_words((tmp_path / "record-goodput.svg").read_text())
    assert [item for item in words if item in ("ours", "Ray Serve", "Triton")] == [
        "ours",
        "Ray Serve",
    ]
    drawn = (tmp_path / "record-latency.svg").read_text()
    open_page.write_drawings({**result, "rows": rows[:3] + rows[4:]}, tmp_path / "record.json")
    assert (tmp_path / "record-latency.svg").read_text() == drawn


def test_latencies_have_plain_numbers() -> None:
    words = read_words(latency_plot({"by-cost": [(10.0, 12.0), (20.0, 240.0)]}, 100.0))
    assert {"20", "100", "200"} <= set(words) and not any("$" in item for item in words)
