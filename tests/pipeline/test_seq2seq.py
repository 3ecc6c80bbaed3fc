"""An encoder-decoder model compiled: texts behind sources are transformers' own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from click.testing import CliRunner

from edgecompile.errors import PlanError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import LoadOptions
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime import (
    ContextLengthError,
    DamagedBundleError,
    InputError,
    Model,
    OutsideBucketsError,
    open_bundle,
)
from edgecompile.runtime.__main__ import main
from edgecompile.runtime.commands.selftest import run_selftest
from tests.conftest import one_at_a_time
from tests.zoo.generation_families import LONGEST_SOURCE, TARGET, load_family, make_family


@pytest.fixture(scope="module")
def folder(shared_folder: Path) -> Path:
    """A folder with a T5, and its bundle beside it."""
    from edgecompile.cli import cli

    place = shared_folder / "seq2seq"
    with one_at_a_time(shared_folder / "seq2seq.lock"):
        if not (place / "t5.ecb").exists():
            t5 = make_family("t5")
            t5.generation_config.num_beams = 4  # what isn't done has to be said
            t5.save_pretrained(place / "t5")
            (place / "sources.txt").write_text("\n".join(["3", "5", "9", "9", "14", "30"]) + "\n")
            options = f"--max-context 128 --max-length {LONGEST_SOURCE} --buckets 1 --mode exact"
            command = (
                f"build {place / 't5'} --task seq2seq-lm --lengths {place / 'sources.txt'} "
                f"--target {TARGET} {options} --output {place / 't5.ecb'} --json"
            )
            done = CliRunner().invoke(cli, command.split())
            assert done.exit_code == 0, done.stderr
            (place / "built.json").write_text(done.stdout)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with open_bundle(folder / "t5.ecb") as opened:
        yield opened


@pytest.fixture(scope="module")
def t5() -> LoadedModel:
    return load_family("t5")  # type: ignore[no-any-return]


def wanted(t5: LoadedModel, source: list[int], prompt: list[int], most: int) -> list[int]:
    import torch

    assert t5.generation is not None and t5.generation.encoder is not None
    ids = torch.tensor([source])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return t5.generation.greedy(prompt, most, given)


def test_tokens_are_those_of_transformers(model: Model, t5: LoadedModel) -> None:
    random = np.random.default_rng(4)
    for length in (1, 2, 11, LONGEST_SOURCE):
        source = random.integers(3, 97, length).tolist()
        for begun in ([], [7], random.integers(3, 97, 21).tolist()):
            want = wanted(t5, source, [0, *begun], 12)
            got = model.generate(
                source, decoder_input_ids=begun or None, max_new_tokens=12, do_sample=False
            )
            assert list(got) == want


def test_a_session_reads_a_source_once(model: Model, t5: LoadedModel) -> None:
    assert model.encoder is not None
    chat = model.session()
    before = model.encoder.stats["runs"]
    source = [5, 6, 7, 8, 9]
    first = chat.generate(source, max_new_tokens=4, do_sample=False, eos=())
    stream = chat.stream(source, decoder_input_ids=[0, *first], max_new_tokens=3, do_sample=False)
    assert list(stream) == wanted(t5, source, [0, *first], 3)
    # The last token of the first text was never run.
    assert stream.reused == len(first)
    assert model.encoder.stats["runs"] == before + 1
    other = chat.stream([5, 6, 7, 8, 10], max_new_tokens=9, do_sample=False)
    assert list(other) == wanted(t5, [5, 6, 7, 8, 10], [0], 9)
    assert other.reused == 0 and model.encoder.stats["runs"] == before + 2


def test_the_caller_may_change_its_source(model: Model, t5: LoadedModel) -> None:
    chat = model.session()
    ids = np.array([[11, 12, 13]])
    chat.generate(ids, max_new_tokens=2, do_sample=False)
    ids[0, 1] = 40
    assert chat.generate(ids, max_new_tokens=8, do_sample=False) == wanted(t5, [11, 40, 13], [0], 8)


def test_what_is_refused_before_anything_runs(model: Model) -> None:
    assert model.encoder is not None
    before = model.encoder.stats["runs"]
    wrong: list[tuple[type[Exception], Any, dict[str, Any], str]] = [
        (InputError, [], {}, "input_ids"),
        (InputError, [97], {}, "outside 0..96"),
        (InputError, [0.5], {}, "has dtype float64"),
        (InputError, {"ids": [[1]]}, {}, "no such input"),
        (InputError, [1], {"decoder_input_ids": [99]}, "outside 0..96"),
        (InputError, [1], {"top_p": 2}, "top_p is 2"),
        (OutsideBucketsError, [1] * 41, {}, "41"),
        (ContextLengthError, [1], {"max_new_tokens": 128}, "context of 128"),
    ]
    for kind, source, options, text in wrong:
        with pytest.raises(kind, match=text):
            model.stream(source, **options)
    assert model.encoder.stats["runs"] == before


def test_the_build_says_what_is_not_done(folder: Path) -> None:
    notes = json.loads((folder / "built.json").read_text())["notes"]
    assert [note for note in notes if "num_beams 4" in note and "isn't done" in note]
    assert len(set(notes)) == len(notes)


def test_a_precision_is_not_chosen(tmp_path: Path) -> None:
    """It is known before the model is loaded."""
    request = BuildRequest(
        model=str(tmp_path / "away"),
        target=TARGET,
        plan=PlanRequest(LengthDistribution.from_samples([3]), precision="auto"),
        output=tmp_path / "out.ecb",
        load=LoadOptions(task="seq2seq-lm"),
    )
    with pytest.raises(PlanError, match="generates by two parts"):
        build(request)


def test_the_bundle_within(folder: Path, model: Model) -> None:
    spec = model.manifest.generation
    assert spec is not None and (spec.kind, spec.encoder, spec.start) == (
        "seq2seq",
        "encoder",
        (0,),
    )
    listed = {name for name in model.manifest.files if name.startswith("encoder/")}
    with open_bundle(folder / "t5.ecb" / "encoder") as encoder:
        assert listed == {f"encoder/{name}" for name in (*encoder.manifest.files, "manifest.json")}
        found = encoder.run({"input_ids": [[4, 5]], "attention_mask": [[1, 1]]})
        assert list(found) == list(spec.cross) and found["cross_1_value"].shape == (2, 4, 8)
    report = json.loads((folder / "t5.ecb" / "reports" / "verify.json").read_text())
    assert len(report["texts"]) == 4 and all(text["ok"] for text in report["texts"])


def test_selftest_and_verify_repeat_both_parts(folder: Path) -> None:
    from edgecompile.cli import cli

    report = run_selftest(str(folder / "t5.ecb"))
    assert report["ok"] and len(report["generation"]) == 4
    assert report["encoder"] and all(item["ok"] for item in report["encoder"])
    command = f"verify {folder / 't5.ecb'} --model {folder / 't5'} --seed 3 --json"
    done = CliRunner().invoke(cli, command.split())
    assert done.exit_code == 0, done.stderr
    assert all(text["ok"] for text in json.loads(done.stdout)["texts"])


def test_the_command_line(
    folder: Path, t5: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"generate {folder / 't5.ecb'} --ids 5,6,7 --max-new-tokens 6 --greedy --json"
    assert main(command.split()) == 0
    (text,) = json.loads(capsys.readouterr().out)["texts"]
    assert text["tokens"] == wanted(t5, [5, 6, 7], [0], 6)
    assert (text["source"], text["prompt"]) == ([5, 6, 7], [0])


@pytest.mark.parametrize("change", ["another", "link"])
def test_another_encoder_is_refused(folder: Path, tmp_path: Path, change: str) -> None:
    bundle = tmp_path / "b.ecb"
    shutil.copytree(folder / "t5.ecb", bundle)
    inner = bundle / "encoder"
    if change == "link":
        shutil.move(inner, tmp_path / "elsewhere")
        inner.symlink_to(tmp_path / "elsewhere")
    else:
        text = (inner / "manifest.json").read_text()
        assert '"name": "encoder"' in text
        (inner / "manifest.json").write_text(text.replace('"name": "encoder"', '"name": "encodes"'))
    with pytest.raises(DamagedBundleError, match=r"file-kind|file-hash"):
        open_bundle(bundle)
