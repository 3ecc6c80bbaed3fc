"""The layer where a program begins to differ from the model: found by giving layers' results out.

A program is compiled once more with the results of the model's submodules as further outputs. The
first of them, in the order in which they are computed, that differs by more than is allowed is where
the difference begins. What a layer gives out is no longer merged with the next one, so a difference
that comes of merging may be gone; that is said, too.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from edgecompile.backends.compilation import CompiledModel, CompileOptions, compile_buckets
from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.assembly import stage_calibration_bundle
from edgecompile.bundle.cases import ROUNDED, Case, pad_array
from edgecompile.bundle.margins import allow_rounding
from edgecompile.bundle.reference import find_reference
from edgecompile.bundle.verdict import CaseResult, VerifyReport
from edgecompile.bundle.verify import run_selftest
from edgecompile.bundle.writer import save_case
from edgecompile.export.store import export_bucket
from edgecompile.models.arrays import to_tensors
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import named_forward, run_module
from edgecompile.models.probing import probe_model
from edgecompile.models.specs import axis_sizes
from edgecompile.progress import NULL_STEP, StepHandle
from edgecompile.targets.profile import TargetProfile

#: Layers whose results one program gives out. Of more, some are tried first, then those between.
_LAYERS = 48
_ROUNDS = 2


@dataclass(frozen=True)
class _Layer:
    """A submodule by its path, such as ``encoder.layer.3.output``, and the name of its class."""

    path: str
    kind: str

    def __str__(self) -> str:
        return f"{self.path.removeprefix('model.')} ({self.kind})"


def find_origin(
    model: LoadedModel,
    compiled: CompiledModel,
    buckets: Sequence[Bucket],
    cases: Sequence[Case],
    report: VerifyReport,
    profile: TargetProfile,
    *,
    step: StepHandle = NULL_STEP,
) -> str:
    """The layer where the worst result begins to differ, as a sentence; "" if that can't be told.

    Args:
        model: the compiled model.
        compiled: its programs, of which one differs.
        buckets: theirs.
        cases: inputs of the results.
        report: the results.
        profile: the target.
        step: told what is being done.
    """
    failed = [
        result
        for result in report.results
        if not result.ok
        and math.isfinite(result.max_abs_error)
        and result.variant in compiled.artifacts
    ]
    if not failed:
        return ""
    worst = max(failed, key=report.used)
    step.update(text="looking for the layer where the difference begins")
    # It is told beside an error: what fails here mustn't hide that.
    with suppress(Exception):
        return _search(model, compiled, buckets[worst.bucket], cases, worst, profile)
    return ""


def _search(
    model: LoadedModel,
    compiled: CompiledModel,
    bucket: Bucket,
    cases: Sequence[Case],
    worst: CaseResult,
    profile: TargetProfile,
) -> str:
    case = next(c for c in cases if (c.bucket, c.name) == (worst.bucket, worst.case))
    case = replace(case, bucket=0, name=case.name.removeprefix(ROUNDED), limits={})
    variants = [variant for variant in compiled.variants if variant.name == worst.variant]
    options = CompileOptions(
        variants, compiled.precision, compiled.backend, padded=bucket.mode == "pad"
    )
    # Padded beforehand, so that nothing has to be cut from results of any shape.
    bucket = Bucket("exact", bucket.program_axes)
    sizes = {name: extent.lo for name, extent in bucket.axes if extent.lo == extent.hi}
    inputs = {s.name: pad_array(case.inputs[s.name], s.shape, sizes, s.pad) for s in model.inputs}
    case = replace(case, inputs=inputs)
    layers = _layers(model, inputs)
    good, bad, where = -1, len(layers), ""
    for _ in range(_ROUNDS):
        between = range(good + 1, bad)
        count = min(_LAYERS, len(between))
        chosen = [between[(2 * i + 1) * len(between) // (2 * count)] for i in range(count)]
        if not chosen:
            break
        wrong = _differing(
            model, options, bucket, case, [layers[i] for i in chosen], worst, profile
        )
        first = next((i for i in chosen if layers[i].path in wrong), None)
        good = max((i for i in chosen if first is None or i < first), default=good)
        if first is None and bad == len(layers):
            return (
                f"with the results of {count} layers given out, none of them differs: the "
                "difference comes of how operators are merged, or begins behind the last layer"
            )
        if first is not None:
            bad, where = first, wrong[layers[first].path]
        if count == len(between) or not between:
            break
    before = f"; {layers[good]} before it is right" if good >= 0 else ""
    return f"the difference begins in {layers[bad]}: it {where}{before}"


def _layers(model: LoadedModel, inputs: Mapping[str, Any]) -> list[_Layer]:
    """Submodules that give a float32 tensor, each where it first does, in this order."""
    order: dict[str, _Layer] = {}
    parts = {path: part for path, part in model.module.named_modules() if path}
    with _watching(model, list(parts), order):
        run_module(model.module, model.fresh(to_tensors(inputs)), model.name)
    return list(order.values())


def _differing(
    model: LoadedModel,
    options: CompileOptions,
    bucket: Bucket,
    case: Case,
    layers: Sequence[_Layer],
    worst: CaseResult,
    profile: TargetProfile,
) -> dict[str, str]:
    """The problems of the layers that differ, by path."""
    names = {f"layer_{index}": layer.path for index, layer in enumerate(layers)}
    with (
        tempfile.TemporaryDirectory(prefix="edgecompile-origin-") as name,
        _watching(model, list(names.values()), {}, list(names)),
    ):
        folder = Path(name)
        working = axis_sizes(model.inputs, case.inputs)
        outputs, _ = probe_model(model.module, model.inputs, model.axes, model.name, working)
        probe = replace(model, outputs=outputs)
        reference = find_reference(probe, case.inputs)
        case = replace(case, outputs=reference.outputs, rounding=reference.rounding)
        (case,) = allow_rounding([case])
        exported = export_bucket(probe, bucket)
        made = compile_buckets([exported], [bucket], profile, folder / "code", options)
        path = stage_calibration_bundle(probe, [bucket], made, folder / "probe.ecb", [])
        cases = folder / "cases"
        cases.mkdir()
        save_case(cases / "0-case.npz", case.inputs, case.outputs, case.margins)
        (answer,) = run_selftest(path, cases, worst.variant)["cases"]
    return {
        names[key]: str(output["reason"])
        for key, output in answer["outputs"].items()
        if key in names and not output["ok"]
    }


@contextmanager
def _watching(
    model: LoadedModel,
    paths: Sequence[str],
    order: dict[str, _Layer],
    names: Sequence[str] | None = None,
) -> Iterator[None]:
    """Lets the model's module give out what submodules give, under ``names``; notes their order."""
    module = model.module
    own = module.forward

    def run(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}

        def keep(path: str, name: str) -> Any:
            def hook(part: nn.Module, _: Any, result: Any) -> None:
                tensor = _first_tensor(result)
                if name in seen or tensor is None or not tensor.is_floating_point():
                    return
                order[path] = _Layer(path, type(part).__name__)
                seen[name] = tensor.clone()

            return hook

        labels = names or paths
        # Parts are looked up in each run: what traces a model may put others in their place.
        handles = [
            module.get_submodule(path).register_forward_hook(keep(path, label))
            for path, label in zip(paths, labels, strict=True)
        ]
        try:
            outputs = own(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        return outputs if names is None else {**outputs, **seen}

    given = vars(module).get("forward")
    module.forward = named_forward([spec.name for spec in model.inputs], run)
    try:
        yield
    finally:
        if given is None:
            del module.forward
        else:
            module.forward = given


def _first_tensor(value: Any) -> Tensor | None:
    """A layer's result: itself, or the first of several."""
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value if isinstance(value, Tensor) else None
