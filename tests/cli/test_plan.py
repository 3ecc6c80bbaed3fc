"""The commands lengths and plan."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import LENGTHS, run
from tests.drift.served import stats_document, write_stats


def test_lengths_summary_and_histogram(files: Path) -> None:
    result = run("lengths", "lengths.txt", "--json", "-o", "out.json", "--max-length", "100")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert set(document) == {"lengths", "counts", "source", "summary", "share_over"}
    assert set(document["summary"]) == {"n", "distinct", "mean", "min", "p50", "p90", "p99", "max"}
    assert document["summary"]["n"] == 200 and document["summary"]["max"] == 100
    over = sum(int(line) > 100 for line in LENGTHS.split())
    assert document["share_over"] == pytest.approx(over / 200) and over > 0
    again = json.loads(run("lengths", "out.json", "--json").stdout)
    assert (again["lengths"], again["counts"]) == (document["lengths"], document["counts"])
    assert result.stderr == "wrote out.json\n"
    assert run("lengths", "lengths.txt", "-q", "-o", "o.json").stderr == ""


def test_lengths_of_standard_input() -> None:
    result = run("lengths", "-", stdin="3\n3\n9\n")
    assert result.exit_code == 0, result.stderr
    assert re.search(r"^  inputs +3, of 2 lengths$", result.stdout, re.MULTILINE)


def test_the_ends_of_a_short_histogram_stay_apart() -> None:
    assert run("lengths", "-", stdin="3\n4\n").stdout.splitlines()[-1] == "  3  4"
    assert run("lengths", "-", stdin="7\n7\n").stdout.splitlines()[-1] == "  7"


def test_a_file_of_texts_is_recognised(files: Path) -> None:
    (files / "log.txt").write_text("Return the output of it\nand a second text, with a comma\n")
    result = run("lengths", "log.txt")
    assert result.exit_code == 30
    assert "hint: is this a file of texts? Give it as --texts, and" in result.stderr
    (files / "log.txt").write_text("lenght\n3\n")
    assert "hint: give one length per line" in run("lengths", "log.txt").stderr


def test_lengths_of_what_devices_served(files: Path) -> None:
    path = write_stats(files / "stats.json", stats_document({3: 5, 9: 2}))
    document = json.loads(run("lengths", "--from-stats", str(path), "--json").stdout)
    assert (document["lengths"], document["counts"]) == ([3, 9], [5, 2])


def test_plan_from_cost_points(files: Path) -> None:
    arguments = ("plan", "lengths.txt", "--cost-points", "costs.csv", "--max-buckets", "3")
    result = run(*arguments, "--json", "-o", "plan.json", "--report", "plan.html")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"buckets", "policies", "cost_model", "expected_ms", "notes"} <= set(document)
    assert 1 <= len(document["buckets"]) <= 3
    for bucket in document["buckets"]:
        assert {"lo", "hi", "hint", "mode"} <= set(bucket)
        assert bucket["lo"] <= bucket["hint"] <= bucket["hi"]
        assert bucket["mode"] in ("exact", "pad")
    for policy in document["policies"].values():
        assert {"expected_ms", "padding_waste", "programs", "regret"} <= set(policy)
        assert policy["regret"] >= -1e-9
    assert {"optimum", "pad_to_max", "powers_of_two"} <= set(document["policies"])
    assert document["policies"]["optimum"]["regret"] == 0
    assert document["cost_model"]["kind"] == "measured"
    assert [p["length"] for p in document["cost_model"]["points"]] == [2, 16, 64, 256]
    assert json.loads((files / "plan.json").read_text()) == document
    assert "<svg" in (files / "plan.html").read_text()
    assert run(*arguments, "--json").stdout == result.stdout
    text = run(*arguments).stdout
    assert "Buckets" in text and "powers of two" in text and "chosen" in text
    assert not re.search(r"[ \t]$", text, re.MULTILINE)


def test_the_mode_is_obeyed(files: Path) -> None:
    for mode in ("exact", "pad"):
        result = run("plan", "lengths.txt", "--cost-points", "costs.csv", "--mode", mode, "--json")
        assert {bucket["mode"] for bucket in json.loads(result.stdout)["buckets"]} == {mode}


def test_plan_over_two_axes(files: Path) -> None:
    """A joint histogram and a surface; the padding of a static box counts on both axes."""
    rows = [f"{n},{b},{5 if b == 1 else 1}" for n in (4, 9, 30) for b in (1, 2, 8)]
    (files / "joint.csv").write_text("length,batch,count\n" + "\n".join(rows))
    points = [f"{n},{b},{2 + n * b},{1 + n * b}" for n in (1, 32) for b in (1, 8)]
    (files / "surface.csv").write_text("length,batch,exact_ms,pad_ms\n" + "\n".join(points))
    arguments = ("plan", "joint.csv", "--cost-points", "surface.csv", "--max-buckets", "4")
    result = run(*arguments, "--json", "-w", "w", "--report", "joint.html")
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["cost_model"]["axes"] == ["length", "batch"]
    assert 0 < document["lower_bound_ms"] <= document["expected_ms"] + 1e-9
    assert 1 <= len(document["buckets"]) <= 4
    assert all("batch" in bucket["axes"] for bucket in document["buckets"])
    assert {"optimum", "pad_to_max", "one_range"} <= set(document["policies"])
    assert all(p["regret"] >= -1e-9 for p in document["policies"].values())
    assert json.loads((files / "w" / "lengths.json").read_text())["axes"] == ["length", "batch"]
    again = run("plan", "--cost-points", "surface.csv", "--max-buckets", "4", "-w", "w", "--json")
    assert json.loads(again.stdout)["buckets"] == document["buckets"]
    assert "<svg" in (files / "joint.html").read_text()
    assert re.search(r"^bucket +mode +length +batch", run(*arguments).stdout, re.MULTILINE)
    alone = run("plan", "lengths.txt", "--cost-points", "surface.csv")
    assert alone.exit_code == 30 and "the sample only tells length" in alone.stderr


def test_other_columns_are_no_axes(files: Path) -> None:
    (files / "ids.csv").write_text("id,length,count\na7,4,2\nb9,30,1\n")
    result = run("plan", "ids.csv", "--cost-points", "costs.csv", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["lengths"]["n"] == 3


def test_a_work_folder_brings_its_lengths(files: Path) -> None:
    first = run("plan", "lengths.txt", "--cost-points", "costs.csv", "-w", "w", "--json")
    assert first.exit_code == 0, first.stderr
    assert {path.name for path in (files / "w").iterdir()} == {"lengths.json", "plan.json"}
    again = run("plan", "--cost-points", "costs.csv", "-w", "w", "--json")
    assert json.loads(again.stdout)["buckets"] == json.loads(first.stdout)["buckets"]
    missing = run("compile", "-w", "w")
    assert missing.exit_code == 33 and "edgecompile export MODEL --work-dir w" in missing.stderr


@pytest.mark.parametrize("precision", ["fp16", pytest.param("int8", marks=pytest.mark.slow)])
def test_a_gpu_s_precision_isn_t_that_of_the_cores(
    files: Path, tiny_model: Path, precision: str
) -> None:
    lengths = ("--model", str(tiny_model), "--max-length", "32")
    target = ("--target", "jetson-orin-nano", "--precision", precision)
    result = run("plan", "lengths.txt", *lengths, *target, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["expected_ms"] > 0
