"""A bundle beside other contenders, all the way; figures of so short a run mean nothing."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.baselines.registry import prepare_baselines
from benchmarks.baselines.workshop import Workshop
from benchmarks.encoder.record import best_alike, best_by_precision, render_record
from edgecompile.bench.bench import SUBJECT, bench_bundle
from edgecompile.bench.report import BenchReport, BenchSettings
from edgecompile.errors import BenchError, BundleError, ModelError
from edgecompile.lengths.distribution import LengthDistribution

QUICK = BenchSettings(rounds=2, runs=5, warmup_rounds=1, cold_runs=1, pause_s=0.0, threads=1)
LENGTHS = LengthDistribution.from_samples([3, 5, 5, 9, 31, 90])
#: Keys that programs read of each.
KEYS = {
    *("mean_ms", "p50", "p90", "p99", "spread", "cold_s", "rss_mb", "cosine", "max_abs_error"),
    "bytes",
}


@pytest.fixture(scope="module")
def report(
    tiny_bundle: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> BenchReport:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    cache = tmp_path_factory.mktemp("cache")
    workshop = Workshop.of_bundle(tiny_bundle, str(tiny_model), 1, cache)
    return bench_bundle(
        tiny_bundle,
        QUICK,
        against=prepare_baselines(["eager", "onnxruntime"], workshop),
        model_spec=str(tiny_model),
        lengths=LENGTHS,
        cache=cache,
        command=["a", "command"],
    )


@pytest.mark.slow
def test_everything_measured_has_its_figures(report: BenchReport) -> None:
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert list(document["contenders"]) == [SUBJECT, "eager", "onnxruntime"]
    for name, item in document["contenders"].items():
        assert set(item) >= KEYS
        assert all(math.isfinite(item[key]) for key in KEYS), name
        assert 0 < item["p50"] <= item["p90"] <= item["p99"]
        assert len(item["round_means_ms"]) == 2
        assert item["precision"] == "fp32"
        assert item["cosine"] > 0.999999 and item["max_abs_error"] < 1e-4
        assert item["bytes"] == sum(item["bytes_by_part"].values()) > 0
        memory = item["memory_mb"]
        assert memory["start"] < memory["resident"]
        assert memory["private"] + memory["shared"] <= memory["resident"] + 0.1
        parts = item["cold_start"]
        assert parts["total_s"] == pytest.approx(
            parts["python_s"] + parts["open_s"] + parts["run_s"]
        )
    assert document["contenders"]["eager"]["max_abs_error"] == 0
    assert document["contenders"][SUBJECT]["max_abs_error"] > 0, "it isn't eager that was run"


@pytest.mark.slow
def test_a_bundle_needs_less_than_torch(report: BenchReport) -> None:
    ours, eager, _ = report.results
    assert ours.memory is not None and eager.memory is not None
    assert ours.memory.resident < 0.5 * eager.memory.resident
    assert ours.bytes < 0.1 * eager.bytes


@pytest.mark.slow
def test_ratios_are_of_rounds(report: BenchReport) -> None:
    means = {item.name: item.times.round_means_ms for item in report.results}
    for name, row in report.ratios.items():
        assert set(row) == set(means) - {name}
        for other, ratio in row.items():
            each = [a / b for a, b in zip(means[name], means[other], strict=True)]
            assert ratio.median == pytest.approx(sum(each) / 2)
            assert min(each) <= ratio.p10 <= ratio.median <= ratio.p90 <= max(each)
    best = report.best_other
    assert best is not None and best.name != SUBJECT
    assert best_by_precision(report) == {"fp32": best} and best_alike(report) is best


@pytest.mark.slow
def test_the_best_of_each_precision(report: BenchReport) -> None:
    """A narrow bundle is compared with narrow contenders first, and with all."""
    narrow = replace(report.subject, precision="int8-mixed-0123abcd")
    eager, onnx = (
        replace(item, times=replace(item.times, mean_ms=ms))
        for item, ms in zip(report.results[1:], (3.0, 5.0), strict=True)
    )
    other = replace(report, results=(narrow, eager, replace(onnx, precision="int8")))
    assert other.best_other is eager
    assert list(best_by_precision(other)) == ["int8", "fp32"]
    assert (best_alike(other) or narrow).name == "onnxruntime"
    document = other.to_json()
    assert document["contenders"][SUBJECT]["precision"] == "int8-mixed-0123abcd"
    text = render_record(other, "Narrow")
    assert "of the best int8, onnxruntime (5.00 ms); **" in text
    assert "The best of all others is eager." in text
    assert "| over the best int8 | over the best fp32 |" in text
    assert "| of the best int8 |" in text
    lonely = replace(other, results=(narrow, eager))
    assert best_alike(lonely) is None
    assert "None of them computes in int8." in render_record(lonely, "Lonely")


@pytest.mark.slow
def test_all_run_the_same_lengths(report: BenchReport) -> None:
    # The quantiles of the sample, its longest cut to what the bundle takes.
    assert [list(row) for row in report.by_length.values()] == [[3, 5, 31, 32]] * 3
    assert report.lengths["n"] == 5 and report.lengths["max"] == 32
    assert report.notes == ("16.7 % of the lengths are over 32 and were cut to it",)


@pytest.mark.slow
def test_the_report_says_how_it_was_made(report: BenchReport, tiny_model: Path) -> None:
    text = json.dumps(report.to_json())
    assert str(tiny_model.parent) not in text, "paths of this machine"
    assert report.model == tiny_model.name
    weights = (tiny_model / "model.safetensors").read_bytes()
    assert report.model_sha256["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert report.command == ("a", "command")
    assert report.settings.threads == 1
    assert {"edgecompile", "numpy", "eager", "onnxruntime"} <= set(report.versions)
    assert report.load["average_1min"] >= 0
    assert report.subject.facts["variant"].startswith("x86-64") or report.machine["architecture"]


@pytest.mark.slow
def test_a_record_for_people(report: BenchReport) -> None:
    text = render_record(report, "A title", remarks=["A remark."])
    assert text.startswith("# A title\n\n")
    assert "A remark." in text and "command: `a command`" in text
    for item in report.results:
        assert f"| {item.name} | " in text
    for line in text.splitlines():
        assert line == line.rstrip()
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    assert len(tables) == 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


@pytest.mark.slow
def test_a_bundle_alone_and_against_another(tiny_bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.ecb"
    other.symlink_to(tiny_bundle)
    report = bench_bundle(
        tiny_bundle,
        replace(QUICK, cold_runs=0),
        against=[str(other), str(other)],
        cache=tmp_path / "cache",
    )
    assert [item.name for item in report.results] == [SUBJECT, "other"], "each once"
    assert report.subject.cosine is None and report.subject.cold is None
    assert report.lengths["source"] == "what each bucket is tuned for"
    text = render_record(report, "Two bundles")
    assert "of the best fp32, other" in text
    alone = bench_bundle(
        tiny_bundle,
        replace(QUICK, cold_runs=0),
        cache=tmp_path / "cache",
    )
    assert alone.best_other is None and alone.ratios == {SUBJECT: {}}
    assert "was measured alone" in render_record(alone, "One")


def test_what_makes_no_sense_is_refused_at_once(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"rounds: 0, at least 1.*pause s: -1\.0"):
        BenchSettings(rounds=0, pause_s=-1.0)
    with pytest.raises(BenchError, match="threads: 0"):
        BenchSettings(threads=0)
    with pytest.raises(BenchError, match="eager: made from the model"):
        bench_bundle(tiny_bundle, QUICK, against=["eager"])
    with pytest.raises(BundleError):
        bench_bundle(tmp_path / "absent.ecb", QUICK)


def test_the_model_of_another_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    source = tmp_path / "other.py"
    source.write_text(
        "import torch\n"
        "def make():\n"
        "    axes = {'input': {0: 'batch', 1: 'length'}}\n"
        "    return torch.nn.ReLU(), {'input': torch.ones(1, 4)}, axes\n"
        "def single():\n"
        "    return torch.nn.ReLU(), {'input': torch.ones(1, 4)}, {'input': {1: 'length'}}\n"
    )
    with pytest.raises(BenchError, match="isn't the model of this bundle: its inputs are input"):
        bench_bundle(tiny_bundle, QUICK, model_spec=f"{source}:make", cache=tmp_path)
    with pytest.raises(ModelError, match=r"batches of 1 to 2 .* none of its axes is 'batch'"):
        bench_bundle(tiny_bundle, QUICK, model_spec=f"{source}:single", cache=tmp_path)
