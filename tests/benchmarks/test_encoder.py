"""benchmarks/run encoder: what it measures, and what it calls its records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.encoder import encoder as bench_encoder
from benchmarks.encoder.models import PRESETS, make_bert
from edgecompile.bench.bench import bench_bundle
from edgecompile.bench.report import BenchSettings
from edgecompile.loaders.load import load_model

TINY = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}


def test_random_weights_are_always_the_same(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    first, second = (make_bert(tmp_path / name, TINY) for name in ("a", "b"))
    digests = {
        hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        for folder in (first, second)
    }
    assert len(digests) == 1
    before = (first / "config.json").stat().st_mtime_ns
    assert make_bert(first, TINY) == first
    assert (first / "config.json").stat().st_mtime_ns == before, "made once"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert "length" in load_model(str(first), batch=(1, 1)).axes, "it needs no tokenizer"


def test_bert_base_is_run_at_four_lengths(tmp_path: Path) -> None:
    preset = PRESETS["bert-base"]
    lengths = preset.read(tmp_path)
    assert lengths.lengths == (16, 32, 64, 128) and set(lengths.counts) == {1}
    assert preset.max_length == 128


def test_baselines_follow_the_precision() -> None:
    wide = bench_encoder.default_baselines("fp32").split(",")
    assert {"eager", "torch-compile", "aoti", "onnxruntime", "openvino", "executorch"} <= set(wide)
    narrow = bench_encoder.default_baselines("int8").split(",")
    assert {"onnxruntime-int8", "openvino-int8", *wide} < {*narrow}


def test_a_record_names_model_and_precision(tiny_bundle: Path, tmp_path: Path) -> None:
    report = bench_bundle(
        tiny_bundle,
        BenchSettings(rounds=1, runs=2, warmup_rounds=0, cold_runs=0, pause_s=0.0),
        cache=tmp_path,
    )
    options = bench_encoder.parse_arguments(
        ["--preset", "bert-base", "--output", str(tmp_path / "records"), "--remark", "Why."]
    )
    path = bench_encoder.write_record(report, options)
    assert path.name == f"{report.started[:10]}-bert-base-fp32.md"
    text = path.read_text()
    assert text.startswith("# BERT-base, random weights, fp32, ") and "Why." in text
    assert json.loads(path.with_suffix(".json").read_text())["bundle"] == report.bundle
    narrow = replace(report.subject, precision="int8-mixed-0123abcd")
    path = bench_encoder.write_record(replace(report, results=(narrow,)), options)
    assert path.name.endswith("-bert-base-int8.md")
    assert "weights, int8-mixed-0123abcd, " in path.read_text()


def test_help_is_there_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench_encoder.parse_arguments(["--help"])
    assert "--preset {minilm,bert-base}" in capsys.readouterr().out
