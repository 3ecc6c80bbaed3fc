"""Checks of a GPU's program without a GPU: its graph is run on the CPU, against the model's.

Run as a module it does the same with the kernels of ours in Triton's interpreter. That is a process of its
own: the interpreter leaves Triton's compiler unusable.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from edgecompile.errors import ModelError, VerificationError
from edgecompile.export.halves import computes_in_halves, tolerance_of
from edgecompile.export.program import ExportedModel
from edgecompile.files import plain_fields
from edgecompile.models.arrays import to_numpy, to_tensors
from edgecompile.models.choices import Choices
from edgecompile.models.definite import definite
from edgecompile.models.double import run_in_float64
from edgecompile.models.orders import follow_orders
from edgecompile.precision import INT8, min_cosine
from edgecompile.runtime.format.golden.ties import Ties, take_ties
from edgecompile.runtime.format.manifest.schema import Tolerance
from edgecompile.targets.gpu import FP8, GpuFacts

#: The graph in the target's precision against the exported one in float32, both by torch's kernels; and
#: the kernels of ours in Triton's interpreter.
GRAPH, INTERPRETER = "graph", "interpreter"
#: Elements of all inputs up to which kernels are interpreted: a block of one takes a tenth of a second.
_INTERPRETED = 64
#: Seconds for which other orders of a model's choices are tried, beside three times as long as one run takes.
_ORDERS_S = 60.0
#: Gives inputs by name, of these sizes of the axes.
Draw = Callable[[Mapping[str, int]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class GraphCheck:
    """A comparison of a lowered graph with the exported one.

    Attributes:
        kind: :data:`GRAPH` or :data:`INTERPRETER`.
        sizes: the sizes of the axes.
        max_error: largest difference, as a share of an output's largest magnitude.
        cosine: least cosine of an output; None where none has one.
    """

    kind: str
    sizes: Mapping[str, int]
    max_error: float
    cosine: float | None

    def to_json(self) -> dict[str, Any]:
        """A dict of plain values."""
        return plain_fields(self)


def check_graph(
    exported: ExportedModel,
    sizes: Sequence[Mapping[str, int]],
    precision: str,
    draw: Draw | None = None,
) -> tuple[Callable[[GraphModule], None], list[GraphCheck]]:
    """A check for :func:`~edgecompile.backends.cuda.make_source.make_gpu_source`, and what it will have found.

    Args:
        exported: the program before it is lowered.
        sizes: the sizes at which to run both, the smallest first: there kernels are interpreted,
            too.
        precision: the precision of the lowered one; decides the tolerance.
        draw: a function that gives the inputs; None: the export's own examples.
    """
    checks: list[GraphCheck] = []

    def check(module: GraphModule) -> None:
        with torch.no_grad():
            for one in sizes:
                full = {axis: one.get(axis, hi) for axis, (_, hi) in exported.ranges.items()}
                inputs = exported.example(full) if draw is None else draw(full)
                outputs = _run(exported, module, inputs)
                checks.append(_check(GRAPH, exported, one, inputs, outputs, precision))

    return check, checks


def check_kernels(
    folder: Path, sizes: Mapping[str, int], precision: str, gpu: GpuFacts
) -> GraphCheck | None:
    """Runs a lowered graph with the kernels of ours in Triton's interpreter, in a process of its own.

    Args:
        folder: an export, as :meth:`~edgecompile.export.program.ExportedModel.save` left it.
        sizes: the sizes of the axes; small ones.
        precision: the precision of the lowered one.
        gpu: the target.

    Returns:
        None where the graph has none of these kernels, or the inputs are too large for this.

    Raises:
        VerificationError: it differs from the model; or the process failed.
    """
    task = {"folder": str(folder), "sizes": dict(sizes), "precision": precision, "gpu": vars(gpu)}
    command = [sys.executable, "-W", "ignore", "-m", __name__, json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        lines = done.stderr.strip().splitlines()
        raise VerificationError(
            f"Triton's interpreter failed with exit code {done.returncode}: "
            + (lines[-1] if lines else "it said nothing"),
            hint="this is a defect of edgecompile; please report the model",
        ) from None
    if "error" in answer:
        raise VerificationError(answer["error"], hint=answer["hint"])
    return GraphCheck(**answer) if answer else None


def _interpret(task: Mapping[str, Any]) -> dict[str, Any]:
    from edgecompile.backends.cuda.kernels.launch import interpreted
    from edgecompile.backends.cuda.lowering.lower import lower_for_gpu

    exported = ExportedModel.load(Path(task["folder"]))
    inputs = exported.example(task["sizes"])
    # Of caches no row behind the last token is read.
    read = [inputs[spec.name] for spec in exported.inputs if not spec.in_place]
    if sum(tensor.numel() for tensor in read) > _INTERPRETED:
        return {}
    module = exported.program.module()
    lower_for_gpu(module, GpuFacts(**task["gpu"]), task["precision"])
    if not any(str(node.target).startswith("edgecompile.") for node in module.graph.nodes):
        return {}
    with torch.no_grad():
        with interpreted():
            outputs = _run(exported, module, inputs)
        try:
            check = _check(INTERPRETER, exported, task["sizes"], inputs, outputs, task["precision"])
        except VerificationError as error:
            return {"error": error.message, "hint": error.hint}
    return check.to_json()


def _run(exported: ExportedModel, module: Any, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs, and the inputs that were changed in place; ``inputs`` stay as they are."""
    changed = [spec.name for spec in exported.inputs if spec.in_place]
    arguments = {**inputs, **{name: inputs[name].clone() for name in changed}}
    with definite():
        outputs = module(**arguments)
    return {**outputs, **{f"{name} afterwards": arguments[name] for name in changed}}


def _check(
    kind: str,
    exported: ExportedModel,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    precision: str,
) -> GraphCheck:
    """Compares a program's outputs with those of the exported graph; nearly equal values may be taken in either order."""
    reference = exported.program.module()
    tolerance = tolerance_of(precision, reference)
    expected, ties = _expected(exported, reference, inputs, tolerance.rtol)
    if ties is not None:
        expected = _take_ties(outputs, expected, ties, tolerance)
    return _compare(kind, sizes, outputs, expected, tolerance, precision)


def _expected(
    exported: ExportedModel, reference: Any, inputs: Mapping[str, Tensor], rtol: float
) -> tuple[Mapping[str, Tensor], Ties | None]:
    """The outputs of the exported graph, and those that near ties leave open; of a graph that computes in half precision
    itself those of float64.

    The GPU's program has its own precision throughout, without torch's roundings between operators, which alone come
    to the tolerance in a few layers.
    """
    halves = computes_in_halves(reference)
    plain = partial(_run_keywords, exported, reference)
    again = partial(run_in_float64, plain, inputs) if halves else partial(plain, **inputs)
    choices, start = Choices(), time.monotonic()
    try:
        with choices:
            outputs = again()
    except Exception:
        if not halves:
            raise
        return plain(**inputs), None  # a graph that only its own types will do for
    now = time.monotonic()
    until = now + _ORDERS_S + 3 * (now - start)

    def run(mode: AbstractContextManager[Any]) -> Mapping[str, Tensor]:
        if time.monotonic() > until:
            raise ModelError("other orders have taken their time")
        try:
            with mode:
                return again()
        except Exception as error:  # an assertion of the graph about what was chosen
            raise ModelError(f"another order fails: {error}") from error

    if not any(spec.in_place for spec in exported.inputs):  # caches: a text's many choices
        follow_orders(choices, outputs, rtol, run)
    return outputs, choices.find_ties(outputs, rtol)


def _take_ties(
    got: Mapping[str, Tensor], want: Mapping[str, Tensor], ties: Ties, tolerance: Tolerance
) -> Mapping[str, Tensor]:
    """The expected outputs with those alternatives for nearly equal values that the program took."""
    got = {name: got[name].to(tensor.dtype) for name, tensor in want.items()}  # float64's
    return to_tensors(take_ties(to_numpy(got), to_numpy(want), ties, tolerance))


def _run_keywords(exported: ExportedModel, module: Any, /, **inputs: Tensor) -> dict[str, Tensor]:
    return _run(exported, module, inputs)


def _compare(
    kind: str,
    sizes: Mapping[str, int],
    got: Mapping[str, Tensor],
    want: Mapping[str, Tensor],
    tolerance: Tolerance,
    precision: str,
) -> GraphCheck:
    least = min_cosine(precision)
    worst, cosines, problems = 0.0, [], []
    for name, expected in want.items():
        if got[name].shape != expected.shape:
            shapes = [list(x.shape) for x in (got[name], expected)]
            problems.append(f"'{name}' has shape {shapes[0]} instead of {shapes[1]}")
            continue
        if not expected.is_floating_point():
            continue  # chosen by comparison: a rounding may choose otherwise
        a, b = got[name].double().flatten(), expected.double().flatten()
        finite = b.isfinite()
        if not torch.equal(a.isfinite(), finite):
            problems.append(f"'{name}' is finite at other places")
            continue
        a, b = a[finite], b[finite]
        if not b.numel():
            continue
        scale, error = float(b.abs().max()), float((a - b).abs().max())
        worst = max(worst, error / scale if scale else error)
        if error > tolerance.limit(scale):
            problems.append(
                f"'{name}' differs by {error:.3g}, allowed {tolerance.limit(scale):.3g}"
            )
        norm = float(a.norm() * b.norm())
        if norm:
            cosines.append(float(a @ b) / norm)
            if least is not None and cosines[-1] < least:
                problems.append(
                    f"'{name}' has the cosine {cosines[-1]:.6f}, at least {least} is asked"
                )
    if problems:
        at = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        how = "its kernels in Triton's interpreter" if kind == INTERPRETER else "its graph"
        raise VerificationError(
            f"the GPU's program in {precision} ({how}, {at}) differs from the model in fp32: "
            + "; ".join(problems),
            hint='`precision="bf16"` has the range of fp32, fp32 its digits'
            + ("; fp16 keeps its weights" if precision in (INT8, FP8) else ""),
        )
    return GraphCheck(kind, dict(sizes), worst, min(cosines, default=None))


if __name__ == "__main__":
    print(json.dumps(_interpret(json.loads(sys.argv[1]))))
