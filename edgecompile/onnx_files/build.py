"""Builds and verifies the ONNX file of a model, from which a device builds its engine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgecompile.buckets.ranges import Bucket
from edgecompile.bundle.cases import Case, make_cases, sample_cases
from edgecompile.bundle.margins import allow_rounding
from edgecompile.errors import CompileError, UnsupportedOperatorError, VerificationError
from edgecompile.export.halves import tolerance_of
from edgecompile.export.program import ExportedModel
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.samples import Samples
from edgecompile.models.specs import InputSpec, axis_sizes
from edgecompile.onnx_files.check import OnnxReport, check_onnx, fill_up
from edgecompile.onnx_files.emulated_float16 import round_halves, undefined_nodes
from edgecompile.onnx_files.export import export_onnx, need_onnx
from edgecompile.onnx_files.fills import Fill, find_fills, masked_values
from edgecompile.onnx_files.float16 import Narrowed, narrow
from edgecompile.onnx_files.float32_nodes import SENSITIVE, decisive, find_float32_nodes
from edgecompile.onnx_files.graph import OnnxGraph
from edgecompile.onnx_files.int8.choice import Int8Choice
from edgecompile.onnx_files.int8.scales import Layer
from edgecompile.onnx_files.operators import OnnxTarget, check_operators
from edgecompile.onnx_files.report import Int8Report, KeptNode, OlderForm, OnnxArtifact, SideForm
from edgecompile.onnx_files.scan import Arrays, NoHostKernelError, Scan, scan_values
from edgecompile.onnx_files.tensorrt8 import OPSET, lower, widen, without_quantized
from edgecompile.onnx_files.weights import load_graph, write_onnx
from edgecompile.precision import COSINES
from edgecompile.progress import NULL_STEP, StepHandle

if TYPE_CHECKING:
    import torch

#: What a file for TensorRT can calculate in, the widest first.
ONNX_PRECISIONS = ("fp32", "fp16", "int8")

_MODEL = "model.onnx"
_OLDER = "model-{}.onnx"
_SIDE = "model-side-{}.onnx"
_Quantized = tuple[Int8Choice, Sequence[Layer]]
#: The oldest opset whose quantized products may have scales in float16.
_HALF_SCALES = 19
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
    older: OnnxTarget | None = None,
) -> OnnxArtifact:
    """Writes ``model.onnx`` and ``weights.PRECISION`` into ``folder``.

    One file serves all buckets: its axes are dynamic over the smallest to the largest size of any.
    It is held against eager at every bucket's edges, hint and some sizes between, and on the
    samples, before it gets its name.

    Args:
        model: the model.
        buckets: the buckets, each of which becomes an optimization profile.
        precision: one of :data:`ONNX_PRECISIONS`. fp16: weights and calculation, but for nodes that
            overflow; int8: products with constant matrices, as far as the error allows, the rest as
            fp16. Inputs and outputs keep the model's dtypes.
        cap: the TensorRT release and the newest opset.
        samples: inputs such as the model will see, to find ranges of activations with and to verify
            with; None: drawn ones at the buckets' sizes.
        folder: the folder of the files; made if missing.
        step: a function that gets the progress.
        exported: the program for at least the buckets' whole range.
        also: further releases whose operators are compared.
        older: a TensorRT 8.6 that is to take the model, too, in a file of its own beside the same weights,
            where the model can be written for it.

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
        program = exported.program.graph_module
        build = _Build(model, tuple(buckets), precision, cap, samples, Path(name), step, program)
        return build.run(folder, exported, also, older)


def build_sides(
    model: LoadedModel,
    buckets: Sequence[Bucket],
    graphs: Sequence[ExportedModel],
    owners: Sequence[int],
    precision: str,
    cap: OnnxTarget,
    samples: Samples | None,
    folder: Path,
    step: StepHandle = NULL_STEP,
    *,
    also: Sequence[OnnxTarget] = (),
) -> OnnxArtifact:
    """As :func:`build_onnx`, with a file for each of several programs and one file of weights.

    Args:
        graphs: the programs, each for some of the lengths.
        owners: the index of each bucket's program.
        model, buckets, precision, cap, samples, folder, step, also: the arguments of that function.

    Raises:
        EdgecompileError: see there.
    """
    made: list[OnnxArtifact] = []
    indices = [
        tuple(i for i, owner in enumerate(owners) if owner == index) for index in range(len(graphs))
    ]
    for index, (exported, mine) in enumerate(zip(graphs, indices, strict=True)):
        own = [buckets[i] for i in mine]
        lengths = {length for item in own for length in item.axes[0][1].sizes}
        fitting = None if samples is None else samples.within(lengths)
        place = folder / f"side-{index}"
        made.append(
            build_onnx(
                model, own, precision, cap, fitting, place, step, exported=exported, also=also
            )
        )
    files = [folder / (_SIDE.format(index) if index else _MODEL) for index in range(len(made))]
    weights = folder / made[0].weights.name
    first, *others = (load_graph(artifact.path) for artifact in made)
    write_onnx(first, files[0], weights, dict(zip(files[1:], others, strict=True)))
    sides = tuple(
        SideForm(path, artifact.opset, artifact.float32, mine, artifact.nodes)
        for path, artifact, mine in zip(files[1:], made[1:], indices[1:], strict=True)
    )
    reasons = [a.check.padding_reason for a in made if not a.check.padding]
    check = replace(
        made[0].check,
        results=tuple(
            replace(result, bucket=mine[result.bucket])
            for artifact, mine in zip(made, indices, strict=True)
            for result in artifact.check.results
        ),
        padding=not reasons,
        padding_reason="; ".join(dict.fromkeys(reasons)),
    )
    return replace(made[0], path=files[0], weights=weights, check=check, sides=sides)


@dataclass
class _Build:
    """The steps, and their shared state.

    Attributes:
        model, buckets, precision, cap, samples, step: the arguments of :func:`build_onnx`.
        scratch: a folder for files.
        cases: inputs with eager's answers.
        inputs: the inputs whose values are looked at.
        program: the exported graph.
    """

    model: LoadedModel
    buckets: tuple[Bucket, ...]
    precision: str
    cap: OnnxTarget
    samples: Samples | None
    scratch: Path
    step: StepHandle
    program: torch.nn.Module
    cases: Sequence[Case] = ()
    inputs: Sequence[Arrays] = ()

    def run(
        self,
        folder: Path,
        exported: ExportedModel,
        also: Sequence[OnnxTarget],
        older: OnnxTarget | None,
    ) -> OnnxArtifact:
        """All steps; the files get their names last."""
        self._say("export")
        halves = self.precision == "int8" and self.cap.opset > OPSET
        least = _HALF_SCALES if halves else OPSET
        graph = export_onnx(exported, self.cap.opset, self.scratch, least=least)
        for target in (*also, self.cap):
            check_operators(graph, target).check()
        self._say("eager's answers")
        self.cases = self._cases()
        self.inputs = scan_inputs(self.cases, self.buckets, self.model.inputs)
        kept_nodes: tuple[KeptNode, ...] = ()
        fills: Mapping[str, Fill] = {}
        float32: tuple[str, ...] | None = None
        int8: Int8Report | None = None
        quantized: _Quantized | None = None
        base = graph  # what the form for an older release is made of
        if self.precision == "fp32":
            report = self._verify(graph, "fp32")
        else:
            fills = find_fills(graph)
            narrowed, report = self._narrow(graph, fills)
            if not report.ok:
                raise refusal(report, "fp16")
            wide, graph, kept_nodes = graph, narrowed.graph, narrowed.kept
            base = graph
            if self.cap.opset <= OPSET:
                graph, float32 = widen(graph)
                report = self._verify(graph, "fp16")
            if self.precision == "int8":
                graph, report, int8, quantized = self._quantize(wide, graph)
                float32 = float32 and without_quantized(graph, float32)
        if not report.ok:
            raise refusal(report, self.precision)
        for target in (*also, self.cap):
            ops = check_operators(graph, target)
            ops.check()
        for item in ops.warnings:
            self.step.note(f"TensorRT {ops.tensorrt}: {item}")
        weights = f"weights.{self.precision}"
        form, reason = None, ""
        others: dict[Path, OnnxGraph] = {}
        if older is not None:
            path = folder / _OLDER.format(older.tensorrt)
            try:
                others[path], pinned = self._older(base, quantized, older)
                form = OlderForm(path, others[path].opset, pinned)
            except (UnsupportedOperatorError, VerificationError) as error:
                reason = " ".join(error.message.splitlines()[:2])
        write_onnx(graph, folder / _MODEL, folder / weights, others)
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
            older=form,
            no_older=reason,
        )

    def _older(
        self, graph: OnnxGraph, quantized: _Quantized | None, target: OnnxTarget
    ) -> tuple[OnnxGraph, tuple[str, ...] | None]:
        """The form for TensorRT 8.6, and the values that stay float32 in it.

        Raises:
            UnsupportedOperatorError: it lacks operators, or opset 17 does.
            VerificationError: the form differs from eager.
        """
        self._say(f"the form for TensorRT {target.tensorrt}")
        graph = lower(graph)
        float32: tuple[str, ...] | None = None
        if self.precision != "fp32":
            graph, float32 = widen(graph)
        if quantized is not None:
            choice, layers = quantized
            graph = choice.graph_in(graph, lower(choice.wide), layers)
            float32 = float32 and without_quantized(graph, float32)
        check_operators(graph, target).check()
        path = self.scratch / _MODEL
        write_onnx(graph, path, self.scratch / f"weights.{self.precision}")
        check_model(path)
        report = self._check(path, self.precision, self._plain())
        if not report.ok:
            raise refusal(report, self.precision)
        return graph, float32

    def _narrow(self, graph: OnnxGraph, fills: Mapping[str, Fill]) -> tuple[Narrowed, OnnxReport]:
        """The float16 graph with as few nodes in float32 as agree with eager."""
        self._say("ranges of values")
        scan = scan_values(graph, self.inputs, self.scratch, masked=masked_values(fills))
        reasons = find_float32_nodes(graph, scan, fills)
        chosen = dict(decisive(graph))
        for more in ("", "norms and softmax", *(["what choices are made of"] if chosen else [])):
            if more:
                self.step.note(f"float16 as such differs from eager: {more} stay in float32")
            if more == "norms and softmax":
                for node in graph.nodes:
                    if node.op_type in SENSITIVE:
                        reasons.setdefault(node.name, "without it the outputs differ from eager's")
            elif more:
                for name, reason in chosen.items():
                    reasons.setdefault(name, reason)
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
    ) -> tuple[OnnxGraph, OnnxReport, Int8Report, _Quantized]:
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
        return graph, report, int8_report, (choice, layers)

    def _verify(self, graph: OnnxGraph, precision: str) -> OnnxReport:
        """Writes the graph as it would ship and runs it, then with every float16 value rounded.

        Returns:
            The second, which is the stricter and has more cases, unless the first one fails.

        Raises:
            NoHostKernelError: onnxruntime can't run the second.
        """
        self._say("check against eager")
        path = self.scratch / _MODEL
        weights = self.scratch / f"weights.{self.precision}"
        write_onnx(graph, path, weights)
        check_model(path)
        if precision == "fp32":
            return self._check(path, precision, self.cases)
        try:
            report = self._check(path, precision, self._plain())
            if not report.ok:
                return report
        except NoHostKernelError as error:
            self.step.note(f"{error.message}; its float16 was checked as rounded float32 alone")
        self._say("check against eager, rounded")
        write_onnx(round_halves(graph), path, weights)
        return self._check(path, precision, self.cases)

    def _cases(self) -> list[Case]:
        rtol = tolerance_of(self.precision, self.program).rtol
        cases = list(make_cases(self.model, self.buckets, rtol=rtol))
        if self.samples is not None:
            cases += sample_cases(self.model, self.buckets, self.samples, rtol=rtol)
        return allow_rounding(cases)

    def _plain(self) -> list[Case]:
        return [case for case in self.cases if not case.name.startswith(("random", "padded"))]

    def _check(self, path: Path, precision: str, cases: Sequence[Case]) -> OnnxReport:
        return check_onnx(
            path,
            cases,
            self.buckets,
            self.model.inputs,
            self.model.outputs,
            tolerance_of(precision, self.program),
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
