"""Builds and verifies the ONNX file of a model, from which a device builds its engine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.cases import Case, make_cases, sample_cases
from edgecompile.errors import CompileError, VerificationError
from edgecompile.export.program import ExportedModel
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples
from edgecompile.models.specs import InputSpec, axis_sizes
from edgecompile.onnx.check import OnnxReport, check_onnx, fill_up
from edgecompile.onnx.export import export_onnx, need_onnx
from edgecompile.onnx.fills import Fill, find_fills, masked_values
from edgecompile.onnx.float16 import Narrowed, narrow
from edgecompile.onnx.graph import OnnxGraph
from edgecompile.onnx.int8.choice import Int8Choice
from edgecompile.onnx.kept import SENSITIVE, find_kept
from edgecompile.onnx.operators import OnnxTarget, check_operators
from edgecompile.onnx.report import Int8Report, KeptNode, OnnxArtifact
from edgecompile.onnx.rounding import round_halves, undefined_nodes
from edgecompile.onnx.scan import Arrays, Scan, scan_values
from edgecompile.onnx.tensorrt8 import OPSET, widen, without_quantized
from edgecompile.onnx.weights import write_onnx
from edgecompile.precision import COSINES, TOLERANCES
from edgecompile.progress import NULL_STEP, StepHandle

#: What a file for TensorRT can calculate in, the widest first.
ONNX_PRECISIONS = ("fp32", "fp16", "int8")

_MODEL = "model.onnx"
_ROUNDS = 4


def build_onnx(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    precision: str,
    cap: OnnxTarget,
    samples: Samples | None,
    folder: Path,
    step: StepHandle = NULL_STEP,
    *,
    exported: ExportedModel,
    also: Sequence[OnnxTarget] = (),
) -> OnnxArtifact:
    """Writes ``model.onnx`` and ``weights.PRECISION`` into ``folder``.

    One file serves all buckets: its axes are dynamic over the smallest to the largest size of any.
    It is held against eager at every bucket's edges, hint and some sizes between, and on the
    samples, before it gets its name.

    Args:
        model: the model.
        buckets: what will be an optimization profile each.
        precision: one of :data:`ONNX_PRECISIONS`. fp16: weights and calculation, but for nodes that
            overflow; int8: products with constant matrices, as far as the error allows, the rest as
            fp16. Inputs and outputs keep the model's dtypes.
        cap: the TensorRT release and the newest opset.
        samples: inputs such as the model will see, to find ranges of activations with and to verify
            with; None: drawn ones at the buckets' sizes.
        folder: where the files go; made if missing.
        step: gets the progress.
        exported: the program for at least the buckets' whole range.
        also: further releases whose operators are compared.

    Raises:
        MissingDependencyError: onnx, onnxruntime or onnxscript isn't installed.
        ExportError, ModelError: the model can't be translated or run.
        UnsupportedOperatorError: TensorRT lacks operators; lists all.
        OpsetError: the opset isn't one that TensorRT takes.
        VerificationError: the file's outputs differ from eager's by more than the precision allows.
        CompileError: there is no such precision.
        OSError: the files can't be written.
    """
    if precision not in ONNX_PRECISIONS:
        raise CompileError(
            f"'{precision}' is no precision for TensorRT",
            hint=f"one of {', '.join(ONNX_PRECISIONS)}",
        )
    need_onnx()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".onnx-", dir=folder) as name:
        build = _Build(model, tuple(buckets), precision, cap, samples, Path(name), step)
        return build.run(folder, exported, also)


@dataclass
class _Build:
    """The steps, and what they share.

    Attributes:
        model, buckets, precision, cap, samples, step: as of :func:`build_onnx`.
        scratch: a folder for files.
        cases: inputs with eager's answers.
        inputs: those whose values are looked at.
    """

    model: LoadedModel
    buckets: tuple[Bucket, ...]
    precision: str
    cap: OnnxTarget
    samples: Samples | None
    scratch: Path
    step: StepHandle
    cases: Sequence[Case] = ()
    inputs: Sequence[Arrays] = ()

    def run(
        self, folder: Path, exported: ExportedModel, also: Sequence[OnnxTarget]
    ) -> OnnxArtifact:
        """All steps; the files get their names last."""
        self._say("export")
        graph = export_onnx(exported, self.cap.opset, self.scratch)
        for target in (*also, self.cap):
            check_operators(graph, target).check()
        self._say("eager's answers")
        self.cases = self._cases()
        self.inputs = scan_inputs(self.cases, self.buckets, self.model.inputs)
        kept_nodes: tuple[KeptNode, ...] = ()
        fills: Mapping[str, Fill] = {}
        float32: tuple[str, ...] | None = None
        int8: Int8Report | None = None
        if self.precision == "fp32":
            report = self._verify(graph, "fp32")
        else:
            fills = find_fills(graph)
            narrowed, report = self._narrow(graph, fills)
            if not report.ok:
                raise refusal(report, "fp16")
            wide, graph, kept_nodes = graph, narrowed.graph, narrowed.kept
            if self.cap.opset <= OPSET:
                graph, float32 = widen(graph)
                report = self._verify(graph, "fp16")
            if self.precision == "int8":
                graph, report, int8 = self._quantize(wide, graph)
                float32 = float32 and without_quantized(graph, float32)
        if not report.ok:
            raise refusal(report, self.precision)
        for target in (*also, self.cap):
            ops = check_operators(graph, target)
            ops.check()
        for item in ops.warnings:
            self.step.note(f"TensorRT {ops.tensorrt}: {item}")
        weights = f"weights.{self.precision}"
        write_onnx(graph, folder / _MODEL, folder / weights)
        consumers = graph.consumers()
        return OnnxArtifact(
            path=folder / _MODEL,
            weights=folder / weights,
            opset=graph.opset,
            precision=self.precision,
            inputs=graph.inputs,
            outputs=graph.outputs,
            unused_inputs=tuple(name for name in graph.inputs if name not in consumers),
            nodes=len(graph.nodes),
            kept=kept_nodes,
            float32=float32,
            fills=tuple(str(fill) for fill in fills.values()),
            int8=int8,
            ops=ops,
            check=report,
        )

    def _narrow(self, graph: OnnxGraph, fills: Mapping[str, Fill]) -> tuple[Narrowed, OnnxReport]:
        """The float16 graph with as few nodes in float32 as agree with eager."""
        self._say("ranges of values")
        scan = scan_values(graph, self.inputs, self.scratch, masked=masked_values(fills))
        reasons = find_kept(graph, scan, fills)
        for wider in (False, True):
            if wider:
                self.step.note(
                    "float16 as such differs from eager: norms and softmax stay in float32"
                )
                for node in graph.nodes:
                    if node.op_type in SENSITIVE:
                        reasons.setdefault(node.name, "without it the outputs differ from eager's")
            narrowed = self._keep_undefined(graph, scan, fills, reasons)
            report = self._verify(narrowed.graph, "fp16")
            if report.ok:
                break
        return narrowed, report

    def _keep_undefined(
        self, graph: OnnxGraph, scan: Scan, fills: Mapping[str, Fill], reasons: dict[str, str]
    ) -> Narrowed:
        """Narrows, runs the result, and keeps what gives infinities or NaNs that float32 doesn't.

        Raises:
            VerificationError: there are some however much is kept.
        """
        for _ in range(_ROUNDS):
            narrowed = narrow(graph, reasons, fills)
            self._say("float16's values")
            undefined = undefined_nodes(narrowed.graph, scan, self.inputs, self.scratch)
            if not undefined:
                return narrowed
            if undefined.keys() <= reasons.keys():
                break
            reasons.update({n: why for n, why in undefined.items() if n not in reasons})
        lines = [f"  {graph.place(name)}: {why}" for name, why in undefined.items()]
        raise VerificationError(
            "the ONNX model in float16 has infinities or NaNs:\n" + "\n".join(lines[:20]),
            hint='`precision="fp32"` has the range for them',
        )

    def _quantize(
        self, wide: OnnxGraph, narrow: OnnxGraph
    ) -> tuple[OnnxGraph, OnnxReport, Int8Report]:
        """The float16 graph with as many layers in int8 as agree with eager."""
        choice = Int8Choice(wide, narrow, self.inputs, self._plain(), self.scratch, self._say)
        layers, trials = choice.choose()
        graph = choice.graph(layers)
        report = self._verify(graph, "int8")
        while not report.ok and layers:
            layers = choice.without_worst(layers)
            graph = choice.graph(layers)
            report = self._verify(graph, "int8")
        self.step.note(f"int8: {len(layers)} of {len(choice.layers)} layers, the others in float16")
        calibrated_on = self.samples.source if self.samples is not None else "drawn inputs"
        int8_report = choice.report(layers, trials, calibrated_on, report.error, report.cosine)
        return graph, report, int8_report

    def _verify(self, graph: OnnxGraph, precision: str) -> OnnxReport:
        """Writes the graph as it would ship and runs it, then with every float16 value rounded.

        Returns:
            The second, which is the stricter and has more cases, unless the first one fails.
        """
        self._say("check against eager")
        path = self.scratch / _MODEL
        weights = self.scratch / f"weights.{self.precision}"
        write_onnx(graph, path, weights)
        check_model(path)
        if precision == "fp32":
            return self._check(path, precision, self.cases)
        report = self._check(path, precision, self._plain())
        if not report.ok:
            return report
        self._say("check against eager, rounded")
        write_onnx(round_halves(graph), path, weights)
        return self._check(path, precision, self.cases)

    def _cases(self) -> list[Case]:
        cases = list(make_cases(self.model, self.buckets))
        if self.samples is not None:
            cases += sample_cases(self.model, self.buckets, self.samples)
        return cases

    def _plain(self) -> list[Case]:
        return [case for case in self.cases if not case.name.startswith(("random", "padded"))]

    def _check(self, path: Path, precision: str, cases: Sequence[Case]) -> OnnxReport:
        return check_onnx(
            path,
            cases,
            self.buckets,
            self.model.inputs,
            self.model.outputs,
            TOLERANCES[precision],
            min_cosine=COSINES.get(precision),
        )

    def _say(self, text: str) -> None:
        self.step.update(text=f"ONNX: {text}")


def scan_inputs(
    cases: Sequence[Case], buckets: Sequence[Bucket], inputs: Sequence[InputSpec]
) -> list[Arrays]:
    """The inputs whose values are looked at: all edges and hints, and real samples; where a bucket
    always pads, as the loader fills them up, too. Cases of random sizes have nothing more."""
    arrays: list[Arrays] = []
    for case in cases:
        if case.name.startswith("random"):
            continue
        arrays.append(case.inputs)
        bucket = buckets[case.bucket]
        sizes = {name: bucket.range(name).hi for name in bucket.pad_axes}
        now = axis_sizes(inputs, case.inputs)
        if bucket.mode == "pad" and any(now.get(name, hi) < hi for name, hi in sizes.items()):
            arrays.append(fill_up(case.inputs, inputs, sizes))
    return arrays


def check_model(path: Path) -> None:
    """ONNX's own checker, on the file, so that it sees the weights' file too.

    Raises:
        VerificationError: it finds a fault.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # the checker's errors have no common class
        raise VerificationError(
            f"the ONNX file breaks ONNX's rules: {error}",
            hint="this is a defect of edgecompile; please report it with the model",
        ) from error


def refusal(report: OnnxReport, precision: str) -> VerificationError:
    """The error that lists what differs."""
    lines = [f"  {text}" for text in report.reasons[:20]]
    if len(report.reasons) > 20:
        lines.append(f"  … and {len(report.reasons) - 20} more")
    wider = {"int8": "fp16", "fp16": "fp32"}.get(precision)
    return VerificationError(
        f"the ONNX model in {precision} differs from eager in {len(report.reasons)} cases:\n"
        + "\n".join(lines),
        hint=f'`precision="{wider}"` is wider' if wider else "please report it with the model",
    )
