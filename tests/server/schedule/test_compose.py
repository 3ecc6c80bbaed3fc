"""Costs and composition: against brute force, on tables that are drawn."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.runtime.base.errors import InputError
from edgecompile.server.process.arguments import parse
from edgecompile.server.schedule.compose import compose, composed_seconds
from edgecompile.server.schedule.costs import CostTable, Speed, read_costs, read_document
from edgecompile.server.schedule.streams import Division, plan_streams

LENGTHS, ROWS = (1, 4, 16, 64), (1, 2, 4)


@st.composite
def tables(draw: st.DrawFn, threads: tuple[int, ...] = (1, 2)) -> CostTable:
    """Tables of any costs at all, also such that fall with rows or length: they are filled up."""
    ms = st.floats(0.1, 100)
    points = [(t, b, n, draw(ms)) for t in threads for b in ROWS for n in LENGTHS]
    return CostTable(points)


def partitions(items: list[int]) -> list[list[list[int]]]:
    """Every way to divide a few items into groups."""
    if not items:
        return [[]]
    first, rest = items[0], items[1:]
    result = []
    for groups in partitions(rest):
        result.append([[first], *groups])
        for i, group in enumerate(groups):
            result.append([*groups[:i], [first, *group], *groups[i + 1 :]])
    return result


@given(tables())
def test_costs_never_fall_with_rows_or_length(table: CostTable) -> None:
    for threads, length in product(table.threads, range(1, 81)):
        column = table.column(threads, length)
        assert list(column) == sorted(column) and column[0] == 0.0
        assert all(
            table.seconds(threads, rows, length) <= table.seconds(threads, rows, length + 1) + 1e-12
            for rows in ROWS
        )


def test_measured_points_are_kept_where_they_rise() -> None:
    table = CostTable([(1, 1, 8, 2.0), (1, 1, 16, 3.0), (1, 4, 8, 4.0), (1, 4, 16, 10.0)])
    assert table.seconds(1, 1, 8) == 0.002 and table.seconds(1, 4, 16) == 0.01
    assert table.seconds(1, 1, 12) == pytest.approx(0.0025)
    assert table.seconds(1, 2, 8) == pytest.approx(0.002 + 0.002 / 3)
    assert table.seconds(1, 8, 16) == pytest.approx(0.02)  # two runs of the largest batch
    assert table.seconds(1, 5, 16) == pytest.approx(0.013)


def test_what_took_too_long_is_corrected_by_larger_runs() -> None:
    table = CostTable([(1, 1, 8, 9.0), (1, 1, 16, 3.0), (1, 2, 8, 4.0), (1, 2, 16, 5.0)])
    assert table.seconds(1, 1, 8) == table.seconds(1, 1, 16) == 0.003
    assert table.seconds(1, 2, 8) == 0.004


def test_nothing_is_gained_by_batches_that_were_not_measured() -> None:
    """Two rows were measured up to 8 tokens, where they pay."""
    table = CostTable([(1, 1, 8, 2.0), (1, 1, 64, 10.0), (1, 2, 8, 2.5)])
    assert table.seconds(1, 2, 8) == 0.0025 and table.seconds(1, 2, 64) == pytest.approx(0.02)
    assert [rows for rows, _ in table.useful(1, 64)] == [1]
    costs = [table.seconds(1, 2, n) for n in range(1, 65)]
    assert costs == sorted(costs)


def test_a_batch_that_hardly_pays_is_none() -> None:
    points = [(1, 1, 8, 2.0), (1, 2, 8, 3.95)]
    assert [rows for rows, _ in CostTable(points).useful(1, 8)] == [1, 2]
    assert [rows for rows, _ in CostTable(points, margin=0.03).useful(1, 8)] == [1]


@given(tables(), st.lists(st.integers(1, 80), min_size=1, max_size=7))
def test_no_other_batches_cost_less(table: CostTable, lengths: list[int]) -> None:
    """Any batches at all, not only such of neighbours."""
    lengths.sort()
    best = min(
        sum(table.seconds(1, len(group), max(group)) for group in groups)
        for groups in partitions(lengths)
        if all(len(group) <= table.most_rows for group in groups)
    )
    cuts = compose(table, 1, lengths)
    assert [i for first, end in cuts for i in range(first, end)] == list(range(len(lengths)))
    total = sum(table.seconds(1, end - first, lengths[end - 1]) for first, end in cuts)
    assert total == pytest.approx(best) and composed_seconds(table, 1, lengths) == pytest.approx(
        best
    )


@given(
    tables(),
    st.lists(st.tuples(st.integers(1, 80), st.integers(1, 4)), min_size=1, max_size=7),
)
def test_requests_of_several_rows_are_cut_best_between_neighbours(
    table: CostTable, items: list[tuple[int, int]]
) -> None:
    items.sort()
    lengths, rows = [n for n, _ in items], [r for _, r in items]
    costs = []
    for marks in product((False, True), repeat=len(items) - 1):
        ends = [i + 1 for i, mark in enumerate(marks) if mark] + [len(items)]
        groups = list(zip([0, *ends], ends, strict=False))
        if all(sum(rows[a:b]) <= table.most_rows or b - a == 1 for a, b in groups):
            costs.append(sum(table.seconds(2, sum(rows[a:b]), lengths[b - 1]) for a, b in groups))
    assert composed_seconds(table, 2, lengths, rows) == pytest.approx(min(costs))


def test_nothing_is_composed_of_nothing() -> None:
    assert compose(CostTable([(1, 1, 1, 1.0)]), 1, []) == []


@given(tables((1, 2, 4)), st.integers(1, 16), st.integers(0, 15))
def test_more_cpus_never_answer_less(table: CostTable, cpus: int, more: int) -> None:
    traffic = {4: 3, 40: 1}
    few, many = plan_streams(table, cpus, traffic), plan_streams(table, cpus + more, traffic)
    assert many.rows_per_second >= few.rows_per_second / 1.02
    assert few.count * few.threads <= max(cpus, table.threads[0])


def test_streams_of_few_threads_where_more_gain_nothing() -> None:
    """16 tokens gain nothing past two threads, 256 do: what the traffic is decides."""
    short = [(t, 1, 16, ms) for t, ms in ((1, 2.0), (2, 1.8), (4, 1.8))]
    long = [(t, 1, 256, ms) for t, ms in ((1, 60.0), (2, 25.0), (4, 12.0))]
    table = CostTable([*short, *long])
    assert (plan_streams(table, 4, {16: 1}).count, plan_streams(table, 4, {16: 1}).threads) == (
        4,
        1,
    )
    assert (plan_streams(table, 4, {256: 1}).count, plan_streams(table, 4, {256: 1}).threads) == (
        1,
        4,
    )


def test_streams_are_planned_for_as_many_as_wait() -> None:
    """Two threads pay in full batches of one length alone, which few that wait have in common."""
    rows = (1, 16, 32)
    one = [(1, b, n, float(b * n)) for b in rows for n in (1, 1000)]
    two = [
        (2, b, n, n * gain) for b, gain in zip(rows, (1, 16, 12.8), strict=True) for n in (1, 1000)
    ]
    table = CostTable([*one, *two])
    assert plan_streams(table, 2, {320: 1}).threads == 2
    assert plan_streams(table, 2, {10 * n: 1 for n in range(1, 65)}).threads == 1


#: Two threads halve a run of 256 tokens, nearly, and don't help one of 16.
HALVING = CostTable(
    [(t, 1, n, ms) for t, n, ms in ((1, 16, 2.0), (2, 16, 1.8), (1, 256, 60.0), (2, 256, 32.0))]
)


@pytest.mark.parametrize(
    ("length", "allowed", "threads"),
    [
        (256, None, 1),
        (256, 0.1, 2),  # of runs of a thread there is time for one
        (256, 0.13, 1),
        (256, 0.05, 2),  # not even of two threads for more than one
        (16, 0.003, 1),  # it would cost nearly half of the answers
    ],
)
def test_runs_are_shorter_where_nobody_could_wait_for_one(
    length: int, allowed: float | None, threads: int
) -> None:
    found = plan_streams(HALVING, 2, {length: 1}, allowed)
    assert found.threads == threads and found.count == 2 // threads


def test_lengths_are_put_together_at_those_measured() -> None:
    assert [HALVING.measured(n) for n in (1, 16, 17, 256, 300)] == [16, 16, 256, 256, 256]


def test_cpus_are_divided_by_what_comes() -> None:
    division = Division(HALVING, 2, plan_streams(HALVING, 2, {16: 1}), Speed())
    seen = []
    for i in range(4 * Division.SEEN):
        division.see(256 if i < 2 * Division.SEEN else 16, 0.1, i * 0.1)
        seen.append(division.streams.threads)
    changes = [i for i in range(1, len(seen)) if seen[i] != seen[i - 1]]
    assert seen[0] == 1 and changes == [Division.SEEN - 1, 3 * Division.SEEN - 1]
    for at, threads in ((25.6, 1), (26.6, 2)):  # at most once in a second
        for _ in range(Division.SEEN):
            division.see(256, 0.1, at)
        assert division.streams.threads == threads


def test_runs_that_take_longer_than_their_costs_are_too_long_sooner() -> None:
    for ratio, threads in ((1.0, 1), (1.2, 2)):
        speed = Speed(measured=False)
        speed.see(0.01, 0.01 * ratio)
        division = Division(HALVING, 2, plan_streams(HALVING, 2, {256: 1}), speed)
        for _ in range(Division.SEEN):
            division.see(256, 0.13, 0.0)
        assert division.streams.threads == threads


def test_speed_follows_what_is_seen() -> None:
    speed = Speed()
    for _ in range(200):
        speed.see(0.01, 0.013)
    assert speed.factor == pytest.approx(1.3, rel=1e-3) and speed.bound >= speed.factor
    speed.see(0.01, 1e6)  # a suspended machine counts for ten times as slow at most
    assert speed.factor < 2
    unknown = Speed(measured=False)
    unknown.see(1.0, 0.004)
    assert unknown.factor == pytest.approx(0.004)
    # Of the first run its own time counts: the loop is busy with what fills the queue.
    unknown = Speed(measured=False)
    unknown.see(1.0, 0.5, 0.004)
    assert unknown.factor < 0.01


@pytest.mark.parametrize(
    "points", [None, [], [[1, 1, 1]], [[1, 1, 1, "2"]], [[1, 1, True, 2.0]], [[1, 1.5, 1, 2.0]], [[1, 1, 1, 0]], [[0, 1, 1, 1.0]]]
)  # fmt: skip
def test_costs_of_another_form_are_refused(points: object) -> None:
    with pytest.raises(ValueError, match=r"points|cost"):
        read_costs({"points": points}, most_rows=4, longest=64)


def test_a_file_of_costs_is_looked_at_before_the_server_starts(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"manifest_sha256": "ab" * 32, "points": [[1, 1, 8, 2.0]]}))
    bad.write_text(json.dumps({"points": [[1, 1, 8, 2.0]]}))
    assert read_document(str(good))["points"] == [[1, 1, 8, 2.0]]
    asked = parse([str(tmp_path), "--costs", str(good), "--stats", "{model}-{pid}.json"])
    assert asked.settings.costs == (str(good),) and asked.settings.stats == "{model}-{pid}.json"
    for path in (bad, tmp_path / "absent.json"):
        with pytest.raises(InputError, match=path.name):
            parse([str(tmp_path), "--costs", str(path)])


def test_costs_of_a_language_model_are_refused_in_words(tmp_path: Path) -> None:
    """The same command writes them, for another one."""
    file = tmp_path / "costs.json"
    texts = {"rows": 3, "prompts": [[1, 2.0]], "steps": [[1, 2.0]]}
    file.write_text(json.dumps({"manifest_sha256": "ab" * 32, "cpus": 2, "texts": texts}))
    with pytest.raises(InputError, match="costs of a language model, which simulate takes"):
        parse([str(tmp_path), "--costs", str(file)])
