"""Models that amplify float32's differences: their reference's own motion is allowed, and wrong kernels aren't."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

import transformers

from edgecompile.bundle.cases import Case
from edgecompile.bundle.margins import (
    WIDEST_ANGLE,
    WIDEST_MOTION,
    allow_motion,
    scale,
    usual_share,
    widest_share,
)
from edgecompile.bundle.verify import verify_bundle
from edgecompile.pipeline import packing
from edgecompile.pipeline.build import build
from edgecompile.precision import Precision
from edgecompile.quantization.rounded_model import ReferenceModel
from edgecompile.runtime.format.files.weights import read_constants
from edgecompile.runtime.format.golden.compare import Agreement
from edgecompile.runtime.format.manifest.parse import parse_manifest
from edgecompile.targets.profile import load_target
from tests.quantization.test_quality import request_for, save_llama
from tests.zoo.generation_families import FAMILIES

#: Of int4: the bytes of a block in a panel of 32 rows, and of the two scales of each behind its numbers.
BLOCK, SCALES = 1152, 128


def case_of(number: int, largest: float, margin: float = 0.0, name: str = "") -> Case:
    outputs = {"y": np.array([largest, 0.0], np.float32), "n": np.array([3])}
    return Case(0, name or f"case{number}", {}, outputs, margins={"y": margin} if margin else {})


def moved(error: float, largest: float, angle: float) -> dict[str, Agreement]:
    return {"y": Agreement(False, error, largest, 0.0, None, math.cos(angle))}


def test_its_own_motion_counts_for_a_case_and_at_least_the_median() -> None:
    cases = [case_of(0, 10.0), case_of(1, 2.0, margin=1.0), case_of(2, 10.0)]
    motions = [moved(0.0, 10.0, 0.0), moved(0.1, 2.0, 0.05), moved(0.8, 10.0, 0.08)]
    made = allow_motion(cases, motions)
    # Twice 5 % of 10; eager's own error, which allowed more; and twice 8 % of 10.
    assert [case.margins["y"] for case in made] == pytest.approx([1.0, 1.0, 1.6])
    assert [math.acos(case.cosines["y"]) for case in made] == pytest.approx([0.1, 0.1, 0.16])


def test_a_motion_widens_no_gate_beyond_a_share_of_the_scale() -> None:
    (case,) = allow_motion([case_of(0, 10.0)], [moved(9.0, 10.0, 1.0)])
    assert case.margins == {"y": pytest.approx(WIDEST_MOTION * 10)}
    assert math.acos(case.cosines["y"]) == pytest.approx(WIDEST_ANGLE)
    (still,) = allow_motion([case_of(0, 10.0)], [moved(0.0, 10.0, 0.0)])
    assert still.margins == {}
    assert math.acos(still.cosines["y"]) == pytest.approx(0.03)


@pytest.mark.parametrize("others", [0, 1, 5])
def test_cases_that_depend_on_the_time_change_no_golden_vector(others: int) -> None:
    """How many others there are, and which of them have float64, depends on what else the machine does."""
    names = ["lower", "hint", "upper", *(f"length{number}" for number in range(others))]
    errors = [0.1, 0.2, 0.4, *[0.9] * others]
    cases = [case_of(0, 10.0, margin=0.1, name=name) for name in names]
    made = allow_motion(cases, [moved(error, 10.0, error / 10) for error in errors])
    golden = {case.name: case for case in made[:3]}
    assert [case.margins["y"] for case in made[:3]] == pytest.approx([0.4, 0.4, 0.8])
    assert math.acos(golden["lower"].cosines["y"]) == pytest.approx(0.04)
    # What texts repeat: one case that moves far makes no ties of their tokens.
    assert usual_share(made, "y") == pytest.approx(0.04)
    assert widest_share(cases, "y") == pytest.approx(0.01)
    assert widest_share(made, "y") == pytest.approx(0.08)


class _Rounding:
    """What a judged model does to eager's outputs of 10: weights change them by one error, activations by another."""

    def __init__(self, weights: float, activations: float) -> None:
        self.errors = {"weights": weights, "activations": activations}
        self.error, self.runs = 0.0, Counter[str]()

    def narrowed(self, precision: Precision) -> AbstractContextManager[None]:
        return self._beside("weights")

    def rounding_activations(self, *rest: Any) -> AbstractContextManager[None]:
        return self._beside("activations")

    @contextmanager
    def _beside(self, what: str) -> Iterator[None]:
        self.error = self.errors[what]
        self.runs[what] += 1
        yield
        self.error = 0.0

    def run(self, model: Any, inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
        return {"y": np.array([10.0 + self.error, 0.0], np.float32)}


@pytest.mark.parametrize(
    ("precision", "errors", "wanted", "runs"),
    [
        # The weights' effect bounds that of activations, and decides on the limits anyway.
        ("int8", (0.05, 0.0), False, {"weights": 3}),
        ("int8", (0.2, 0.2), False, {"weights": 3, "activations": 3}),
        ("int8", (0.2, 0.4), True, {"weights": 1, "activations": 1}),
        ("int4", (0.0, 0.2), False, {"activations": 3}),
        ("int4", (0.0, 0.4), True, {"activations": 1}),
    ],
)
def test_no_run_decides_what_another_has_told(
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    errors: tuple[float, float],
    wanted: bool,
    runs: dict[str, int],
) -> None:
    judged: Any = _Rounding(*errors)
    monkeypatch.setattr("edgecompile.quantization.rounded_model.run_eager", judged.run)
    variant = load_target("cpu-x86-64").variant("x86-64-v4")
    variants = [replace(variant, requires=(*variant.requires, "avx512_vnni"))]
    compiled: Any = SimpleNamespace(precision=Precision(precision), variants=variants)
    reference = ReferenceModel(cast("Any", None), compiled, judged)
    cases, told = [case_of(number, 10.0) for number in range(3)], list[int]()
    assert reference.needs_activations(cases, told.append) == wanted
    assert judged.runs == runs and told == ([] if wanted else [1, 2, 3])
    if not wanted:
        reference.limit(cases)
        assert judged.runs == runs, "every effect is kept"


@dataclass(frozen=True)
class Made:
    """A bundle of a model that amplifies, and the cases that it was verified with."""

    path: Path
    cases: Sequence[Case]


def build_noted(
    model: Path, output: Path, precision: str, patch: pytest.MonkeyPatch, target: str
) -> Made:
    kept: list[Case] = []

    def note(bundle: Path, cases: Sequence[Case], *rest: Any, **options: Any) -> Any:
        kept.extend(cases)
        return verify_bundle(bundle, cases, *rest, **options)

    patch.setattr(packing, "verify_bundle", note)
    request = request_for(model, output, precision=precision, max_perplexity_ratio=1000.0)
    result = build(replace(request, target=target))
    assert result.verify is not None and result.verify.ok
    return Made(result.bundle_path, kept)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("amplifying")
    save_llama(folder / "model", layers=6, spread=0.3, outliers=False)
    with pytest.MonkeyPatch.context() as patch:
        return build_noted(folder / "model", folder / "made.ecb", "int4", patch, "cpu-x86-64-v3")


def test_a_model_that_amplifies_differences_is_built(made: Made) -> None:
    shares = [c.margins["logits"] / scale(c, "logits") for c in made.cases]
    assert all(0 < share <= WIDEST_MOTION * (1 + 1e-9) for share in shares)
    # A device repeats the golden vectors with the same limits.
    own = next(case for case in made.cases if case.name == "hint")
    with np.load(made.path / "golden" / f"{own.bucket}-hint.npz") as arrays:
        assert float(arrays["margin.logits"]) == own.margins["logits"]


def scaled(panels: np.ndarray[Any, Any]) -> None:
    """Scales that are 2 % too large."""
    scales = panels[..., -SCALES:].view("<f2")
    scales *= np.float16(1.02)


def block_dropped(panels: np.ndarray[Any, Any]) -> None:
    """The first 64 inputs count as zeros."""
    panels[:, 0, -SCALES:] = 0


def rows_swapped(panels: np.ndarray[Any, Any]) -> None:
    """Each panel's first outputs change places."""
    numbers = panels[..., :-SCALES].reshape(*panels.shape[:2], -1, 32, 4)
    numbers[..., [0, 1], :] = numbers[..., [1, 0], :]
    scales = panels[..., -SCALES:].view("<f2").reshape(*panels.shape[:2], 2, 32)
    scales[..., [0, 1]] = scales[..., [1, 0]]


def damage(bundle: Path, change: Callable[[np.ndarray[Any, Any]], None], every: bool) -> None:
    """Changes the int4 weights of all products or of the last one, and the manifest's record of the file."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    (file,) = [path for path in bundle.glob("weights.*") if path.suffix != ".json"]
    data = bytearray(file.read_bytes())
    with file.open("rb") as stream:
        found = read_constants(stream.fileno(), len(data), file.name)
    packed = [
        c for c in found if len(c.shape) == 2 and c.shape[1] % BLOCK == 0 and c.type.name == "uint8"
    ]
    assert len(packed) > 20
    for constant in packed if every else packed[-1:]:
        view = np.frombuffer(data, np.uint8, constant.nbytes, constant.offset)
        change(view.reshape(constant.shape[0], -1, BLOCK))
    file.write_bytes(data)
    entry = manifest["files"][file.name]
    entry["sha256"] = hashlib.sha256(data).hexdigest()
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "every"),
    [(scaled, True), (block_dropped, False), (rows_swapped, False)],
)
def test_a_wrong_kernel_is_refused(
    made: Made, tmp_path: Path, change: Callable[[np.ndarray[Any, Any]], None], every: bool
) -> None:
    bundle = tmp_path / "damaged.ecb"
    shutil.copytree(made.path, bundle)
    damage(bundle, change, every)
    manifest = parse_manifest((bundle / "manifest.json").read_bytes(), str(bundle))
    names = [variant.name for variant in manifest.variants]
    report = verify_bundle(bundle, made.cases, names, manifest.tolerance)
    assert not report.ok and report.results


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["cpu-x86-64-v3", "cpu-x86-64-v4"])
@pytest.mark.parametrize("precision", ["int4", "int8"])
@pytest.mark.parametrize("layers", [4, 9, 16])
@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_models_of_any_depth_are_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    layers: int,
    precision: str,
    target: str,
) -> None:
    family = FAMILIES[name]
    settings = {**family.settings, "num_hidden_layers": layers, "tie_word_embeddings": False}
    if "layer_types" in settings:
        settings["layer_types"] = [
            "full_attention" if i % 3 == 2 else "conv" for i in range(layers)
        ]
    torch.manual_seed(5)
    config = getattr(transformers, family.config)(**settings, initializer_range=0.2)
    model = getattr(transformers, family.model)(config).eval()
    with torch.no_grad():  # probabilities like those of trained models
        largest = model(torch.arange(64)[None]).logits.abs().max()
        model.lm_head.weight.mul_(8 / largest)
    model.save_pretrained(tmp_path / "model")
    build_noted(tmp_path / "model", tmp_path / "made.ecb", precision, monkeypatch, target)
