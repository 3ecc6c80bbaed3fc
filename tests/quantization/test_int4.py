"""Language models in int4: what is rounded how, what judges it, and bundles that both loaders run."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from click.testing import CliRunner

from edgecompile import precision, verify
from edgecompile.cli import cli
from edgecompile.errors import UsageError, VerificationError
from edgecompile.loaders.load import load_model
from edgecompile.models.language_texts import language_texts
from edgecompile.models.options import LoadOptions
from edgecompile.models.samples import SampleTexts
from edgecompile.pipeline.build import build
from edgecompile.precision import FP32, Precision
from edgecompile.quantization.judged import JudgedModel
from edgecompile.quantization.quality import MAX_PERPLEXITY_RATIOS, check_quality
from edgecompile.quantization.reference import activations_share, rounding_products
from edgecompile.quantization.rounded_model import ReferenceModel
from edgecompile.runtime import open_bundle
from edgecompile.runtime.base.errors import NativeError
from edgecompile.runtime.format.manifest.schema import Tolerance
from edgecompile.targets.profile import load_variant
from tests.conftest import one_at_a_time
from tests.native.c_runtime import c_library
from tests.native.c_runtime.c_library import CLibrary, CLibraryError
from tests.quantization.test_quality import (
    CONTEXT,
    INT8,
    judged_model,
    request_for,
    save_llama,
    write_texts,
)

HEAD = "model.lm_head.weight"


@pytest.fixture(scope="session")
def llama(shared_folder: Path) -> Path:
    """A model that int4 changes little enough: of small weights, without outliers."""
    path = shared_folder / "plain-llama"
    with one_at_a_time(shared_folder / "plain-llama.lock"):
        if not path.exists():
            save_llama(path, spread=0.1, outliers=False)
            write_texts(path / "texts.txt", 40)
    return path


def texts_of(folder: Path) -> SampleTexts:
    return SampleTexts(folder / "texts.txt", folder / "tokenizer.json")


@pytest.fixture(scope="session")
def bundle(shared_folder: Path, llama: Path) -> Path:
    output = shared_folder / "int4.ecb"
    with one_at_a_time(shared_folder / "int4.lock"):
        if not output.exists():
            request = request_for(llama, output, precision="int4", texts=texts_of(llama))
            result = build(request)
            assert any("int4 weights are rounded for 27 texts" in note for note in result.notes)
            assert result.verify is not None and result.verify.ok
    return output


@pytest.fixture(scope="module")
def judged(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> JudgedModel:
    model = load_model(str(llama), LoadOptions(max_context=CONTEXT)).with_longest(16)
    texts = language_texts(model, texts_of(llama))
    return judged_model(model, texts, tmp_path_factory.mktemp("exports"))


def test_the_body_is_rounded_for_texts_and_the_head_stays_int8(
    judged: JudgedModel, tmp_path: Path
) -> None:
    precision = judged.default_precision("int4")
    assert precision == Precision("int4", ((HEAD, "int8"),))
    assert judged.default_precision("int8") == INT8
    [rounded] = judged.round_weights(tmp_path, "key", precision)
    kinds = {name: packed.dtype for name, packed in rounded.packed.items()}
    assert [kind for name, kind in kinds.items() if "lm_head" in name] == [torch.int8]
    assert {k for name, k in kinds.items() if "lm_head" not in name} == {torch.uint8}
    nearest = judged.quality(precision)
    calibrated = judged.quality(replace(precision, rounded=rounded))
    assert calibrated.mean_kl < 0.6 * nearest.mean_kl
    assert check_quality(calibrated, "int4", MAX_PERPLEXITY_RATIOS["int4"]).bound == 1.06
    with pytest.raises(VerificationError, match="int4 changes what the model says") as refused:
        check_quality(nearest, "int4", 1.02)
    assert "`max_perplexity_ratio=" in str(refused.value.hint)
    # Rounding activations as the kernels do hardly counts beside that.
    with judged.narrowed(precision):
        before = judged._logits(judged.texts.judging[0])
        with judged.rounding_activations(precision):
            moved = (judged._logits(judged.texts.judging[0]) - before).abs().max()
        assert torch.equal(judged._logits(judged.texts.judging[0]), before)
    assert 0 < float(moved) < 0.1 * float(before.abs().max())
    # Weights that were rounded to int4 say nothing of int8, and the other way round.
    assert judged.quality(replace(INT8, rounded=rounded)).mean_kl < 0.1 * calibrated.mean_kl
    assert judged.quality(FP32).mean_kl < 1e-12
    # Another precision of the same model is rounded anew.
    assert judged.round_weights(tmp_path, "key", INT8) != [rounded]


def test_noise_moves_what_products_round_the_same_way_each_time(judged: JudgedModel) -> None:
    precision = judged.default_precision("int4")
    text = judged.texts.judging[0]
    with judged.narrowed(precision), judged.rounding_activations(precision):
        still = judged._logits(text)
        moved = []
        for seed in (3, 3, 4):
            with judged.moving_inputs(precision, ("int4",), seed):
                moved.append(judged._logits(text))
        assert torch.equal(judged._logits(text), still)
    assert torch.equal(moved[0], moved[1]) and not torch.equal(moved[0], moved[2])
    # The noise comes before the rounding, which hides most of it: a few numbers move by a whole step.
    largest = float(still.abs().max())
    assert all(0 < float((item - still).abs().max()) < 0.05 * largest for item in moved)


@pytest.mark.parametrize(
    ("variant", "int8", "pairs", "int4"),
    [("x86-64-v2", 0, 4, 3), ("x86-64-v3", 0, 4, 3), ("x86-64-v4", 0, 4, 3), ("x86-64-avxvnni", 3, 3, 3),
     ("x86-64-avx512bf16", 3, 3, 3), ("x86-64-amx", 3, 3, 3), ("aarch64-neon", 0, 0, 0),
     ("aarch64-dotprod", 3, 3, 3), ("aarch64-i8mm", 3, 3, 3)],
)  # fmt: skip
def test_the_error_that_rounding_activations_may_add_depends_on_the_cpu(
    variant: str, int8: float, pairs: float, int4: float
) -> None:
    variants = [load_variant(variant)]
    assert activations_share(variants, Precision("int8")) == int8
    assert activations_share(variants, Precision("int8", pairs=True)) == pairs
    assert activations_share(variants, Precision("int4")) == int4
    # What eager rounds, too: an int8 head beside int4 only where its kernels do.
    rounding = {name for name, share in (("int8", int8), ("int4", int4)) if share}
    assert set(rounding_products(variants)) == rounding
    assert set(rounding_products([load_variant("x86-64-v3"), *variants])) == rounding - {"int8"}
    others = [load_variant("aarch64-dotprod"), *variants]
    assert activations_share(others, Precision("int8", pairs=True)) == max(3, pairs)


def test_a_model_that_amplifies_rounded_activations_is_compared_with_eager_that_rounds_them(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = Tolerance(atol=1e-6, rtol=0.01)
    monkeypatch.setitem(precision.TOLERANCES, "int4", narrow)  # type: ignore[misc]
    request = request_for(llama, tmp_path / "a.ecb", precision="int4", texts=texts_of(llama))
    result = build(request)
    assert result.verify is not None and result.verify.ok
    assert any("so the reference rounds them, too" in note for note in result.verify.notes)
    # Eager without that is further away.
    monkeypatch.setattr(ReferenceModel, "needs_activations", lambda *_: False)
    with pytest.raises(VerificationError, match=r"differ from eager"):
        build(replace(request, output=tmp_path / "b.ecb"))


def test_other_models_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    request = request_for(tiny_model, tmp_path / "a.ecb", precision="int4")
    with pytest.raises(UsageError, match='`precision="int4"` is for language models') as refused:
        build(replace(request, load=LoadOptions()))
    assert refused.value.hint == 'give `precision="int8"`'
    assert not (tmp_path / "a.ecb").exists()


def test_a_bundle_says_what_it_holds(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    (name,) = manifest["weights"]
    assert name == manifest["precision"] and name.startswith("int4-mixed-")
    assert manifest["plan"]["precision"]["kept"] == {HEAD: "int8"}
    assert "pairs" not in manifest["plan"]["precision"]  # nor in an int8 head
    assert manifest["plan"]["quality"]["bound"] == 1.06
    header = header_of(bundle / manifest["weights"][name])
    packed = {key: item["dtype"] for key, item in header.items() if key.startswith("ecpack_")}
    assert sorted(packed.values()) == ["I8"] + ["U8"] * 10
    shown = CliRunner().invoke(cli, ["inspect", str(bundle)])
    assert shown.exit_code == 0, shown.stderr
    assert "(int4, 1 weight in int8)" in " ".join(shown.stdout.split())
    assert "mean KL" in shown.stdout


def test_the_bundle_is_judged_beside_the_original(bundle: Path, llama: Path) -> None:
    found = verify(bundle, str(llama))
    assert found.ok
    assert any("int4" in note and "mean KL" in note for note in found.report.notes)


def header_of(weights: Path) -> dict[str, Any]:
    data = weights.read_bytes()
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header


def test_both_loaders_give_the_same_tokens_and_bits(bundle: Path) -> None:
    prompt = [1, 5, 9, 12, 3]
    with open_bundle(bundle, threads=1) as ours:
        want = list(ours.generate(prompt, max_new_tokens=20, do_sample=False, eos=()))
        generation = ours.manifest.generation
        assert generation is not None
        caches = generation.caches
        specs = {spec.name: spec for spec in ours.manifest.inputs}
        with CLibrary(c_library.build_library()).open(bundle, threads=1) as theirs:
            made: list[int] = []
            kept = [empty_caches(specs, caches), empty_caches(specs, caches)]
            row = 0
            while len(made) < len(want):
                tokens = made[-1:] if made else prompt
                given = {
                    "input_ids": np.array([tokens]),
                    "position": np.array([row]),
                    "last": np.array([len(tokens) - 1]),
                }
                one = ours.run({**given, **kept[0]})["logits"]
                two = theirs.run({**given, **kept[1]})["logits"]
                assert one.tobytes() == two.tobytes()
                made.append(int(two.argmax()))
                row += len(tokens)
    assert made == want


def empty_caches(specs: dict[str, Any], names: tuple[str, ...]) -> dict[str, np.ndarray]:
    shapes = {
        name: tuple(size if isinstance(size, int) else CONTEXT for size in specs[name].shape)
        for name in names
    }
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_values_passed_off_as_int8_are_refused(bundle: Path, tmp_path: Path) -> None:
    """A weights file whose int4 values claim to be int8 of as many bytes: right by every rule of the file."""
    copy = tmp_path / "copy.ecb"
    shutil.copytree(bundle, copy)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    name = manifest["weights"][manifest["precision"]]
    data = (copy / name).read_bytes()
    changed = data.replace(b'"dtype":"U8"', b'"dtype":"I8"').replace(
        b'"dtype": "U8"', b'"dtype": "I8"'
    )
    assert changed != data and len(changed) == len(data)
    (copy / name).write_bytes(changed)
    manifest["files"][name]["sha256"] = hashlib.sha256(changed).hexdigest()
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(NativeError, match="misfitting constants"):
        open_bundle(copy)
    with pytest.raises(CLibraryError, match="misfitting constants"):
        CLibrary(c_library.build_library()).open(copy)
