"""Tries the export strategies and keeps what each of them gave, also of those that failed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from edgecompile.errors import ModelError
from edgecompile.explanation.eager import error_text
from edgecompile.explanation.report import Condition, ExportAttempt, FixedAxis
from edgecompile.export.checks import ExportScope, Range, check_program
from edgecompile.export.export import Attempt, try_strategy
from edgecompile.export.guards import Reason, axis_texts, fixed_size, readable_guard, watch_guards
from edgecompile.export.ladder import LADDER, STATIC_LADDER, ExportStrategy
from edgecompile.export.operators.recurrence import has_recurrences
from edgecompile.models.source_lines import SourceLine, line_of_text
from edgecompile.progress import StepHandle

#: Conditions kept of one strategy: a chunked model has hundreds.
_MOST_CONDITIONS = 12
#: Sizes kept of those at which a program is wrong.
_MOST_WRONG = 6
_ASSERTION = re.compile(r"Runtime assertion failed for expression (.+?) on node '\w+'")

Program = torch.export.ExportedProgram


@dataclass(frozen=True)
class Climb:
    """The result of the export ladder.

    Attributes:
        attempts: of the strategies, in their order.
        program: the first that is right for all sizes; else the one that is right for most of
            them; else None.
        ranges: the sizes for which it is right.
        whole: whether these are all that were asked for.
        fixed_axes: axes that became constants.
    """

    attempts: tuple[ExportAttempt, ...]
    program: Program | None
    ranges: Mapping[str, Range]
    whole: bool
    fixed_axes: tuple[FixedAxis, ...]


def climb_ladder(subject: ExportScope, *, every: bool = False, step: StepHandle) -> Climb:
    """Tries the strategies in their order; those for fixed sizes where no axis varies.

    Args:
        subject: the model; eager works within its ranges.
        every: go on after a strategy was accepted.
        step: shows which one is tried.
    """
    climber = _Climber(subject)
    attempts: list[ExportAttempt] = []
    best: tuple[int, Program, Mapping[str, Range]] | None = None
    done = partly = False
    for strategy in LADDER if subject.varies else STATIC_LADDER:
        if strategy.recurrences and not has_recurrences(subject.loaded.module):
            continue
        if strategy.unguarded and not (done or partly):
            continue  # no program came of the same way with its conditions
        if done and not every:
            attempts.append(
                ExportAttempt(strategy.name, "not tried", "an earlier one was accepted")
            )
            continue
        step.update(text=strategy.name)
        attempt, program = climber.attempt(strategy)
        attempts.append(attempt)
        partly = partly or (strategy.deferred and program is not None)
        if program is None or done:
            continue
        done = attempt.outcome == "accepted"
        usable = attempt.outcome in ("specialised", "narrower") and not attempt.wrong
        width = sum(hi - lo for lo, hi in attempt.ranges.values())
        if done or (usable and (best is None or width > best[0])):
            best = (width, program, attempt.ranges)
    fixed = climber.fixed_axes()
    if best is None:
        return Climb(tuple(attempts), None, {}, False, fixed)
    return Climb(tuple(attempts), best[1], best[2], done, fixed)


class _Climber:
    """Tries strategies, and collects the axes that they fix."""

    def __init__(self, subject: ExportScope) -> None:
        self.subject = subject
        self.loaded = subject.loaded
        self._fixed: list[FixedAxis] = []
        # Lines of ours that a trace may name as the model's, since they called it.
        self._callers = {(f.filename, f.lineno or 0) for f in traceback.extract_stack()}

    def attempt(self, strategy: ExportStrategy) -> tuple[ExportAttempt, Program | None]:
        """The result of one strategy, and its program if there is one."""
        ranges, inputs = dict(self.subject.ranges), self.loaded.inputs
        with watch_guards() as watch:
            tried = try_strategy(self.subject, strategy, watch)
        names = {symbol: axis_texts(source, inputs) for symbol, source in watch.symbols.items()}
        conditions = self._conditions(watch.found, names, strategy)
        if tried.program is None:
            assert tried.reason is not None
            return self._refused(strategy, tried.reason, conditions), None
        real = tried.ranges
        fixed = [a for a, (lo, hi) in real.items() if lo == hi and ranges[a][0] < ranges[a][1]]
        for axis in fixed:
            self._fix(axis, real[axis][0], strategy, None)
        attempt = ExportAttempt(strategy.name, "accepted", tried.problem, conditions, ranges=real)
        if tried.problem:
            outcome = "specialised" if fixed else "narrower"
            attempt = replace(attempt, outcome=outcome, place=_first_place(conditions))
        if strategy.unguarded:
            text = "its conditions are dropped, as it agrees with eager at sizes of every kind"
            attempt = replace(attempt, text=text, conditions=())
        attempt = self._check(attempt, tried)

        def readable(text: str) -> str:
            return _ASSERTION.sub(lambda match: f"needs {readable_guard(match[1], names)}", text)

        wrong = tuple((sizes, readable(text)) for sizes, text in attempt.wrong)
        return replace(attempt, text=readable(attempt.text), wrong=wrong), tried.program

    def fixed_axes(self) -> tuple[FixedAxis, ...]:
        """One for each axis and size, with the line where any strategy showed it."""
        merged: dict[tuple[str, int], FixedAxis] = {}
        for item in self._fixed:
            old = merged.get((item.axis, item.size), item)
            names = tuple(dict.fromkeys((*old.strategies, *item.strategies)))
            place = old.place or item.place
            merged[item.axis, item.size] = replace(old, strategies=names, place=place)
        return tuple(merged.values())

    def _fix(
        self, axis: str, size: int, strategy: ExportStrategy, place: SourceLine | None
    ) -> None:
        if not any(i.axis == axis and strategy.name in i.strategies for i in self._fixed):
            self._fixed.append(FixedAxis(axis, size, (strategy.name,), place))

    def _conditions(
        self, guards: Sequence[tuple[str, str]], names: Mapping[str, str], strategy: ExportStrategy
    ) -> tuple[Condition, ...]:
        conditions = []
        for text, line in guards:
            place = self._place(line)
            fixed = fixed_size(text, names)
            if fixed is not None:
                self._fixed.append(FixedAxis(*fixed, (strategy.name,), place))
            readable = readable_guard(text, names)
            left, operator, right = readable.partition(" == ")
            if not operator or left != right:  # two symbols may stand for one axis
                conditions.append(Condition(readable, place))
        return tuple(dict.fromkeys(conditions))[:_MOST_CONDITIONS]

    def _refused(
        self,
        strategy: ExportStrategy,
        reason: Reason,
        conditions: tuple[Condition, ...],
    ) -> ExportAttempt:
        place = self._place(reason.text) or _first_place(conditions)
        text = re.sub(r" ?\(at [^()]*:\d+ in .*$", "", reason.text, flags=re.DOTALL)
        if reason.kind == "specialised":
            axis, _, size = reason.guards[0].partition(" == ")
            if size.isdigit():
                self._fix(axis, int(size), strategy, place)
        if not conditions and reason.kind == "guard":
            conditions = tuple(Condition(guard, place) for guard in reason.guards)
        return ExportAttempt(strategy.name, "refused", text, conditions, place)

    def _check(self, attempt: ExportAttempt, tried: Attempt) -> ExportAttempt:
        """The attempt after its program was run against eager, if that wasn't done before."""
        assert tried.program is not None
        traced = self.subject.traced
        if any(not lo <= traced[axis] <= hi for axis, (lo, hi) in attempt.ranges.items()):
            return attempt
        try:
            done = None if tried.problem else tried.result
            check = done or check_program(
                tried.program, replace(self.subject, ranges=attempt.ranges), tried.also
            )
        except ModelError as error:
            text = f"not compared: eager itself fails, {error_text(error)}"
            return replace(attempt, outcome="unchecked", text=text)
        right = tuple({tuple(sizes.items()): sizes for sizes in check.passed}.values())
        attempt = replace(attempt, right=right, max_error=check.max_error)
        if not check.failed:
            return attempt
        problem = "" if tried.also else attempt.text
        return replace(
            attempt,
            outcome="wrong" if attempt.outcome == "accepted" else attempt.outcome,
            text="; ".join(filter(None, (problem, f"wrong {check.describe()}"))),
            wrong=tuple(check.failed[:_MOST_WRONG]),
        )

    def _place(self, text: str) -> SourceLine | None:
        place = line_of_text(text)
        return None if place is None or (place.file, place.line) in self._callers else place


def _first_place(conditions: Sequence[Condition]) -> SourceLine | None:
    return next((item.place for item in conditions if item.place is not None), None)
