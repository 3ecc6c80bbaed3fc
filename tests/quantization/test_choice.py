"""--precision auto: what is tried and chosen, and real inputs that everything is judged by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

pytest.importorskip("transformers")

from edgecompile.bundle.cases import make_cases
from edgecompile.bundle.verdict import VerifyReport
from edgecompile.cli import cli
from edgecompile.errors import VerificationError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples, SampleTexts, add_drawn, draw_samples, text_samples
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.single import compile_exports, pack_libraries
from edgecompile.planning.request import PlanRequest
from edgecompile.planning.subject import Subject, make_subject
from edgecompile.precision import Precision
from edgecompile.progress import NULL_STEP
from edgecompile.quantization.choice import (
    ResolvedPrecision,
    Trials,
    choose_precision,
    resolve_precision,
)
from edgecompile.quantization.files import load_precision, save_precision
from edgecompile.quantization.gptq import RoundedWeights
from edgecompile.quantization.program import Deviation, QuantizedProgram, fewest_kept
from edgecompile.quantization.reference import round_cases
from edgecompile.quantization.trials import PrecisionChoice, Trial
from edgecompile.runtime import open_bundle
from edgecompile.runtime.format.files.weights import map_weights
from edgecompile.targets.profile import load_target
from tests.quantization.quantized import narrowed_program
from tests.zoo.generation_families import load_family

TEXTS = ("the cat sat", "on a mat", "", "cat", "a cat and a day", "purred quietly all day " * 20)
LENGTHS = LengthDistribution.from_samples([3, 4, 4, 7, 9, 9, 9, 20, 31])


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return load_model(str(tiny_model))


@pytest.fixture
def texts(tmp_path: Path, tiny_model: Path) -> SampleTexts:
    file = tmp_path / "queries.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    return SampleTexts(file, tiny_model / "tokenizer.json")


def test_texts_become_the_models_inputs(model: LoadedModel, texts: SampleTexts) -> None:
    found = text_samples(model, texts, 32)
    assert found is not None and found.real
    assert found.lengths == (5, 5, 3, 7)  # the long one is over 32, the empty one is none
    assert found.source == "4 texts of queries.txt"
    ids = found.inputs[2]["input_ids"]
    assert ids.tolist() == [[1, 5, 2]]
    assert found.inputs[2]["attention_mask"].tolist() == [[1, 1, 1]]
    assert {array.dtype for array in found.inputs[0].values()} == {np.dtype("int64")}
    assert text_samples(model, texts, 32, count=2).lengths == (5, 7)  # type: ignore[union-attr]
    assert text_samples(model, texts, 2) is None


def test_inputs_that_no_tokenizer_gives_are_drawn(texts: SampleTexts) -> None:
    other = load_model("tests.factories.tiny_models:masked_mlp")
    assert text_samples(other, texts, 32) is None
    drawn = draw_samples(other, LENGTHS, 16)
    assert not drawn.real
    assert max(drawn.lengths) <= 16
    assert [array.shape[1] for item in drawn.inputs for array in item.values()][:2] == [3, 3]


def test_drawn_inputs_reach_from_the_shortest_to_the_longest(
    model: LoadedModel, texts: SampleTexts
) -> None:
    real = text_samples(model, texts, 32)
    assert real is not None
    both = add_drawn(real, model, 32, count=3)
    assert both.real and both.source == "4 texts of queries.txt and 3 drawn inputs of all lengths"
    assert both.lengths == (5, 1, 5, 17, 3, 32, 7)  # in turn, as far as there are both
    assert [inputs["input_ids"].shape[1] for inputs in both.inputs] == list(both.lengths)
    assert add_drawn(real, model, 1, count=1).lengths == (5, 1, 5, 3, 7)
    assert add_drawn(real, model, 32, count=6).lengths[-2:] == (26, 32)


@pytest.mark.parametrize("mode", ["exact", pytest.param("pad", marks=pytest.mark.slow)])
def test_narrowing_costs_what_its_precision_says(
    model: LoadedModel, texts: SampleTexts, tmp_path: Path, mode: str
) -> None:
    samples = text_samples(model, texts, 32)
    assert samples is not None
    narrowed = narrowed_program(model, tmp_path / mode, samples, 32, mode)
    assert len(narrowed.groups) == 13  # too narrow to be merged
    errors = [narrowed.deviation(Precision(name)).error for name in ("fp32", "bf16", "int8")]
    assert errors[0] < 1e-5 < errors[1] < 0.02
    assert errors[1] < errors[2] < 0.06
    ranked = narrowed.rank(Precision("int8"))
    assert [error for _, error in ranked] == sorted((e for _, e in ranked), reverse=True)
    # Nothing of what was tried alone is left behind.
    assert narrowed.deviation(Precision("fp32")).error == errors[0]
    worst = Precision("int8", tuple((name, "fp32") for name in ranked[0][0]))
    least = Precision("int8", tuple((name, "fp32") for name in ranked[-1][0]))
    assert narrowed.deviation(worst).error != narrowed.deviation(least).error


def test_figures_of_pairs_have_their_coarser_rounding(
    model: LoadedModel, texts: SampleTexts, tmp_path: Path
) -> None:
    samples = text_samples(model, texts, 32)
    assert samples is not None
    narrowed = narrowed_program(model, tmp_path, samples, 32)
    plain, paired, again = (
        narrowed.deviation(Precision("int8", pairs=pairs)) for pairs in (False, True, False)
    )
    assert paired.cosine is not None and plain.cosine is not None
    assert 0.999 < paired.cosine < plain.cosine and again == plain
    assert plain.or_worse(paired) == paired.or_worse(plain)
    assert plain.or_worse(paired).cosine == paired.cosine


@pytest.mark.parametrize("needed", [1, 2, 5, 9])
def test_as_few_layers_as_will_do_stay_wider(needed: int) -> None:
    groups = [(f"w{i}",) for i in range(10)]
    asked = []

    def holds(precision: Precision) -> bool:
        asked.append(precision)
        return len(precision.kept) >= needed

    found = fewest_kept(groups, Precision("int8"), "bf16", holds)
    assert found is not None
    precision, count = found
    assert count == needed
    assert dict(precision.kept) == {f"w{i}": "bf16" for i in range(needed)}
    assert len(asked) <= 5
    assert fewest_kept(groups, Precision("int8"), "bf16", lambda precision: False) is None
    assert fewest_kept(groups[:1], Precision("int8"), "bf16", lambda precision: True) is None


def test_both_bounds_have_to_hold() -> None:
    assert Deviation(0.01, 0.9995).within(0.01, 0.999)
    assert not Deviation(0.011, 0.9995).within(0.01, 0.999)
    assert not Deviation(0.01, 0.9985).within(0.01, 0.999)
    assert Deviation(0.01, None).within(0.01, 0.999)
    assert not Deviation(float("inf"), 1.0).within(1.0, None)


def find_subject(
    model: LoadedModel, folder: Path, precision: str = "int8", max_error: float | None = None
) -> Subject:
    return make_subject(
        ExportStore(model, folder / "exported"),
        load_target("cpu-x86-64-v3"),
        PlanRequest(
            LENGTHS,
            max_length=32,
            mode="exact",
            threads=1,
            precision=precision,
            max_error=max_error,
        ),
        folder,
    )


def chosen(model: LoadedModel, folder: Path, samples: Samples, max_error: float) -> PrecisionChoice:
    return choose_precision(find_subject(model, folder, "auto", max_error), samples)


def test_language_models_get_no_pairs(model: LoadedModel, tmp_path: Path) -> None:
    """Neither decoders that no texts judge nor tokens' scores without a cache."""

    def paired(of: LoadedModel, rounding: bool = True) -> bool:
        subject = find_subject(of, tmp_path / of.name)
        return resolve_precision(subject, rounding=rounding).precision.pairs

    assert paired(model)
    assert not paired(model, rounding=False)  # the encoder of a decoder that has its precision
    details = {**model.source.details, "task": "logits"}
    assert not paired(replace(model, source=replace(model.source, details=details)))
    made = load_family("t5").generation
    assert made.logits is None
    assert not paired(replace(model, generation=replace(made, encoder=None)))


class Planned(Trials):
    """Trials whose deviations are given: of int8 with and without pairs, in torch and as it runs."""

    def __init__(self, torch: dict[bool, float], runs: dict[bool, float], subject: Subject) -> None:
        self.torch, self.runs, self.subject = torch, runs, subject
        self.rounded, self.step, self.max_error = None, NULL_STEP, 0.05
        self.groups = [("a",), ("b",), ("c",)]
        self.tried: list[tuple[bool, int]] = []

    def deviation(self, precision: Precision) -> Deviation:
        return Deviation(0.001 if precision.kept else self.torch[precision.pairs], 1.0)

    def rank(self, precision: Precision, tell: object) -> list[tuple[tuple[str, ...], float]]:
        return [(group, 0.0) for group in self.groups]

    def _program(self, count: int) -> Any:
        return self

    def _try(
        self, precision: Precision, wider_count: int, predicted: Deviation | None = None
    ) -> Trial:
        self.tried.append((precision.pairs, wider_count))
        error = 0.001 if precision.kept else self.runs[precision.pairs]
        return Trial(precision, Deviation(error, 1.0), None, error < 0.03, wider_count, 1)


@pytest.mark.parametrize(
    ("torch", "runs", "tried"),
    [
        ({True: 0.01, False: 0.01}, {True: 0.01, False: 0.01}, [(True, 0)]),
        ({True: 0.04, False: 0.01}, {True: 0.04, False: 0.01}, [(False, 0)]),
        ({True: 0.01, False: 0.01}, {True: 0.04, False: 0.01}, [(True, 0), (False, 0)]),
        ({True: 0.04, False: 0.04}, {True: 0.04, False: 0.04}, [(False, 1)]),
    ],
)
def test_pairs_are_given_up_before_products_are_kept_wider(
    model: LoadedModel,
    tmp_path: Path,
    torch: dict[bool, float],
    runs: dict[bool, float],
    tried: list[tuple[bool, int]],
) -> None:
    trials = Planned(torch, runs, find_subject(model, tmp_path))
    trial = trials._search("int8", "bf16", trials._program(1))
    assert trial.within and trials.tried == tried
    assert (trial.precision.pairs, trial.kept) == tried[-1]


@pytest.mark.parametrize("cosine", [0.9991, 0.9989])
def test_a_named_int8_has_pairs_within_the_bounds_only(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cosine: float
) -> None:
    def deviation(program: QuantizedProgram, precision: Precision) -> Deviation:
        assert precision.pairs
        return Deviation(0.01, cosine)

    monkeypatch.setattr(QuantizedProgram, "deviation", deviation)
    found = resolve_precision(find_subject(model, tmp_path)).precision
    assert found.pairs == (cosine > 0.999) and found.rounded is not None


class Steady(nn.Module):
    """A layer whose outputs are differences of inputs near one: int8 keeps them, sums of pairs don't."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64, bias=False)
        self.register_buffer("shift", torch.randn(64))
        with torch.no_grad():
            self.linear.weight -= self.linear.weight.mean(1, keepdim=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(1 + 0.2 * torch.sin(x.clamp(-1, 1) + 3 * self.shift))


@pytest.fixture
def hopeful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildRequest:
    """A build with pairs, whatever the inputs say that they are chosen by: they may be easier than a bundle's cases."""

    def with_pairs(subject: Subject, samples: Samples, precision: Precision) -> Precision:
        return replace(precision, pairs=True)

    monkeypatch.setattr("edgecompile.quantization.choice._pair_within", with_pairs)
    torch.manual_seed(3)
    model = {
        "module": Steady(),
        "inputs": {"x": torch.randn(1, 8, 64)},
        "axes": {"x": {1: "length"}},
        "max_length": 8,
    }
    lengths = LengthDistribution.from_samples([4, 8, 8])
    plan = PlanRequest(lengths, precision="int8", quick=True, max_length=8)
    output, work = tmp_path / "steady", tmp_path / "work"
    return BuildRequest(model, "cpu-x86-64-v3", plan, work_dir=work, output=output, force=True)


def test_a_build_gives_up_pairs_that_its_cases_refuse(
    hopeful: BuildRequest, tmp_path: Path
) -> None:
    result = build(hopeful)
    paired = replace(load_precision(tmp_path / "work"), pairs=True)
    with open_bundle(result.bundle_path) as opened:
        assert "pairs" not in opened.manifest.plan.get("precision", {})
    (note,) = [note for note in result.notes if "adds no pairs" in note]
    assert "cases differ from eager" in note and "is allowed" in note
    # Another build there doesn't fail first again.
    again = build(hopeful)
    assert not load_precision(tmp_path / "work").pairs
    (note,) = [note for note in again.notes if "adds no pairs" in note]
    assert "earlier bundle in this work folder" in note
    # A stage that is run alone fails, and the next one of its kind doesn't.
    save_precision(tmp_path / "work", paired)
    plan = replace(hopeful.plan, plan=result.plan, lengths=None, precision=None, quick=False)
    alone = replace(hopeful, plan=plan)
    compile_exports(alone)
    with pytest.raises(VerificationError) as caught:
        pack_libraries(alone)
    assert caught.value.differs and "compile and pack again" in str(caught.value.hint)
    compile_exports(alone)
    assert pack_libraries(alone).verify is not None


def test_a_build_that_fails_otherwise_keeps_its_pairs(
    hopeful: BuildRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []

    def killed(*arguments: Any, **options: Any) -> VerifyReport:
        runs.append(arguments)
        raise VerificationError("the bundle's runtime was killed by signal 9")

    monkeypatch.setattr("edgecompile.pipeline.packing.verify_bundle", killed)
    with pytest.raises(VerificationError, match="killed"):
        build(hopeful)
    assert len(runs) == 1 and load_precision(tmp_path / "work").pairs


def test_a_choice_of_pairs_that_are_refused_says_so() -> None:
    paired = Precision("int8", pairs=True)
    choice = PrecisionChoice(paired, (), 3, 0.02, "some", ("chosen",))
    found = ResolvedPrecision(paired, choice).without_pairs("no pairs")
    assert found.choice is not None and found.precision == found.choice.precision
    assert not found.precision.pairs and found.choice.notes == ("chosen", "no pairs")


@pytest.mark.slow
def test_sensitive_layers_are_kept_until_the_bound_holds(
    model: LoadedModel, texts: SampleTexts, tmp_path: Path
) -> None:
    samples = text_samples(model, texts, 32)
    assert samples is not None
    narrowed = narrowed_program(model, tmp_path / "torch", samples, 32)
    bound = 0.6 * narrowed.deviation(Precision("int8")).error
    choice = chosen(model, tmp_path, samples, bound)
    names = [trial.precision.name for trial in choice.trials]
    assert names == ["fp32", "bf16", "int8"]
    mixed = choice.trials[2]
    assert mixed.within and 0 < mixed.kept < choice.products
    assert set(dict(mixed.precision.kept).values()) <= {"bf16", "fp32"}
    assert mixed.deviation.error <= bound
    assert mixed.size_bytes < choice.trials[0].size_bytes
    assert any(trial.precision == choice.precision for trial in choice.trials)
    assert "precision auto chose" in choice.notes[0] and "4 texts" in choice.notes[0]
    document = json.loads(json.dumps(choice.to_json(), allow_nan=False))
    assert document["trials"][2]["wider_products"] == mixed.kept
    assert all(len(row) == 7 for row in choice.rows())
    assert not list((tmp_path / "precisions").glob("*.ecb"))


def test_a_bound_that_fp32_itself_breaks(
    model: LoadedModel, texts: SampleTexts, tmp_path: Path
) -> None:
    samples = text_samples(model, texts, 32)
    assert samples is not None
    with pytest.raises(
        VerificationError, match="no precision reaches a `max_error` of 1e-12"
    ) as caught:
        chosen(model, tmp_path, samples, 1e-12)
    assert "fp32 itself differs by" in caught.value.message


def test_a_model_without_linear_layers_is_fp32(tmp_path: Path) -> None:
    plain = load_model("tests.factories.tiny_models:unmasked_mean")
    samples = draw_samples(plain, LENGTHS, 16)
    choice = chosen(plain, tmp_path, samples, 0.01)
    assert choice.precision == Precision("fp32")
    assert not choice.trials
    assert "no linear layer" in choice.notes[0]


def test_a_build_in_int8_is_judged_on_texts(
    tiny_model: Path, texts: SampleTexts, tmp_path: Path
) -> None:
    request = BuildRequest(
        model=str(tiny_model),
        target="cpu-x86-64-v3",
        plan=PlanRequest(
            LENGTHS,
            buckets=1,
            mode="exact",
            max_length=32,
            threads=1,
            precision="int8",
            texts=texts,
        ),
        output=tmp_path / "narrow.ecb",
        work_dir=tmp_path / "work",
    )
    result = build(request)
    cases = {item.case for item in result.verify.results}
    assert {"lower", "hint", "text0", "text3", "rounded-hint", "rounded-text3"} <= cases
    # Rounding is the precision's error; beside the rounded model the bundle is allowed less.
    by_case = {item.case: item for item in result.verify.results}
    ours, whole = by_case["rounded-hint"], by_case["hint"]
    assert ours.limit is not None and whole.limit is not None and ours.limit < whole.limit
    assert ours.rounding and whole.max_abs_error < ours.rounding + ours.max_abs_error + 1e-6
    (note,) = [n for n in result.verify.notes if "rounded to int8 differs from the original" in n]
    assert "with activations rounded as the coarsest variant does, by" in note
    assert result.verify.min_cosine == 0.999
    assert result.verify.cosine is not None and result.verify.cosine >= 0.999
    with open_bundle(result.bundle_path) as opened:
        assert opened.manifest.precision == "int8"
        assert opened.manifest.weights == {"int8": "weights.int8"}
        assert opened.manifest.plan["precision"]["pairs"]
    page = (result.bundle_path / "reports" / "report.html").read_text()
    assert "and a cosine of at least 0.999" in page
    assert any("are rounded for" in note for note in result.notes)
    precision = load_precision(tmp_path / "work")
    assert precision.name == "int8" and isinstance(precision.rounded, RoundedWeights)
    assert precision.pairs
    with open_bundle(result.bundle_path) as opened:
        weights = map_weights(opened._folder, "weights.int8", check_hash=True)
        assert len(precision.rounded.packed) == 13
        for name, packed in precision.rounded.packed.items():
            assert np.array_equal(weights.array(name), packed.numpy())
    # The stages that follow take the precision from the work folder, and refuse another one's.
    work = str(tmp_path / "work")
    target = ("--target", "cpu-x86-64-v3")
    packed = ("pack", str(tiny_model), "--work-dir", work, *target, "-o", str(tmp_path / "b.ecb"))
    assert CliRunner().invoke(cli, packed).exit_code == 0
    (tmp_path / "work" / "precision.json").write_text('{"name": "bf16", "kept": {}}')
    refused = CliRunner().invoke(cli, (*packed, "--force"))
    assert refused.exit_code == 36
    again = build(
        replace(
            request,
            plan=replace(request.plan, precision="bf16"),
            output=tmp_path / "bf16.ecb",
        )
    )
    assert again.verify.cosine is not None and again.verify.cosine >= 0.9999


@pytest.mark.parametrize("in_float64", [True, False])
def test_cases_of_the_rounded_model_need_float64_alone(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_float64: bool
) -> None:
    def fail(program: QuantizedProgram, precision: Precision) -> Any:
        raise RuntimeError("it fails")

    subject = find_subject(model, tmp_path)
    bucket = subject.serving.bucket
    variants, precision = subject.profile.variants, Precision("int8", pairs=True)
    exported = [subject.exports.get(bucket)]
    compiled = SimpleNamespace(exported=exported, variants=variants, precision=precision)
    cases = list(make_cases(model, [bucket], golden=True))
    assert round_cases(model, compiled, cases).with_activations is not None  # type: ignore[arg-type]
    monkeypatch.setattr(QuantizedProgram, "deviation" if in_float64 else "answers", fail)
    rounded = round_cases(model, compiled, cases)  # type: ignore[arg-type]
    assert len(rounded.cases) == (len(cases) if in_float64 else 0)
    assert rounded.with_activations is None and ("it fails" in rounded.problem) != in_float64
    assert len(rounded.describe("int8")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-error", "1%"), "--max-error goes with --precision auto"),
        (("--precision", "auto", "--max-error", "0"), "isn't above 0 and at most 1"),
        (("--precision", "auto", "--max-error", "150%"), "isn't above 0 and at most 1"),
        (("--precision", "auto", "--max-error", "little"), "neither a number nor a percentage"),
        (("--precision", "int2"), "'int2' is not one of"),
    ],
)
def test_options_that_make_no_sense(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(cli, ("build", "x", "--lengths", "y", *arguments))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
