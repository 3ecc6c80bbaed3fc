"""The shipped ONNX against eager, at every bucket's sizes, as they are and padded.

A device runs either the inputs' own sizes, or fills inputs up to a profile's largest sizes with the
manifest's pad values and cuts the outputs back. Both are tried here, by onnxruntime on the CPU: that
proves the graph and its weights, not what TensorRT makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.cases import Case, pad_array
from edgecompile.files import plain_fields
from edgecompile.models.specs import InputSpec, OutputSpec, axis_sizes, tied_sizes
from edgecompile.onnx_files.scan import OnnxRunner
from edgecompile.runtime.call.replay import compare_case
from edgecompile.runtime.format.golden.compare import Agreement
from edgecompile.runtime.format.manifest.schema import Tolerance

#: By case of a bucket, how its outputs agree.
_Runs = list[tuple[str, list[Agreement]]]


@dataclass(frozen=True)
class BucketAgreement:
    """The results of one bucket's cases.

    Attributes:
        bucket: its number.
        padded: whether the inputs were filled up to the bucket's largest sizes.
        counts: whether the verdict depends on it: padded runs count in buckets that always pad.
        cases: the number of cases that were run.
        ok: whether all of them agree.
        worst: the name of the case that used most of what is allowed.
        max_abs_error, scale: its largest difference and the largest magnitude of eager's output.
        allowed: the difference that was allowed.
        cosine: the least of all cases; None where there is none, as of whole numbers.
        reasons: the reasons of failures, one line a case.
    """

    bucket: int
    padded: bool
    counts: bool
    cases: int
    ok: bool
    worst: str
    max_abs_error: float
    scale: float
    allowed: float
    cosine: float | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class OnnxReport:
    """The runs and their results.

    Attributes:
        results: the results by bucket, unpadded and then padded.
        padding: whether filling up to every bucket's largest sizes changes nothing.
        padding_reason: why not; empty if it doesn't.
        tolerance: the allowed difference.
        min_cosine: the least cosine that was allowed; None: any.
    """

    results: tuple[BucketAgreement, ...]
    padding: bool
    padding_reason: str
    tolerance: Tolerance
    min_cosine: float | None

    @property
    def ok(self) -> bool:
        """Whether all that counts agrees with eager; padding elsewhere is a verdict of its own."""
        counting = [item for item in self.results if item.counts]
        return bool(counting) and all(item.ok for item in counting)

    @property
    def cosine(self) -> float | None:
        """The least cosine of all that counts."""
        cosines = [r.cosine for r in self.results if r.counts and r.cosine is not None]
        return min(cosines, default=None)

    @property
    def error(self) -> float:
        """The largest difference that counts, as a share of its output's scale."""
        shares = [
            r.max_abs_error / r.scale if r.scale else r.max_abs_error
            for r in self.results
            if r.counts
        ]
        return max(shares, default=0.0)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The faults that count."""
        return tuple(text for r in self.results if r.counts for text in r.reasons)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        figures = {"ok": self.ok, "cosine": self.cosine, "error": self.error}
        return {**figures, **plain_fields(self)}


def check_onnx(
    path: Path,
    cases: Iterable[Case],
    buckets: Sequence[Bucket],
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    tolerance: Tolerance,
    *,
    min_cosine: float | None = None,
) -> OnnxReport:
    """Runs ``cases`` through an ONNX file.

    Args:
        path: the model, its weights beside it.
        cases: inputs and what eager gives for them.
        buckets: the buckets that the cases' numbers are about.
        inputs, outputs: the inputs and outputs of the model.
        tolerance, min_cosine: the largest difference and the smallest cosine that are allowed.

    Raises:
        VerificationError: onnxruntime can't load or run the model.
    """
    runner = OnnxRunner(path)
    plain: dict[int, _Runs] = {}
    filled: dict[int, _Runs] = {}
    refusal = _padding_refusal(buckets, inputs, outputs)

    def note(runs: dict[int, _Runs], case: Case, actual: Mapping[str, npt.NDArray[Any]]) -> None:
        agreements = compare_case(actual, case, tolerance, min_cosine)
        runs.setdefault(case.bucket, []).append((case.name, list(agreements.values())))

    for case in cases:
        note(plain, case, runner.run(case.inputs))
        sizes = axis_sizes(inputs, case.inputs)
        bucket = buckets[case.bucket]
        # The ends and the hint show every axis filled up; the rest would take as long each.
        axes = bucket.axes[:1] if case.name.startswith("random") else bucket.axes
        upper = {name: span.hi for name, span in axes}
        if refusal or sizes == {name: upper.get(name, size) for name, size in sizes.items()}:
            continue
        more = fill_up(case.inputs, inputs, upper)
        cut = cut_back(runner.run(more), outputs, sizes)
        note(filled, case, cut)
    counts = {i: bucket.mode == "pad" for i, bucket in enumerate(buckets)}
    results = [_sum_up(i, False, True, runs) for i, runs in sorted(plain.items())]
    padding = [_sum_up(i, True, counts[i], runs) for i, runs in sorted(filled.items())]
    wrong = [text for item in padding for text in item.reasons]
    return OnnxReport(
        results=(*results, *padding),
        padding=not refusal and not wrong,
        padding_reason=refusal or (wrong[0] if wrong else ""),
        tolerance=tolerance,
        min_cosine=min_cosine,
    )


def fill_up(
    arrays: Mapping[str, npt.NDArray[Any]], inputs: Sequence[InputSpec], upper: Mapping[str, int]
) -> dict[str, npt.NDArray[Any]]:
    """Every input filled up with its pad value to ``upper`` sizes of the axes named there."""
    return {s.name: pad_array(arrays[s.name], s.shape, upper, s.pad) for s in inputs}


def cut_back(
    arrays: Mapping[str, npt.NDArray[Any]], outputs: Sequence[OutputSpec], sizes: Mapping[str, int]
) -> dict[str, npt.NDArray[Any]]:
    """Every output's dimensions that are axes, cut to ``sizes``."""
    return {
        spec.name: arrays[spec.name][tuple(slice(sizes.get(str(dim))) for dim in spec.shape)]
        for spec in outputs
    }


def _padding_refusal(
    buckets: Sequence[Bucket], inputs: Sequence[InputSpec], outputs: Sequence[OutputSpec]
) -> str:
    """The reason that inputs can't be filled up at all; empty if they can."""
    varying = {name for b in buckets for name, span in b.axes if span.lo < span.hi}
    if tied := tied_sizes(inputs, varying):
        return f"the size {tied[0]} of an input follows from others"
    without = [s.name for s in inputs if s.pad is None and varying & set(s.shape)]
    if without:
        return f"no pad value is known for {', '.join(without)}"
    strange = [spec.name for spec in outputs if None in spec.shape]
    if strange and varying:
        return f"the size of {', '.join(strange)} isn't that of an axis, so it can't be cut back"
    return ""


def _sum_up(bucket: int, padded: bool, counts: bool, runs: _Runs) -> BucketAgreement:
    reasons = []
    worst, share, worst_name = runs[0][1][0], -1.0, runs[0][0]
    cosines = [a.cosine for _, agreements in runs for a in agreements if a.cosine is not None]
    for name, agreement in ((name, a) for name, agreements in runs for a in agreements):
        if agreement.reason:
            how = ", padded" if padded else ""
            reasons.append(f"bucket {bucket}, {name}{how}: {agreement.reason}")
        used = agreement.max_abs_error / agreement.limit if agreement.limit else 0.0
        used = float("inf") if agreement.reason else used
        if used > share:
            worst, share, worst_name = agreement, used, name
    return BucketAgreement(
        bucket=bucket,
        padded=padded,
        counts=counts,
        cases=len(runs),
        ok=not reasons,
        worst=worst_name,
        max_abs_error=worst.max_abs_error,
        scale=worst.scale,
        allowed=worst.limit,
        cosine=min(cosines, default=None),
        reasons=tuple(reasons),
    )
