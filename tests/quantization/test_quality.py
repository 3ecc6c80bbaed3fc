"""Narrow weights of language models: calibrated on texts, judged by next tokens of others."""

from __future__ import annotations

import json
import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

import transformers

from edgecompile.api.verify import verify
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.errors import ModelError, UsageError, VerificationError
from edgecompile.export.store import ExportStore
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models import mapped
from edgecompile.models.language_texts import LanguageTexts, language_texts
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.options import LoadOptions
from edgecompile.models.samples import SampleTexts
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.pipeline.result import BuildResult
from edgecompile.planning.options import BuildOptions
from edgecompile.planning.request import PlanRequest
from edgecompile.precision import FP32, Precision, min_cosine
from edgecompile.quantization.gptq import RoundedWeights
from edgecompile.quantization.judged import JudgedModel, is_judged
from edgecompile.quantization.quality import Judge, Quality, check_quality, max_mean_kl
from edgecompile.runtime import open_bundle
from tests.cli.command import run
from tests.conftest import one_at_a_time
from tests.factories.outliers import add_outliers
from tests.native.c_runtime.c_library import CLibrary, build_library

WORDS = [
    "a",
    "cat",
    "sat",
    "on",
    "the",
    "mat",
    "and",
    "purred",
    "all",
    "day",
    "while",
    "rain",
    "fell",
    "over",
    "old",
    "roofs",
]
CONTEXT = 48
INT8 = Precision("int8")


def save_llama(
    folder: Path,
    *,
    tied: bool = False,
    spread: float = 0.2,
    outliers: bool = True,
    layers: int = 2,
) -> None:
    """A small random Llama, with two channels of outliers unless tied or told otherwise, and a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=spread,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    if outliers and not tied:  # in a table of tokens no model has such channels
        add_outliers(model)
    with torch.no_grad():  # probabilities like those of trained models
        largest = model(torch.arange(64)[None]).logits.abs().max()
        (model.model.norm if tied else model.lm_head).weight.mul_(8 / largest)
    model.save_pretrained(folder)
    vocabulary = {word: 2 + index for index, word in enumerate(dict.fromkeys(WORDS))}
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[BOS]": 1, **vocabulary}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


def write_texts(file: Path, count: int) -> None:
    random = np.random.default_rng(3)
    lines = [" ".join(random.choice(WORDS, 24)) for _ in range(count)]
    file.write_text("\n".join([*lines, lines[0]]) + "\n")


@pytest.fixture(scope="session")
def folder(shared_folder: Path) -> Path:
    path = shared_folder / "outlier-llama"
    with one_at_a_time(shared_folder / "outlier-llama.lock"):
        if not path.exists():
            save_llama(path)
            write_texts(path / "texts.txt", 40)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load_model(str(folder), LoadOptions(max_context=CONTEXT)).with_longest(16)


@pytest.fixture(scope="module")
def texts(model: LoadedModel, folder: Path) -> LanguageTexts:
    return language_texts(model, SampleTexts(folder / "texts.txt", folder / "tokenizer.json"))


def judged_model(model: LoadedModel, texts: LanguageTexts, folder: Path) -> JudgedModel:
    axes = (("length", AxisRange(2, 16, 9)), ("context", AxisRange(CONTEXT, CONTEXT, CONTEXT)))
    exported = ExportStore(model, folder).get(Bucket("exact", axes))
    return JudgedModel(model, exported, texts)


@pytest.fixture(scope="module")
def judged(
    model: LoadedModel, texts: LanguageTexts, tmp_path_factory: pytest.TempPathFactory
) -> JudgedModel:
    return judged_model(model, texts, tmp_path_factory.mktemp("exports"))


def test_texts_that_judge_never_calibrate(
    model: LoadedModel, folder: Path, tmp_path: Path, texts: LanguageTexts
) -> None:
    assert texts.real and (len(texts.judging), len(texts.calibrating)) == (13, 27)
    assert texts.source == "13 texts of texts.txt, none of which calibrated"
    both = {tuple(text[0].tolist()) for part in (texts.judging, texts.calibrating) for text in part}
    assert len(both) == 40  # one is in the file twice
    file = tmp_path / "few.txt"
    for content, count in (("a cat sat\n", (0, 1)), ("a\n\n", None), ("a cat\nthe mat\n", (1, 1))):
        file.write_text(content)
        found = language_texts(model, SampleTexts(file, folder / "tokenizer.json"))
        if count is None:  # no text has two tokens
            assert not found.real and found.source == "its own greedy texts behind drawn tokens"
        else:
            assert (len(found.calibrating), len(found.judging)) == count
    file.write_text("a cat sat " * 100)
    (cut,) = language_texts(model, SampleTexts(file, folder / "tokenizer.json")).judging
    assert cut.shape == (1, CONTEXT)


def test_without_texts_the_model_writes_its_own(model: LoadedModel) -> None:
    found = language_texts(model, None, seed=4)
    assert not found.real and len(found.judging) == len(found.calibrating) == 8
    assert model.generation is not None
    text = found.judging[0][0].tolist()
    assert text[4:] == model.generation.greedy(text[:4], 44)
    again = language_texts(model, None, seed=4)
    assert all(map(torch.equal, found.judging, again.judging))
    assert not torch.equal(language_texts(model, None, seed=5).judging[0], found.judging[0])


def test_figures_of_known_distributions() -> None:
    text = torch.tensor([[0, 1, 1, 0, 1]])
    shift = [0.0]

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, shift[0]]]).expand(tokens.shape[1], 2)

    judge = Judge(logits, [text], "one text", True)
    same = judge.quality()
    assert (same.mean_kl, same.perplexity_ratio, same.top1, same.tokens) == (0, 1, 1, 4)
    shift[0] = math.log(3)  # 1/4 and 3/4
    found = judge.quality()
    kl = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert found.mean_kl == pytest.approx(kl, rel=1e-6) == found.p99_kl
    # Of the four next tokens three are 1.
    log = (3 * math.log(0.5 / 0.75) + math.log(0.5 / 0.25)) / 4
    assert found.perplexity_ratio == pytest.approx(math.exp(log), rel=1e-6)
    assert found.top1 == 0 and found.reference == "eager in float64"
    shift[0] = math.nan
    broken = judge.quality()
    assert broken.mean_kl == math.inf and not broken.within(1000)
    assert broken.to_json()["mean_kl"] is None and broken.to_json()["perplexity_ratio"] is None
    with pytest.raises(ModelError, match="aren't finite"):
        Judge(logits, [text], "one text", True)


def quality_of(**changes: Any) -> Quality:
    good = Quality(1e-3, 1e-2, 1.001, 1e-4, 0.99, 500, "4 texts", True, "eager in float64")
    return replace(good, **changes)


def test_the_gate_tells_noise_from_loss() -> None:
    assert check_quality(quality_of(), "int8", 1.002).bound == 1.002
    for beyond in (
        quality_of(perplexity_ratio=1.0025),
        quality_of(mean_kl=1.01 * max_mean_kl(1.002)),
        quality_of(mean_kl=math.nan),
        quality_of(perplexity_ratio=math.inf),
    ):
        with pytest.raises(VerificationError, match=r"perplexity × .*, mean KL") as caught:
            check_quality(beyond, "int8", 1.002)
        least = beyond.least_bound
        if math.isfinite(least):
            assert f"`max_perplexity_ratio={least:g}` allows both" in str(caught.value.hint)
            assert check_quality(beyond, "int8", least).bound == least < 1.01
        else:
            assert "no `max_perplexity_ratio` allows" in str(caught.value.hint)
    # A hint names no bound that can't be asked for.
    for ratio in (999.9, 999.9995, 1000.5, 5000.0):
        least = quality_of(perplexity_ratio=ratio, ratio_error=0.0).least_bound
        assert (least < math.inf) == (ratio < 1000)
        if least < math.inf:
            assert BuildOptions(max_perplexity_ratio=least).max_perplexity_ratio == least
    # So few tokens don't tell 1.003 from 1.002.
    assert quality_of(perplexity_ratio=1.003, ratio_error=1e-3).within(1.002)
    # A greedy text is likelier to its author than to anybody else.
    assert quality_of(perplexity_ratio=1.1, real=False).within(1.002)
    with pytest.raises(VerificationError) as own:
        check_quality(quality_of(mean_kl=0.1, real=False), "int8", 1.002)
    assert "give `texts`" in str(own.value.hint)
    for tokens, few in ((199, True), (200, False)):
        with pytest.raises(VerificationError) as caught:
            check_quality(quality_of(mean_kl=0.1, tokens=tokens), "int8", 1.002)
        assert str(caught.value.hint).startswith("so few positions say little") == few


def test_weights_rounded_for_texts_say_what_the_original_says(
    model: LoadedModel, judged: JudgedModel, tmp_path: Path
) -> None:
    assert is_judged(model) and judged.problem == ""
    assert judged.quality(FP32).mean_kl < 1e-12
    [rounded] = judged.round_weights(tmp_path, "key", INT8)
    assert set(rounded.packed) == set(judged.program.products)  # the head among them
    assert rounded.inputs == "27 texts"
    nearest = judged.quality(Precision("int8"))
    calibrated = judged.quality(Precision("int8", rounded=rounded))
    assert 0 < calibrated.mean_kl < 0.7 * nearest.mean_kl
    assert judged.quality(Precision("bf16")).mean_kl < nearest.mean_kl
    assert judged.quality(FP32).mean_kl < 1e-12  # the original's weights are back
    with judged.narrowed(Precision("int8")):
        assert judged.quality(FP32).mean_kl < 1e-12  # within, too
    # The next build of the same reads them.
    assert judged.round_weights(tmp_path, "key", INT8) == [rounded]
    (file,) = tmp_path.glob("gptq-*.npz")
    file.write_bytes(b"damaged")
    assert judged.round_weights(tmp_path, "key", INT8) == [rounded]
    judged.round_weights(tmp_path, "other", INT8)
    assert [file.exists(), len(list(tmp_path.glob("gptq-*.npz")))] == [False, 1]


def test_two_builds_may_round_in_one_folder(
    judged: JudgedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may remove a file at any time; a disk that is full costs nothing that was there."""
    [first] = judged.round_weights(tmp_path, "first", INT8)
    save = RoundedWeights.save

    def fail(self: RoundedWeights, path: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(RoundedWeights, "save", fail)
    with pytest.raises(OSError, match="full"):
        judged.round_weights(tmp_path, "second", INT8)
    (kept,) = tmp_path.glob("gptq-*.npz")

    def glob(self: Path, pattern: str) -> list[Path]:
        return [kept, self / "gptq-removed.npz"]

    monkeypatch.setattr(RoundedWeights, "save", save)
    monkeypatch.setattr(Path, "glob", glob)
    assert judged.round_weights(tmp_path, "second", INT8) == [first]
    monkeypatch.undo()
    (second,) = tmp_path.glob("gptq-*.npz")
    assert second != kept


def test_narrow_weights_are_held_no_longer_than_they_are_used(judged: JudgedModel) -> None:
    precision = Precision("bf16")
    attr = next(iter(judged.program.products))
    whole, narrow = judged.program.products[attr][1], judged.program.kept_value(attr, precision)
    assert not torch.equal(whole, narrow)
    assert torch.equal(judged.program.kept_value(attr, FP32), whole)
    used = weakref.ref(narrow)
    with judged._places.replacing([(attr, narrow)]):
        del narrow
        assert used() is not None or any(place.transposed for place in judged._places._places[attr])
    assert used() is None
    # Nor does the program hold copies: weights that stand alone are the model's own.
    own = {weight.data_ptr() for weight in judged._model.module.parameters()}
    alone = [attr for attr, names in judged.program.names.items() if len(names) == 1]
    assert len(alone) > 1
    assert all(judged.program.products[attr][1].data_ptr() in own for attr in alone)
    tensors = judged.program._module.state_dict().values()
    assert {t.data_ptr() for t in tensors if t.dim() > 1 and t.is_floating_point()} <= own


def test_weights_in_files_are_judged_alike(
    judged: JudgedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float | None, float | None]] = []
    step = Mock(update=lambda done=None, total=None, text=None: told.append((done, total)))
    expected = judged.quality(INT8)
    monkeypatch.setattr(mapped, "_LEAST", 1 << 12)
    monkeypatch.setattr(mapped, "_LEAST_OF_ONE", 1 << 10)
    maps = Path("/proc/self/maps")
    with judged.narrowed(INT8):
        assert maps.read_text().count("edgecompile-weights-") > 4
    assert judged.quality(INT8, step) == expected
    count = len(judged.texts.judging)
    assert told == [(count + done, 2 * count) for done in range(1, count + 1)]


def test_texts_are_judged_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgecompile.quantization.quality._MOST_NUMBERS", 80)
    texts = [torch.zeros(1, length, dtype=torch.int64) for length in (21, 6, 7, 2)]
    ran: list[int] = []

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        ran.append(tokens.shape[1])
        return torch.zeros(tokens.shape[1], 3)

    assert Judge(logits, texts, "texts", True).quality().tokens == 20 + 5
    assert ran == [21, 6] * 2


def with_scales_doubled(rounded: RoundedWeights, name: str) -> RoundedWeights:
    """The same, but every number of one product is twice as large."""
    from edgecompile.backends.operators import ops

    (attr,) = [attr for attr in rounded.packed if name in attr]
    packed = rounded.packed[attr]
    n, k = packed.shape[0] * ops.PANEL, 64
    twice = ops.pack_weight(2 * ops.unpack_weight(packed, n, k), "int8")
    return RoundedWeights({**rounded.packed, attr: twice}, rounded.origins, rounded.inputs)


def test_one_layer_with_doubled_scales_is_refused(judged: JudgedModel, tmp_path: Path) -> None:
    [rounded] = judged.round_weights(tmp_path, "key", INT8)
    good = judged.quality(Precision("int8", rounded=rounded))
    check_quality(good, "int8", 1.05)
    broken = with_scales_doubled(rounded, "layers_1_self_attn_o_proj")
    found = judged.quality(Precision("int8", rounded=broken))
    assert found.mean_kl > 5 * good.mean_kl
    with pytest.raises(VerificationError, match="int8 changes what the model says"):
        check_quality(found, "int8", 1.002)


def test_layers_are_ranked_by_what_they_change(judged: JudgedModel) -> None:
    ranked = judged.rank(Precision("int8"))
    assert {names for names, _ in ranked} == set(judged.program.groups)
    sizes = {names: exact.numel() for names, exact in judged.program.products.values()}
    divergences = [divergence / sizes[names] for names, divergence in ranked]
    assert divergences == sorted(divergences, reverse=True) and divergences[-1] > 0
    # What is as wide in the other precision isn't tried.
    told: list[int] = []
    as_wide = Precision("int8", tuple((name, "bf16") for name in ranked[0][0]))
    others = judged.rank(as_wide, Precision("bf16"), told.append)
    assert {names for names, _ in others} == set(sizes) - {ranked[0][0]}
    assert told == list(range(1, len(sizes)))
    ranked.sort(key=lambda item: -item[1])
    worst = Precision("int8", tuple((name, "fp32") for name in ranked[0][0]))
    least = Precision("int8", tuple((name, "fp32") for name in ranked[-1][0]))
    assert judged.quality(worst).mean_kl < judged.quality(least).mean_kl


@pytest.fixture(scope="module")
def tied_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tied")
    save_llama(path, tied=True)
    return path


def test_a_tied_head_is_rounded_and_the_table_of_tokens_with_it(
    tied_folder: Path, tmp_path: Path
) -> None:
    tied = load_model(str(tied_folder), LoadOptions(max_context=CONTEXT)).with_longest(16)
    judged = judged_model(tied, language_texts(tied, None), tmp_path)
    (attr,) = judged.program.tables
    assert judged.problem == ""
    inner: Any = tied.module.get_submodule("model")
    table = inner.get_input_embeddings().weight
    kept = judged.program.kept_value(attr, Precision("int8"))
    assert not torch.equal(kept, table)
    with judged.narrowed(Precision("int8")):
        assert torch.equal(inner.get_input_embeddings().weight, kept)
        assert torch.equal(inner.lm_head.weight, kept)
    wide = Precision("int8", ((judged.program.products[attr][0][0], "fp32"),))
    with judged.narrowed(wide):  # both or none
        assert torch.equal(inner.get_input_embeddings().weight, table)
    assert inner.lm_head.weight is inner.get_input_embeddings().weight is table
    with pytest.raises(RuntimeError, match="within"), judged.narrowed(Precision("int8")):
        raise RuntimeError("within")
    assert inner.lm_head.weight is inner.get_input_embeddings().weight is table


def test_a_table_of_its_own_stays_as_it_is(model: LoadedModel, judged: JudgedModel) -> None:
    assert not judged.program.tables
    inner: Any = model.module.get_submodule("model")
    before = inner.get_input_embeddings().weight.clone()
    with judged.narrowed(Precision("int8")):
        assert torch.equal(inner.get_input_embeddings().weight, before)


def request_for(folder: Path, output: Path, **plan: Any) -> BuildRequest:
    traffic = LengthDistribution.from_samples([3, 9, 12])
    return BuildRequest(
        model=str(folder),
        plan=PlanRequest(lengths=traffic, max_length=16, quick=True, **plan),
        target="cpu-x86-64-v3",
        output=output,
        load=LoadOptions(max_context=CONTEXT),
    )


def read_header(file: Path) -> dict[str, Any]:
    """The entries of a weights file by name."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header: dict[str, Any] = json.loads(stream.read(size))
    return {name: entry for name, entry in header.items() if "shape" in entry}


def manifest_of(result: BuildResult) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((result.bundle_path / "manifest.json").read_bytes())
    return document


@pytest.mark.parametrize("precision", ["int8", pytest.param("bf16", marks=pytest.mark.exhaustive)])
def test_figures_of_caches_alone_are_not_those_of_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """Where texts can't judge the weights, these are compared with the original's outputs, also later."""
    monkeypatch.setattr(JudgedModel, "problem", "1 of its products isn't a weight")
    folder = tmp_path / "model"
    save_llama(folder, spread=0.05, outliers=False)
    request = request_for(folder, tmp_path / "a.ecb", precision=precision)
    result = build(replace(request, load=replace(request.load, cache_precision="int8")))
    assert result.quality is not None and result.quality.caches_alone and result.quality.bound
    assert manifest_of(result)["plan"]["quality"] == result.quality.to_json()
    said = run("inspect", str(result.bundle_path)).stdout
    assert "rounding the caches alone" in " ".join(said.split())
    found = verify(result.bundle_path, str(folder)).report
    assert result.verify is not None
    assert found.min_cosine == result.verify.min_cosine == min_cosine(precision)
    assert found.results and all(item.case != "next tokens" for item in found.results)


def test_a_bundle_carries_its_figures_and_computes_the_rounded_model(
    folder: Path, tmp_path: Path
) -> None:
    texts = SampleTexts(folder / "texts.txt", folder / "tokenizer.json")
    begun = "cat sat on the"
    (tmp_path / "prompt.txt").write_text(begun + "\n")
    prefix = {"prefix": tmp_path / "prompt.txt"}
    result = build(
        request_for(
            folder,
            tmp_path / "a.ecb",
            precision="int8",
            texts=texts,
            max_perplexity_ratio=1.05,
            **prefix,
        )
    )
    # The prompt's caches are those of the rounded model, and the golden texts go on from them.
    assert result.verify is not None
    with open_bundle(result.bundle_path) as model:
        session = model.session()
        stream = session.stream(session._prompts().read(begun + " old mat"), max_new_tokens=2)
        assert list(stream) and stream.reused == 3  # the last word might go on
    assert len(result.verify.texts) == 5 and all(text.ok for text in result.verify.texts)
    assert result.quality is not None and result.verify is not None and result.verify.ok
    assert result.quality.real and result.quality.bound == 1.05 and result.quality.mean_kl > 0
    figures = result.quality.to_json()
    assert manifest_of(result)["plan"]["quality"] == figures == result.to_json()["quality"]
    assert any("int8 against eager in float64: perplexity ×" in note for note in result.notes)
    assert any("rounded for 27 texts" in note for note in result.notes)
    # What the rounding changes is no part of the bundle's own difference.
    assert result.verify.min_cosine is None
    worst = result.verify.worst
    assert worst is not None and worst.max_abs_error < 0.01 * worst.scale
    # Beside the original the bundle itself is judged by next tokens, too.
    found = verify(result.bundle_path, str(folder))
    own = found.report.results[-1]
    assert found.ok and own.case == "next tokens" and own.limit == max_mean_kl(1.05)
    assert result.quality.mean_kl / 3 < own.max_abs_error < 3 * result.quality.mean_kl
    assert "So it is judged as by a build: int8 against eager" in found.report.notes[-1]
    save_llama(tmp_path / "other", tied=True)
    wrong = verify(result.bundle_path, str(tmp_path / "other"), check=False).report
    assert [item.case for item in wrong.results if not item.ok] == ["next tokens"]
    assert "too far from the original's" in wrong.results[-1].error
    with pytest.raises(
        VerificationError, match="changes what the model says by more than is allowed"
    ):
        build(
            request_for(
                folder,
                tmp_path / "b.ecb",
                precision="int8",
                texts=texts,
                max_perplexity_ratio=1.0000001,
            )
        )
    assert not (tmp_path / "b.ecb").exists()


def test_a_tied_table_is_stored_once(tied_folder: Path, tmp_path: Path) -> None:
    """Golden texts and both loaders run on rows of the packed head."""
    request = request_for(
        tied_folder, tmp_path / "a.ecb", precision="int8", max_perplexity_ratio=3.0
    )
    result = build(request)
    assert result.verify is not None and result.verify.ok
    assert result.verify.texts and all(text.ok for text in result.verify.texts)
    header = read_header(result.bundle_path / "weights.int8")
    assert [entry["dtype"] for name, entry in header.items() if "lm_head" in name] == ["I8"]
    assert not any("embed" in name or entry["shape"] == [64, 64] for name, entry in header.items())
    example = {
        name: tensor.numpy()
        for name, tensor in load_model(str(tied_folder), LoadOptions(max_context=CONTEXT))
        .make_example({"length": 7, "context": CONTEXT})
        .items()
    }
    with open_bundle(result.bundle_path) as opened:
        want = opened.run({name: array.copy() for name, array in example.items()})["logits"]
    with CLibrary(build_library()).open(result.bundle_path) as model:
        got = model.run({name: array.copy() for name, array in example.items()})["logits"]
    np.testing.assert_array_equal(got, want)


def test_bounds_of_other_models_are_refused(folder: Path, tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="`max_error` is no bound for") as caught:
        build(request_for(folder, tmp_path / "a.ecb", precision="auto", max_error=0.1))
    assert caught.value.hint == "give `max_perplexity_ratio`"
    with pytest.raises(UsageError, match="which is no language model"):
        request = request_for(
            tiny_model, tmp_path / "a.ecb", precision="int8", max_perplexity_ratio=1.1
        )
        build(replace(request, load=LoadOptions()))
    with pytest.raises(UsageError, match="goes with narrow weights"):
        request_for(folder, tmp_path / "a.ecb", max_perplexity_ratio=1.1)


@pytest.mark.exhaustive  # test_choice.py keeps layers, and test_mixture.py judges a language model's mixture
def test_auto_keeps_the_layers_that_cost_most(folder: Path, tmp_path: Path) -> None:
    texts = SampleTexts(folder / "texts.txt", folder / "tokenizer.json")
    pure = build(
        request_for(
            folder, tmp_path / "a.ecb", precision="int8", texts=texts, max_perplexity_ratio=1.5
        )
    )
    assert pure.quality is not None
    # A bound that int8 alone is just beyond.
    ratio = math.exp(0.8 * pure.quality.mean_kl / max_mean_kl(math.e))
    mixed = build(
        request_for(
            folder, tmp_path / "b.ecb", precision="auto", texts=texts, max_perplexity_ratio=ratio
        )
    )
    choice = mixed.choice
    assert choice is not None and choice.max_perplexity_ratio == ratio
    by_name = {trial.precision.name: trial for trial in choice.trials}
    int8 = by_name["int8"]
    assert int8.within and 0 < int8.kept < choice.products
    assert int8.quality is not None and int8.quality.mean_kl <= max_mean_kl(ratio)
    assert by_name["fp32"].quality is None and by_name["fp32"].within
    assert int8.quality.matrices["int8"] == choice.products - int8.kept
    assert choice.columns[4:6] == ("perplexity ×", "mean KL")
    assert "of the original's" not in choice.allowed and f"{ratio:g} times" in choice.allowed
