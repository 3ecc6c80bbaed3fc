"""``edgecompile simulate``: from the costs in a bundle or a file to a table, a document and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgecompile.server.schedule.simulate import POLICIES
from tests.cli.command import run
from tests.runtime.bundles import DummyBundle
from tests.runtime.generations import make_generative

POINTS = [[t, b, n, n * b**0.8 / t**0.9] for t in (1, 2) for b in (1, 2) for n in (1, 8, 64)]
SERVER = {
    "rows": "independent",
    "padding": "proven",
    "cpus": 2,
    "points": POINTS,
    "length_percentiles": [3, 4, 8, 8, 20],
}


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle with dummy libraries and real costs, batch 1 or 2, lengths 1 to 64."""
    monkeypatch.chdir(tmp_path)
    made = DummyBundle(tmp_path / "tiny.ecb")
    made.document["plan"] = {"server": SERVER}
    made.write()
    return tmp_path / "tiny.ecb"


def replay(*arguments: str) -> dict[str, Any]:
    result = run("simulate", "tiny.ecb", "--requests", "200", "--json", *arguments)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_every_rule_at_several_loads(bundle: Path) -> None:
    document = replay("--slo", "100")
    assert list(document["saturated_per_s"]) == list(POLICIES)
    assert document["streams"] * document["threads"] == document["cpus"] == 2
    assert len(document["replays"]) == 7 * len(POLICIES)
    ours = [row for row in document["replays"] if row["policy"] == "by-cost"]
    assert all(row["answered"] + row["refused"] == 200 for row in ours)
    assert all(row["p99_ms"] <= 110 for row in ours)
    rates = [row["offered_per_s"] for row in ours]
    assert rates == sorted(rates)
    assert replay("--slo", "100") == document  # the same seed gives the same


def test_the_table_and_the_page(bundle: Path) -> None:
    result = run(
        "simulate", "tiny.ecb", "--requests", "100", "--slo", "50", "--plot", "load.html",
        "--policy", "by-cost", "--policy", "tei", "--rate", "100", "--rate", "20"
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "runs side by side" in result.stdout and result.stdout.count("by-cost") == 3
    page = (bundle.parent / "load.html").read_text()
    assert page.count("<svg") == 2 and "99th percentile, ms" in page and "tei" in page


def test_costs_and_lengths_from_files(bundle: Path) -> None:
    twice = [[*point[:3], 2 * point[3]] for point in POINTS]
    Path("costs.json").write_text(json.dumps({"points": twice, "cpus": 4}))
    Path("lengths.txt").write_text("8\n" * 20 + "100\n")
    one = ("--policy", "one-by-one", "--lengths", "lengths.txt")
    slow, fast = replay(*one, "--costs", "costs.json", "--cpus", "2"), replay(*one)
    ratio = fast["saturated_per_s"]["one-by-one"] / slow["saturated_per_s"]["one-by-one"]
    assert ratio == pytest.approx(2.0) and replay(*one, "--costs", "costs.json")["cpus"] == 4


def test_a_trace(bundle: Path) -> None:
    Path("trace.csv").write_text("seconds,length\n3.5,8\n3.0,4\n3.5,64\n")
    document = replay("--trace", "trace.csv", "--policy", "streams", "--noise", "0")
    (row,) = document["replays"]
    assert row["answered"] == 3 and row["offered_per_s"] == pytest.approx(6.0)
    Path("bad.csv").write_text("seconds,length\n1,2,3\nx,4\n0.5,0\n1,7\n")
    result = run("simulate", "tiny.ecb", "--trace", "bad.csv")
    assert result.exit_code != 0
    assert all(f"line {n}:" in result.stderr for n in (2, 3, 4)) and "line 5" not in result.stderr
    Path("none.csv").write_text("seconds,length\n")
    assert "has no requests" in run("simulate", "tiny.ecb", "--trace", "none.csv").stderr
    both = run("simulate", "tiny.ecb", "--trace", "trace.csv", "--rate", "5")
    assert both.exit_code == 2 and "--rate" in both.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"points": None}, "has no costs of batches"),
        ({"points": [[1, 1, 1, -1.0]]}, "make no sense"),
        ({"points": [[1, 1, "x", 1.0]]}, "make no sense"),
        ({"cpus": 0}, "measured on 0 CPUs"),
    ],
)
def test_costs_that_are_none(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    made = DummyBundle(tmp_path / "tiny.ecb")
    server = {name: value for name, value in {**SERVER, **change}.items() if value is not None}
    made.document["plan"] = {"server": server}
    made.write()
    result = run("simulate", str(tmp_path / "tiny.ecb"))
    assert result.exit_code != 0 and says in result.stderr and "--profile server" in result.stderr


def test_a_bundle_that_no_costs_would_help_is_not_sent_to_measure_them(tmp_path: Path) -> None:
    DummyBundle(tmp_path / "tiny.ecb").write()
    result = run("simulate", str(tmp_path / "tiny.ecb"))
    assert result.exit_code == 44 and "can share a run" in result.stderr
    assert "--profile server" in result.stderr and "--serving" not in result.stderr


COSTS = {
    "cpus": 2,
    "texts": {"prompts": [[1, 1.0], [24, 6.0]], "steps": [[1, 10.0], [2, 11.0], [3, 12.0]]},
}


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A language model's bundle, without libraries that run, and a file of its costs."""
    monkeypatch.chdir(tmp_path)
    made = DummyBundle(tmp_path / "tiny.ecb")
    make_generative(made)
    made.write()
    (tmp_path / "costs.json").write_text(json.dumps(COSTS))
    return tmp_path / "tiny.ecb"


def test_texts_of_a_trace(texts: Path) -> None:
    Path("trace.csv").write_text("seconds,length,new\n1.0,3,5\n" + "1.0,2,5\n" * 2 + "9.0,1,2\n")
    document = replay("--costs", "costs.json", "--trace", "trace.csv", "--noise", "0")
    ours, single = document["replays"]
    assert (ours["policy"], single["policy"]) == ("by-cost", "one-by-one")
    assert ours["texts"] == 4 and ours["runs"]["3"] and set(single["runs"]) == {"1"}
    assert ours["gap_p99_ms"] < single["gap_p99_ms"] and ours["first_p50_ms"] > 0
    table = run("simulate", "tiny.ecb", "--costs", "costs.json", "--trace", "trace.csv")
    assert table.exit_code == 0 and "tokens/s" in table.stdout
    Path("long.csv").write_text("0,9999,5\n0,2,2\n")
    said = run("simulate", "tiny.ecb", "--costs", "costs.json", "--trace", "long.csv")
    assert "1 of 2 texts don't fit" in said.stderr
    bad = run("simulate", "tiny.ecb", "--costs", "costs.json", "--trace", "costs.json")
    assert "seconds,length,new" in bad.stderr


def test_texts_that_are_drawn(texts: Path) -> None:
    Path("lengths.txt").write_text("2\n3\n3\n")
    how = ("--costs", "costs.json", "--lengths", "lengths.txt", "--new-tokens", "4")
    document = replay(*how)
    assert document["saturated_per_s"]["by-cost"] > 2 * document["saturated_per_s"]["one-by-one"]
    assert len(document["replays"]) == 14 and replay(*how) == document
    (row,) = replay(*how, "--rate", "3", "--policy", "by-cost")["replays"]
    assert row["texts"] == 200 and row["offered_per_s"] == pytest.approx(3, rel=0.3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "need --trace, or lengths of prompts"),
        (("--slo", "5", "--policy", "tei"), "--slo and --policy tei: that is for models"),
        (("--lengths", "long.txt"), "No text fits into the context"),
        (("--trace", "trace.csv", "--new-tokens", "3"), "leave --new-tokens out"),
    ],
)
def test_options_that_texts_have_not(texts: Path, options: tuple[str, ...], says: str) -> None:
    Path("long.txt").write_text("3\n")
    Path("trace.csv").write_text("0,1,2\n")
    result = run("simulate", "tiny.ecb", "--costs", "costs.json", *options)
    assert result.exit_code == 2 and says in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"texts": None}, "has no costs of texts"),
        ({"cpus": 0}, "measured on 0 CPUs"),
        ({"texts": {"prompts": [[1, 1.0]], "steps": [[2, 1.0]]}}, "each number of texts"),
        ({"texts": {"prompts": [[1, -1.0]], "steps": [[1, 1.0]]}}, "is no pair"),
        ({"texts": {"prompts": [[1, 1.0]], "steps": []}}, "there are none"),
        ({"texts": {"prompts": [[1, "x"]], "steps": [[1, 1.0]]}}, "is no pair"),
    ],
)
def test_costs_of_texts_that_are_none(texts: Path, change: dict[str, Any], says: str) -> None:
    Path("costs.json").write_text(json.dumps({**COSTS, **change}))
    result = run("simulate", "tiny.ecb", "--costs", "costs.json")
    assert (
        result.exit_code == 44
        and says in result.stderr
        and "bench BUNDLE --serving" in result.stderr
    )
    result = run("simulate", "tiny.ecb")
    assert result.exit_code == 44 and "a bundle has no costs of texts" in result.stderr


def test_new_tokens_are_for_language_models(bundle: Path) -> None:
    result = run("simulate", "tiny.ecb", "--new-tokens", "3")
    assert result.exit_code == 2 and "for language models" in result.stderr
