"""Tries the export strategies and keeps what each of them gave, also of those that failed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from edgecompile.errors import ModelError
from edgecompile.explanation.eager import error_text
from edgecompile.explanation.report import Condition, ExportAttempt, FixedAxis
from edgecompile.export.attempts import Attempt, attempt_name, climb
from edgecompile.export.checks import ExportScope, Range, check_program
from edgecompile.export.guards import axis_texts, fixed_size, readable_guard
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
        attempts: the attempts of the strategies, in their order.
        program: the first that is right for all sizes; else the one that is right for most of
            them; else None.
        ranges: the sizes for which it is right.
        whole: whether these are all that were asked for.
        fixed_axes: axes that became constants.
        tried: the attempts themselves.
    """

    attempts: tuple[ExportAttempt, ...]
    program: Program | None
    ranges: Mapping[str, Range]
    whole: bool
    fixed_axes: tuple[FixedAxis, ...]
    tried: tuple[Attempt, ...] = ()


def climb_ladder(subject: ExportScope, *, every: bool = False, step: StepHandle) -> Climb:
    """Tries the strategies in their order; those for fixed sizes where no axis varies.

    Args:
        subject: the model; eager works within its ranges.
        every: go on after a strategy was accepted.
        step: shows which one is tried.
    """
    climber = _Climber(subject)
    attempts: list[ExportAttempt] = []
    all_tried: list[Attempt] = []
    best: tuple[int, Program, Mapping[str, Range]] | None = None
    done: ExportStrategy | None = None
    for tries in climb(subject):
        for tried in tries:
            step.update(text=attempt_name(tried, subject))
            attempt = climber.judge(tried)
            attempts.append(attempt)
            all_tried.append(tried)
            if tried.program is None or done:
                continue
            accepted = attempt.outcome == "accepted"
            usable = attempt.outcome in ("specialised", "narrower") and not attempt.wrong
            width = sum(hi - lo for lo, hi in attempt.ranges.values())
            if accepted or (usable and (best is None or width > best[0])):
                best = (width, tried.program, attempt.ranges)
            if accepted:
                done = tried.strategy
                if not every:
                    break
        if done:
            break
    if done and not every:
        attempts += _not_tried(subject, done)
    fixed = climber.fixed_axes()
    if best is None:
        return Climb(tuple(attempts), None, {}, False, fixed, tuple(all_tried))
    return Climb(tuple(attempts), best[1], best[2], done is not None, fixed, tuple(all_tried))


def _not_tried(subject: ExportScope, accepted: ExportStrategy) -> list[ExportAttempt]:
    """The strategies behind the one that was accepted, as far as they are for such models."""
    ladder = LADDER if subject.varies else STATIC_LADDER
    recurrent = has_recurrences(subject.loaded.module)
    return [
        ExportAttempt(strategy.name, "not tried", "an earlier one was accepted")
        for strategy in ladder[ladder.index(accepted) + 1 :]
        if recurrent or not strategy.recurrences
    ]


class _Climber:
    """Tries strategies, and collects the axes that they fix."""

    def __init__(self, subject: ExportScope) -> None:
        self.subject = subject
        self.loaded = subject.loaded
        self._fixed: list[FixedAxis] = []

    def judge(self, tried: Attempt) -> ExportAttempt:
        """The result of one attempt, its program run against eager if there is one."""
        ranges, inputs = dict(self.subject.ranges), self.loaded.inputs
        watch = tried.watch
        names = {symbol: axis_texts(source, inputs) for symbol, source in watch.symbols.items()}
        conditions = self._conditions(tried, names)
        if tried.program is None:
            return self._refused(tried, conditions)
        real = tried.ranges
        fixed = [a for a, (lo, hi) in real.items() if lo == hi and ranges[a][0] < ranges[a][1]]
        for axis in fixed:
            self._fix(axis, real[axis][0], tried, None)
        attempt = ExportAttempt(
            attempt_name(tried, self.subject), "accepted", tried.problem, conditions, ranges=real
        )
        if tried.problem:
            outcome = "specialised" if fixed else "narrower"
            attempt = replace(attempt, outcome=outcome, place=_first_place(conditions))
        if tried.strategy.unguarded:
            text = "its conditions are dropped, as it agrees with eager at sizes of every kind"
            attempt = replace(attempt, text=text, conditions=())
        attempt = self._check(attempt, tried)

        def readable(text: str) -> str:
            return _ASSERTION.sub(lambda match: f"needs {readable_guard(match[1], names)}", text)

        wrong = tuple((sizes, readable(text)) for sizes, text in attempt.wrong)
        return replace(attempt, text=readable(attempt.text), wrong=wrong)

    def fixed_axes(self) -> tuple[FixedAxis, ...]:
        """One for each axis and size, with the line where any strategy showed it."""
        merged: dict[tuple[str, int], FixedAxis] = {}
        for item in self._fixed:
            old = merged.get((item.axis, item.size), item)
            names = tuple(dict.fromkeys((*old.strategies, *item.strategies)))
            place = old.place or item.place
            merged[item.axis, item.size] = replace(old, strategies=names, place=place)
        return tuple(merged.values())

    def _fix(self, axis: str, size: int, tried: Attempt, place: SourceLine | None) -> None:
        name = tried.strategy.name
        if tried.traced != self.subject.traced:
            return  # traced with another size, it fixes that one
        if not any(i.axis == axis and name in i.strategies for i in self._fixed):
            self._fixed.append(FixedAxis(axis, size, (name,), place))

    def _conditions(self, tried: Attempt, names: Mapping[str, str]) -> tuple[Condition, ...]:
        conditions = []
        for text, line in tried.watch.found:
            place = line_of_text(line)
            fixed = fixed_size(text, names)
            if fixed is not None and tried.traced == self.subject.traced:
                self._fixed.append(FixedAxis(*fixed, (tried.strategy.name,), place))
            readable = readable_guard(text, names)
            left, operator, right = readable.partition(" == ")
            if not operator or left != right:  # two symbols may stand for one axis
                conditions.append(Condition(readable, place))
        return tuple(dict.fromkeys(conditions))[:_MOST_CONDITIONS]

    def _refused(self, tried: Attempt, conditions: tuple[Condition, ...]) -> ExportAttempt:
        reason = tried.reason
        assert reason is not None
        place = line_of_text(reason.text) or _first_place(conditions)
        text = re.sub(r" ?\(at (?:the module |[^()]*:\d+ in ).*$", "", reason.text, flags=re.DOTALL)
        if reason.kind == "specialised":
            axis, _, size = reason.guards[0].partition(" == ")
            if size.isdigit():
                self._fix(axis, int(size), tried, place)
        if not conditions and reason.kind == "guard":
            conditions = tuple(Condition(guard, place) for guard in reason.guards)
        name = attempt_name(tried, self.subject)
        return ExportAttempt(name, "refused", text, conditions, place)

    def _check(self, attempt: ExportAttempt, tried: Attempt) -> ExportAttempt:
        """The attempt after its program was run against eager, if that wasn't done before."""
        assert tried.program is not None
        traced = tried.traced
        if any(not lo <= traced[axis] <= hi for axis, (lo, hi) in attempt.ranges.items()):
            return attempt
        try:
            done = None if tried.problem else tried.result
            check = done or check_program(
                tried.program,
                replace(self.subject, ranges=attempt.ranges, traced=traced),
                tried.also,
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


def _first_place(conditions: Sequence[Condition]) -> SourceLine | None:
    return next((item.place for item in conditions if item.place is not None), None)
