"""Exports a loaded model with torch.export and proves the graph against eager.

Several ways to export are tried in order (:mod:`edgecompile.rungs`); a result counts only after
its graph was run against eager at several sizes of every axis (:mod:`edgecompile.export_checks`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from edgecompile.errors import ExportError
from edgecompile.export_checks import CheckResult, Range, Sizes, check_program, is_deterministic
from edgecompile.folder_files import hash_files
from edgecompile.guards import Reason, explain_failure, watch_guards
from edgecompile.index_bounds import fill_bounds
from edgecompile.models import InputSpec, LoadedModel, OutputSpec
from edgecompile.rungs import (
    LADDER,
    STATIC_LADDER,
    Rung,
    export_program,
    placeholder_values,
    program_ranges,
)

PROGRAM_FILE = "program.pt2"
RECORD_FILE = "exported.json"
_RECORD_VERSION = 1


@dataclass(frozen=True)
class ExportedModel:
    """A program that agrees with eager over its ranges.

    ``program.module()`` takes the inputs as keyword arguments and gives a dict of outputs. Every
    input of the model stays an input of the program, in the same order; one that doesn't
    influence any output is accepted and ignored, and named in ``notes``.

    Attributes:
        name: the model's.
        program: the graph and its weights.
        inputs: with the bounds of index inputs filled in from the graph where unknown before.
        outputs: as of the model.
        ranges: smallest and largest size of every axis, verified; an axis with both equal is
            static in the program.
        length_axis: the model's.
        strategy: name of the rung that served.
        checked: sizes at which the program was compared with eager.
        max_error: largest difference seen, relative to an output's scale.
        notes: what a person may want to know.
    """

    name: str
    program: torch.export.ExportedProgram
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    ranges: Mapping[str, Range]
    length_axis: str | None
    strategy: str
    checked: tuple[Mapping[str, int], ...]
    max_error: float
    notes: tuple[str, ...] = ()

    @property
    def static(self) -> bool:
        """Whether the length axis (every axis, if there is none) has one size."""
        axes = [self.length_axis] if self.length_axis in self.ranges else list(self.ranges)
        return all(self.ranges[axis][0] == self.ranges[axis][1] for axis in axes if axis)

    def example(
        self, sizes: Mapping[str, int], seed: int = 0, padding: int | Sequence[int] = 0
    ) -> dict[str, torch.Tensor]:
        """Random valid inputs; axes without a size take their upper edge."""
        from edgecompile.examples import make_example

        full = {axis: sizes.get(axis, span[1]) for axis, span in self.ranges.items()}
        return make_example(
            self.inputs, full, seed=seed, length_axis=self.length_axis, padding=padding
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the program, as plain values."""
        return {
            "version": _RECORD_VERSION,
            "name": self.name,
            "torch": torch.__version__,
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "ranges": {axis: list(span) for axis, span in self.ranges.items()},
            "length_axis": self.length_axis,
            "strategy": self.strategy,
            "checked": [dict(sizes) for sizes in self.checked],
            "max_error": self.max_error,
            "notes": list(self.notes),
        }

    def save(self, folder: Path) -> None:
        """Writes ``program.pt2`` and ``exported.json``; the record comes last, when all is there.

        Raises:
            OSError: writing failed; no half-written file has either name.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORD_FILE).unlink(missing_ok=True)
        scratch = folder / f".{os.getpid()}.{PROGRAM_FILE}"
        try:
            torch.export.save(self.program, scratch)
            os.replace(scratch, folder / PROGRAM_FILE)
        finally:
            scratch.unlink(missing_ok=True)
        record = {**self.to_json(), "sha256": hash_files(folder, [folder / PROGRAM_FILE])}
        scratch = folder / f".{os.getpid()}.{RECORD_FILE}"
        try:
            scratch.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            os.replace(scratch, folder / RECORD_FILE)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path) -> ExportedModel:
        """Reads what :meth:`save` wrote.

        Raises:
            ExportError: a file is missing, damaged or of another version.
        """
        from edgecompile.saved_programs import load_program

        try:
            record = json.loads((folder / RECORD_FILE).read_text(encoding="utf-8"))
            version = record.get("version")
            if version != _RECORD_VERSION:
                raise ExportError(
                    f"'{folder / RECORD_FILE}' has version {version}, not {_RECORD_VERSION}",
                    hint="export the model again with the edgecompile that is installed here",
                )
            if hash_files(folder, [folder / PROGRAM_FILE]) != record["sha256"]:
                raise ExportError(
                    f"'{folder / PROGRAM_FILE}' isn't the file that was exported",
                    hint="export the model again",
                )
            return cls(
                name=record["name"],
                program=load_program(folder / PROGRAM_FILE),
                inputs=tuple(InputSpec.from_json(item) for item in record["inputs"]),
                outputs=tuple(OutputSpec.from_json(item) for item in record["outputs"]),
                ranges={axis: (span[0], span[1]) for axis, span in record["ranges"].items()},
                length_axis=record["length_axis"],
                strategy=record["strategy"],
                checked=tuple(record["checked"]),
                max_error=record["max_error"],
                notes=tuple(record["notes"]),
            )
        except (OSError, KeyError, TypeError, AttributeError, ValueError) as exc:
            raise ExportError(
                f"'{folder}' holds no exported model that can be read: {exc}",
                hint="it is written by 'edgecompile export'",
            ) from exc


@dataclass(frozen=True)
class _Attempt:
    """What one rung gave: a program and the sizes it allows, or why there is none."""

    rung: Rung
    problem: str
    raw: str = ""
    program: torch.export.ExportedProgram | None = None
    ranges: Mapping[str, Range] | None = None
    reason: Reason | None = None


def export_model(
    loaded: LoadedModel,
    ranges: Mapping[str, Range] | None = None,
    *,
    hint: Mapping[str, int] | None = None,
    allow_narrower: bool = False,
    ladder: Sequence[Rung] | None = None,
) -> ExportedModel:
    """Exports ``loaded`` for all sizes within ``ranges``.

    Args:
        loaded: the model.
        ranges: smallest and largest size per axis, both inclusive; axes left out take the model's
            own limits. An axis with equal ends is fixed in the program: padded buckets are
            exported so.
        hint: the size per axis to trace with, which generated kernels are tuned for.
        allow_narrower: if no rung serves the whole range, take the one that is right for the
            widest part of it; ``ranges`` of the result then says which.
        ladder: the rungs to try; None: all.

    Raises:
        ExportError: nothing worked, or the model isn't deterministic or keeps state; names the
            axis, the condition and the line of the model's code where torch tells them.
        ModelError: the eager model fails within the ranges.
    """
    start = time.perf_counter()
    spans = _resolve_ranges(loaded, ranges or {})
    traced = _trace_sizes(loaded, spans, hint or {})
    if not is_deterministic(loaded, traced):
        raise ExportError(
            f"the model '{loaded.name}' gives other outputs each time for the same input",
            hint="take random numbers (dropout, noise, sampling) out of its forward",
        )
    example = _trace_example(loaded, traced)
    dynamic = any(lo < hi for lo, hi in spans.values())
    attempts = []
    for rung in ladder or (LADDER if dynamic else STATIC_LADDER):
        attempt = _try_rung(loaded, example, spans, rung)
        if attempt.program is not None and attempt.ranges == spans:
            result = check_program(attempt.program, loaded, spans, traced)
            if result.ok:
                return _finish(loaded, attempt.program, rung, spans, result, start)
            attempt = replace(attempt, problem="wrong " + result.describe(), ranges=None)
        attempts.append(attempt)
    if allow_narrower:
        found = _best_part(loaded, attempts, traced)
        if found is not None:
            attempt, part, result = found
            assert attempt.program is not None
            return _finish(loaded, attempt.program, attempt.rung, part, result, start)
    raise _refusal(loaded, example, spans, attempts)


def _resolve_ranges(loaded: LoadedModel, ranges: Mapping[str, Range]) -> dict[str, Range]:
    problems = [
        f"the model has no axis '{axis}'" for axis in ranges if axis not in loaded.axes
    ]
    result = {}
    for axis, limits in loaded.axes.items():
        lo, hi = ranges.get(axis, (limits.lo, limits.hi))
        if hi is None:
            problems.append(f"the axis '{axis}' has no upper limit of its own: one must be given")
            continue
        if not limits.lo <= lo <= hi <= (limits.hi or hi):
            problems.append(f"{axis} {lo}..{hi} isn't within what the model allows, {limits}")
        result[axis] = (lo, hi)
    if problems:
        raise ExportError(f"the model '{loaded.name}': " + "; ".join(problems))
    return result


def _trace_sizes(
    loaded: LoadedModel, spans: Mapping[str, Range], hint: Mapping[str, int]
) -> dict[str, int]:
    """Sizes to trace with: the hint, but 2 at least where the size varies, and all different.

    torch takes sizes 0 and 1 for constants, and sizes that are equal for one and the same.
    """
    result: dict[str, int] = {}
    for axis, (lo, hi) in spans.items():
        usual = min(max(16, lo), hi) if axis == loaded.length_axis else lo
        size = min(max(hint.get(axis, usual), lo), hi)
        if lo < hi:
            size = min(max(size, 2), hi)
            free = [s for s in (*range(size, hi + 1), *range(size - 1, max(lo, 2) - 1, -1))]
            size = next((s for s in free if s not in result.values()), size)
        result[axis] = size
    return result


def _trace_example(loaded: LoadedModel, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    # Tracing with some positions masked keeps a model from taking "nothing is masked" for given.
    axis = loaded.length_axis
    masked = loaded.has_mask and loaded.paddable and axis is not None
    return loaded.make_example(sizes, seed=1, padding=sizes[axis] // 3 if masked and axis else 0)


def _try_rung(
    loaded: LoadedModel, example: Mapping[str, torch.Tensor], spans: dict[str, Range], rung: Rung
) -> _Attempt:
    try:
        program = export_program(loaded.module, example, loaded.inputs, spans, rung)
    except Exception as exc:  # torch raises whatever the model or the tracer raises
        reason = explain_failure(exc, loaded.inputs)
        return _Attempt(rung, reason.text, f"{type(exc).__name__}: {exc}", reason=reason)
    changed = sorted(program.graph_signature.buffers_to_mutate.values())
    if changed:
        raise ExportError(
            f"the model '{loaded.name}' changes its buffers in forward: {', '.join(changed[:5])}",
            hint="a compiled program keeps no state; make what it keeps an input and an output",
        )
    real = program_ranges(program, loaded.inputs, spans)
    narrower = [f"{axis} {_span_text(real[axis])}" for axis in spans if real[axis] != spans[axis]]
    problem = f"only for {', '.join(narrower)}" if narrower else ""
    return _Attempt(rung, problem, problem, program, real)


def _best_part(
    loaded: LoadedModel, attempts: Sequence[_Attempt], traced: Mapping[str, int]
) -> tuple[_Attempt, dict[str, Range], CheckResult] | None:
    """The attempt that is right for the widest part of the range, with that part."""

    def width(attempt: _Attempt) -> int:
        assert attempt.ranges is not None
        return sum(hi - lo for lo, hi in attempt.ranges.values())

    candidates = [a for a in attempts if a.program is not None and a.ranges and width(a) > 0]
    for attempt in sorted(candidates, key=width, reverse=True):
        assert attempt.program is not None and attempt.ranges is not None
        part = dict(attempt.ranges)
        for _ in range(4):
            if any(not lo <= traced[axis] <= hi for axis, (lo, hi) in part.items()):
                break
            result = check_program(attempt.program, loaded, part, traced)
            if result.ok:
                return attempt, part, result
            part = _shrink(part, result.failed, traced)
    return None


def _shrink(
    part: Mapping[str, Range], failed: Sequence[tuple[Sizes, str]], traced: Mapping[str, int]
) -> dict[str, Range]:
    """Cuts the sizes that failed off the axis along which they lie farthest from the traced one."""
    result = dict(part)
    for sizes, _ in failed:
        axis = max(sizes, key=lambda name: abs(sizes[name] - traced[name]))
        lo, hi = result[axis]
        if sizes[axis] < traced[axis]:
            result[axis] = (max(lo, sizes[axis] + 1), hi)
        else:
            result[axis] = (lo, min(hi, sizes[axis] - 1))
    return result


def _finish(
    loaded: LoadedModel,
    program: torch.export.ExportedProgram,
    rung: Rung,
    spans: Mapping[str, Range],
    result: CheckResult,
    start: float,
) -> ExportedModel:
    notes = []
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec, name in zip(loaded.inputs, program.graph_signature.user_inputs, strict=True):
        if not nodes[str(name)].users:
            notes.append(f"the input '{spec.name}' has no influence on the outputs")
    if rung not in (LADDER[0], STATIC_LADDER[0]):
        notes.append(f"torch.export's plain form was refused; '{rung.name}' served")
    assert len(placeholder_values(program)) == len(loaded.inputs)
    return ExportedModel(
        name=loaded.name,
        program=program,
        inputs=fill_bounds(program, loaded.inputs),
        outputs=loaded.outputs,
        ranges=dict(spans),
        length_axis=loaded.length_axis,
        strategy=rung.name,
        checked=tuple({tuple(s.items()): s for s in result.passed}.values()),
        max_error=result.max_error,
        notes=tuple(notes),
    )


def _refusal(
    loaded: LoadedModel,
    example: Mapping[str, torch.Tensor],
    spans: dict[str, Range],
    attempts: Sequence[_Attempt],
) -> ExportError:
    """The error that says why nothing worked; the first rung's reason tells the most."""
    text = next((a.problem for a in attempts if a.reason is not None), attempts[0].problem)
    first = next((a for a in attempts if a.reason is not None), None)
    if first is not None and first.reason is not None and first.reason.kind != "other":
        with watch_guards() as watch:
            again = _raised(loaded, example, spans, first.rung)
        if again is not None:
            text = explain_failure(again, loaded.inputs, watch.place_of(loaded.inputs)).text
    wanted = ", ".join(f"{axis} {_span_text(span)}" for axis, span in spans.items())
    details = "\n\n".join(f"[{a.rung.name}] {a.problem}\n{a.raw}".rstrip() for a in attempts)
    part = next((a for a in attempts if a.ranges and a.problem.startswith("only for")), None)
    hints = []
    if any(lo < hi for lo, hi in spans.values()):
        hints.append("padded buckets have one fixed length each and may still work: --mode pad")
    if part is not None and all(lo < hi for lo, hi in (part.ranges or {}).values() if lo != hi):
        hints.append(f"torch accepts it {part.problem} ({part.rung.name})")
    hints.append("--debug shows what torch said")
    return ExportError(
        f"the model '{loaded.name}' can't be exported for {wanted or 'fixed sizes'}: {text}",
        hint="; ".join(hints),
        details=details,
    )


def _raised(
    loaded: LoadedModel, example: Mapping[str, torch.Tensor], spans: dict[str, Range], rung: Rung
) -> Exception | None:
    try:
        export_program(loaded.module, example, loaded.inputs, spans, rung)
    except Exception as exc:
        return exc
    return None


def _span_text(span: Range) -> str:
    return str(span[0]) if span[0] == span[1] else f"{span[0]}..{span[1]}"
