"""Checks of a batch that need no reference: a row's answer is the same whatever runs beside it.

Compilers got this wrong where single rows were right: TensorRT 10.11 and 11.1 gave several answers for equal rows
of one batch (NVIDIA/TensorRT#4813, #4853). The build host records a golden vector ``rows`` where eager passes
both checks on it.
"""

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from ..base.errors import EdgecompileError
from ..format.golden.compare import Agreement, compare_arrays
from ..format.manifest.schema import Manifest, Tolerance
from .dispatch import axis_sizes
from .replay import Runner, load_golden, new_result, note_agreements

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Arrays = Mapping[str, "NDArray[Any]"]
_Run = Callable[[_Arrays], _Arrays]

#: The name of the golden vectors that the checks take.
ROWS = "rows"
EQUAL = "equal-rows"
ALONE = "rows-alone"

#: Operators that mixed rows up in reported failures, or whose kernels depend on the batch, the likeliest first: ONNX's
#: names, as a bundle for TensorRT has them, and torch's layers.
_SUSPECTS = (
    *(
        "GridSample",
        "TopK",
        "GatherElements",
        "GatherND",
        "ScatterElements",
        "ScatterND",
        "Attention",
    ),
    *(
        "Softmax",
        "MultiheadAttention",
        "MatMul",
        "Gemm",
        "Einsum",
        "Linear",
        "Bilinear",
        "ConvTranspose",
    ),
    *(
        "ConvTranspose1d",
        "ConvTranspose2d",
        "Conv",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "InstanceNormalization",
    ),
    *("InstanceNorm1d", "InstanceNorm2d", "GroupNormalization", "GroupNorm", "LayerNormalization"),
    *("LayerNorm", "BatchNorm1d", "BatchNorm2d", "LSTM", "GRU", "RNN", "Resize", "Upsample"),
)
_MOST_SUSPECTS = 6
# One of so many choices may turn out differently.
_CHOICES = 8


def check_rows(model: Runner) -> List[Dict[str, Any]]:
    """Runs both checks on the golden vector ``rows`` of each bucket that has one.

    Args:
        model: the runner; each row is as exact as its tolerance says, so two differ by twice as much at most.

    Returns:
        Two results for each vector, as of :func:`.replay.run_cases`; "case" is one of EQUAL and ALONE.
    """
    manifest = model.manifest
    suspects = _suspects(manifest)
    results: List[Dict[str, Any]] = []
    first = {spec.shape[:1] for spec in (*manifest.inputs, *manifest.outputs)}
    axis = first.pop() if len(first) == 1 else ()
    if not axis or axis[0] not in manifest.axes:
        return results
    for item in sorted(manifest.golden, key=lambda item: item.bucket):
        if item.case != ROWS:
            continue
        try:
            inputs: _Arrays = load_golden(model, item.file).inputs
        except (EdgecompileError, OSError) as error:
            results.append(dict(new_result(item.bucket, ROWS), error=str(error)))
            continue
        bucket = item.bucket
        step = manifest.buckets[bucket].axes[str(axis[0])].lo
        if len(next(iter(inputs.values()))) < 2 * step:
            continue

        def run(arrays: _Arrays, bucket: int = bucket) -> _Arrays:
            return model.run_bucket(bucket, arrays)

        for name, check in ((EQUAL, equal_rows), (ALONE, rows_alone)):
            result = new_result(bucket, name)
            shapes = {key: array.shape for key, array in inputs.items()}
            result["sizes"] = axis_sizes(manifest, shapes)
            try:
                started = time.perf_counter_ns()
                answers = check(run, inputs, step)
                result["ms"] = (time.perf_counter_ns() - started) / 1e6
                _judge(result, answers, model.tolerance, suspects)
            except EdgecompileError as error:
                result["error"] = str(error)
            results.append(result)
    return results


def equal_rows(run: _Run, inputs: _Arrays, step: int) -> Tuple[_Arrays, _Arrays]:
    """The answers for a batch that repeats its first rows, and what equal answers would be.

    Args:
        run: runs a batch.
        inputs: a batch; the first dimension of every array is its rows.
        step: the smallest number of rows of a run.
    """
    count = len(next(iter(inputs.values()))) // step
    outputs = run({name: _repeat(array, step, count) for name, array in inputs.items()})
    return outputs, {name: _repeat(array, step, count) for name, array in outputs.items()}


def rows_alone(run: _Run, inputs: _Arrays, step: int) -> Tuple[_Arrays, _Arrays]:
    """The answers for a batch, and those for its rows in runs of ``step``; arguments as of ``equal_rows``."""
    count = len(next(iter(inputs.values())))
    together = {name: np.array(array) for name, array in run(inputs).items()}
    parts: List[_Arrays] = []
    for at in range(0, count, step):
        alone = run({k: np.ascontiguousarray(v[at : at + step]) for k, v in inputs.items()})
        # The next run may use the same memory.
        parts.append({name: np.array(array) for name, array in alone.items()})
    return together, {name: np.concatenate([p[name] for p in parts]) for name in together}


def compare_rows(got: _Arrays, want: _Arrays, tolerance: Tolerance) -> Dict[str, Agreement]:
    """The agreement of two answers for the same rows, by output.

    Both are off by what the tolerance allows at most. Whole numbers are choices, which may turn out differently where
    two are nearly equal: an eighth of them may, and one of any number. Of the 2 to 4 rows of a case, one that is
    wrong throughout makes a quarter.
    """
    twice = Tolerance(2 * tolerance.atol, 2 * tolerance.rtol)
    result = {}
    for name, expected in want.items():
        agreement = compare_arrays(got[name], expected, twice)
        if expected.dtype.kind != "f" and got[name].shape == expected.shape:
            different = int(np.count_nonzero(got[name] != expected))
            few = different <= max(1, expected.size // _CHOICES)
            agreement = agreement._replace(ok=True, reason=None) if few else agreement
        result[name] = agreement
    return result


def _repeat(array: "NDArray[Any]", step: int, count: int) -> "NDArray[Any]":
    return np.concatenate([array[:step]] * count)


def _judge(
    result: Dict[str, Any],
    answers: Tuple[_Arrays, _Arrays],
    tolerance: Tolerance,
    suspects: Sequence[str],
) -> None:
    reasons = note_agreements(result, compare_rows(*answers, tolerance))
    if not reasons:
        return
    what = {
        EQUAL: "equal rows of a batch give different answers",
        ALONE: "a row gives another answer in a batch than alone",
    }
    text = "{}, which eager doesn't: {}".format(what[result["case"]], reasons)
    if suspects:
        text += "; the likeliest operators of this model are " + ", ".join(suspects)
    result["error"] = text


def _suspects(manifest: Manifest) -> List[str]:
    """The likeliest of the operators that the build host noted."""
    noted = manifest.plan.get("operators")
    names = noted if isinstance(noted, (list, tuple)) else ()
    return [name for name in _SUSPECTS if name in names][:_MOST_SUSPECTS]
