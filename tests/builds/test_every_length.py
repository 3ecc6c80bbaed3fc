"""Models that compute with sizes: exact at every length that they serve, or refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from edgecompile.backends.artifact import Artifact, TensorStore
from edgecompile.backends.compilation import CompiledModel
from edgecompile.backends.cpu.lowering.lower import lower_graph
from edgecompile.backends.inductor.compat.generation import GENERATING, generate_cpp
from edgecompile.buckets.ranges import AxisRange, Bucket
from edgecompile.bundle.cases import SPREAD_LENGTHS, length_cases, make_cases
from edgecompile.bundle.verdict import LengthsRun
from edgecompile.errors import CompileError, ExportError, ModelError
from edgecompile.export.checks import compare_outputs
from edgecompile.export.conditions import unlike_sizes
from edgecompile.export.export import export_model
from edgecompile.export.program import ExportedModel
from edgecompile.files import file_sha256
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.loaders.load import load_model
from edgecompile.models.loaded import LoadedModel
from edgecompile.pipeline.build import build
from edgecompile.pipeline.request import BuildRequest
from edgecompile.planning.request import PlanRequest
from edgecompile.runtime import open_bundle
from edgecompile.runtime.format.golden.compare import compare_arrays
from edgecompile.targets.profile import load_variant
from tests.factories import sizes

pytestmark = pytest.mark.slow

FACTORY = f"{Path(sizes.__file__)}:spec"


def loaded(compute: Callable[..., Any], batch: int = 1) -> LoadedModel:
    return load_model(sizes.spec(compute, batch), batch=(1, batch))


def differences(model: LoadedModel, exported: ExportedModel) -> list[dict[str, int]]:
    """All sizes within its ranges at which a program isn't what eager gives."""
    module = exported.program.module()
    axes, found = list(exported.ranges), []
    for chosen in itertools.product(*(range(lo, hi + 1) for lo, hi in exported.ranges.values())):
        at = dict(zip(axes, chosen, strict=True))
        inputs = model.make_example(at, seed=sum(chosen))
        with torch.no_grad():
            error = compare_outputs(module(**inputs), model.run(inputs))
        if isinstance(error, str) or error > 1e-5:
            found.append(at)
    return found


@pytest.mark.parametrize(
    ("compute", "span"),
    [
        (sizes.everything, (1, 130)),
        (sizes.smallest, (1, 130)),
        (sizes.root, (1, 130)),
        (sizes.logarithm, (1, 130)),
        (sizes.blocks, (1, 130)),
        (sizes.as_number, (1, 130)),
        # Where another branch begins, the program ends; the traced length is 16.
        (sizes.branch, (11, 16)),
        (sizes.threshold, (2, 37)),
        (sizes.halves, (2, 130)),
        (sizes.thirds, (8, 130)),
    ],
)
def test_an_export_is_right_at_every_length_that_it_serves(
    compute: Callable[..., Any], span: tuple[int, int]
) -> None:
    model = loaded(compute)
    exported = export_model(model, allow_narrower=True)
    assert exported.ranges == {"length": span}
    assert differences(model, exported) == []


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (sizes.branch, "its code needs length % 7 != 3"),
        (sizes.threshold, "its code needs 2 <= length and length <= 37"),
        (sizes.from_list, r"its code fixes length to 16.*TABLE\[x\.shape\[1\]\]"),
        (sizes.from_dict, r"unhashable type.*by_length\[x\.shape\[1\]\]"),
        (sizes.loop, r"its code needs \(?length // 16\)? == 1 \(at"),
    ],
)
def test_what_sizes_decide_in_python_is_refused_with_the_condition(
    compute: Callable[..., Any], reason: str
) -> None:
    with pytest.raises(ExportError, match=reason):
        export_model(loaded(compute))


def test_a_buffer_that_is_too_short_is_the_models_own_failure() -> None:
    with pytest.raises(ModelError, match=r"fails on x \[1, 130, 4\].*model\.short"):
        export_model(loaded(sizes.from_short_buffer))


def test_conditions_on_two_axes_are_tried_at_all_of_their_sizes() -> None:
    model = loaded(sizes.both_axes, 4)
    exported = export_model(model, allow_narrower=True)
    assert exported.ranges["length"] == (1, 130) and differences(model, exported) == []
    model = loaded(sizes.batch_branch, 4)
    with pytest.raises(ExportError, match="its code fixes batch to 2"):
        export_model(model, allow_narrower=True)


def test_rounded_sizes_survive_being_stored(tmp_path: Path) -> None:
    model = loaded(sizes.everything)
    export_model(model).save(tmp_path)
    assert differences(model, ExportedModel.load(tmp_path)) == []


def test_what_torch_cannot_store_is_refused_in_words(tmp_path: Path) -> None:
    exported = export_model(loaded(sizes.to_digits))
    with pytest.raises(ExportError, match=r"can't be stored by torch.*round"):
        exported.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def generated(compute: Callable[..., Any], **how: bool) -> tuple[Any, ExportedModel, Any]:
    exported = export_model(loaded(compute), **how)
    with GENERATING:
        module = exported.program.module()
        lower_graph(module)
        code = generate_cpp(
            module,
            exported.example({"length": 16}),
            load_variant("x86-64-v3"),
        )
    return module, exported, code


def test_a_length_that_the_code_generator_fixes_is_refused() -> None:
    with pytest.raises(CompileError, match=r"fixes dimension 1 of 'x' to 16.*adaptive_avg_pool"):
        generated(sizes.pooled)


def test_what_the_code_generator_takes_for_given_is_tried_where_it_does_not_hold() -> None:
    # The program is right from 8 on; the code is generated as if it were for all lengths.
    module, exported, code = generated(sizes.thirds, allow_narrower=True)
    assert code.assumed and not code.overflows
    at, span = {"length": 16}, {"length": (8, 130)}
    assert unlike_sizes(module, code.assumed, exported.inputs, span, at) == []
    found = unlike_sizes(module, code.assumed, exported.inputs, {"length": (1, 130)}, at)
    assert {"length": 1} in found and {"length": 16} not in found


def built(factory: str, folder: Path) -> Path:
    request = BuildRequest(
        model=factory,
        target="cpu-x86-64-v3",
        plan=PlanRequest(LengthDistribution.from_samples([16, 40, 90]), mode="exact", buckets=1),
        output=folder / "sizes.ecb",
    )
    return build(request).bundle_path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(FACTORY, tmp_path_factory.mktemp("sizes"))


def test_a_built_program_is_right_at_every_length(bundle: Path) -> None:
    agrees_everywhere(bundle, sizes.everything)


def test_what_torch_fixes_a_length_by_is_built_and_right_at_every_length(tmp_path: Path) -> None:
    agrees_everywhere(built(f"{sizes.__file__}:rewritten_spec", tmp_path), sizes.rewritten)


def agrees_everywhere(bundle: Path, compute: Callable[..., Any]) -> None:
    eager = loaded(compute)
    with open_bundle(bundle) as model:
        for length in range(1, sizes.LONGEST + 1):
            inputs = eager.make_example({"length": length}, seed=length)
            want = eager.run(inputs)
            got = model.run({name: tensor.numpy() for name, tensor in inputs.items()})
            for name, expected in want.items():
                verdict = compare_arrays(got[name], expected.numpy(), model.tolerance, None)
                assert verdict.ok, (name, length, verdict)


def test_the_verification_ran_every_length_and_says_so(bundle: Path) -> None:
    report = json.loads((bundle / "reports" / "verify.json").read_text())
    assert report["lengths"] == {"axis": "length", "run": 130, "total": 130}
    assert report["cases"] >= 130
    # Of those lengths the worst one is listed.
    listed = [item["case"] for item in report["results"]]
    assert len(listed) == len(set(listed)) and sum(n.startswith("length") for n in listed) == 1
    assert "all 130 lengths" in (bundle / "reports" / "report.html").read_text()


def test_how_many_lengths_were_run_in_words() -> None:
    assert str(LengthsRun("length", 256, 256)) == "all 256 lengths"
    assert str(LengthsRun("length", 19, 512)) == "19 of 512 lengths"
    assert str(LengthsRun("batch", 8, 8)) == "all 8 sizes of batch"
    assert str(LengthsRun("batch", 1, 1)) == "the one size that there is"


def whole(model: LoadedModel, lo: int, hi: int) -> Bucket:
    assert model.length_axis is not None
    others = [(n, AxisRange(a.lo, a.hi or a.lo, a.lo)) for n, a in model.axes.items()]
    axes = [item for item in others if item[0] != model.length_axis]
    return Bucket("exact", ((model.length_axis, AxisRange(lo, hi, (lo + hi) // 2)), *axes))


def test_every_length_is_run_at_both_ends_of_the_other_axes() -> None:
    model = loaded(sizes.both_axes, 4)
    cases = list(length_cases(model, [whole(model, 1, 50), whole(model, 51, 130)]))
    shapes = [(case.bucket, *case.inputs["x"].shape[:2]) for case in cases]
    assert sorted(shapes) == sorted(
        (int(length > 50), batch, length) for length in range(1, 131) for batch in (1, 4)
    )
    assert len({(case.bucket, case.name) for case in cases}) == len(cases)


@pytest.fixture
def unlimited() -> LoadedModel:
    made = sizes.spec(sizes.blocks)
    return load_model({**made, "limits": {}})


def test_of_too_many_lengths_a_spread_is_run(unlimited: LoadedModel) -> None:
    bucket = whole(unlimited, 1, 5000)
    lengths = [case.inputs["x"].shape[1] for case in length_cases(unlimited, [bucket])]
    assert len(lengths) == len(set(lengths)) == SPREAD_LENGTHS
    assert {2, 4999, 2499, 2501} <= set(lengths)
    assert any(n % 8 == 0 for n in lengths) and any(n % 8 == 7 for n in lengths)
    again = [case.inputs["x"].shape[1] for case in length_cases(unlimited, [bucket])]
    assert again == lengths  # equal inputs make equal bundles


def test_a_model_that_computes_much_gets_the_usual_cases_alone(
    unlimited: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgecompile.bundle.cases._FLOPS_PER_S", 1e-9)
    bucket = whole(unlimited, 1, 64)
    assert list(length_cases(unlimited, [bucket])) == []
    usual = list(make_cases(unlimited, [bucket]))
    assert len(usual) == 6
    # Where nothing else is run the golden vectors are the same ones.
    golden = list(make_cases(unlimited, [bucket], golden=True))
    assert [case.name for case in golden] == ["lower", "upper", "hint"]
    for one, other in zip(golden, usual, strict=False):
        assert one.name == other.name and (one.inputs["x"] == other.inputs["x"]).all()
    # Sizes that have to be tried are, whatever they take.
    wanted = {0: [{"length": 7}, {"length": 9}]}
    cases = list(length_cases(unlimited, [bucket], also=wanted))
    assert [case.inputs["x"].shape[1] for case in cases] == [7, 9]


def test_what_cases_hold_is_bounded(
    unlimited: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = whole(unlimited, 1, 64)
    assert len(list(length_cases(unlimited, [bucket]))) == 64
    monkeypatch.setattr("edgecompile.bundle.cases._BUDGET_BYTES", 8 * 64 * 16 + 1)
    assert 0 < len(list(length_cases(unlimited, [bucket]))) < 10


def test_sizes_to_try_reach_the_verification(tmp_path: Path) -> None:
    library = tmp_path / "bucket-0.so"
    library.write_bytes(b"code")
    digest = file_sha256(library)
    made = Artifact(
        "k", 0, "v", library, digest, "", False, {}, {}, (), {}, ({"length": 1}, {"length": 3})
    )
    assert Artifact.load(made.save()).kinds == ({"length": 1}, {"length": 3})
    compiled = CompiledModel(
        variants=(),
        natives={},
        artifacts={"v": (made,)},
        probes={},
        store=TensorStore(tmp_path),
        audit=(),
        compilers=frozenset(),
        exported=(),
    )
    buckets = [Bucket("exact", (("length", AxisRange(lo, hi, hi)),)) for lo, hi in ((1, 2), (2, 9))]
    # One program serves both, each at its own lengths.
    assert compiled.kinds(buckets) == {0: [{"length": 1}], 1: [{"length": 3}]}
