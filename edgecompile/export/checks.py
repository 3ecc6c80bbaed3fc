"""Runs an exported program against the eager model: no export is believed without it.

An export can succeed and be wrong: specialised to the size it was traced with, right only above
some length, or blind to the mask because the traced mask was all ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from edgecompile.errors import ModelError
from edgecompile.export.conditions import Residue, broken_conditions
from edgecompile.export.halves import stores_rounded
from edgecompile.models.cache_rows import dequantize_rows
from edgecompile.models.definite import definite
from edgecompile.models.kinds import turn
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import describe_error, run_module
from edgecompile.models.probing import WriteWatch
from edgecompile.models.rounding import find_margins

# Largest |got - want| / max |want| of an output, beyond what eager's own error allows. The graph runs eager's
# own kernels on the same machine: a right one differs by rounding, a wrong one by orders of magnitude more.
TOLERANCE = 1e-4
# Of a model that computes in half precision, which eager may round at other places.
HALF_TOLERANCE = 5e-2

Range = tuple[int, int]
Sizes = dict[str, int]


@dataclass(frozen=True)
class ExportScope:
    """A model with the sizes that its programs are to serve.

    Attributes:
        loaded: the model.
        ranges: smallest and largest size of each axis, both inclusive.
        traced: sizes to trace with: the model is known to work there.
        residue: the sizes of the length axis that count; None: all within its range.
    """

    loaded: LoadedModel
    ranges: Mapping[str, Range]
    traced: Mapping[str, int]
    residue: Residue | None = None

    @property
    def varies(self) -> bool:
        """Whether any axis has more than one size."""
        return any(lo < hi for lo, hi in self.ranges.values())

    def example(
        self, sizes: Mapping[str, int], seed: int, *, mask: bool = True, kind: str = ""
    ) -> dict[str, torch.Tensor]:
        """Random valid inputs; a third of the positions is masked where the model has a mask."""
        axis, masked = self.loaded.length_axis, mask and self.masked
        padding = sizes[axis] // 3 if masked and axis is not None else 0
        return self.loaded.make_example(sizes, seed=seed, padding=padding, kind=kind)

    @property
    def masked(self) -> bool:
        """Whether positions can be masked."""
        return self.loaded.has_mask and self.loaded.paddable


@dataclass
class CheckResult:
    """Sizes at which the program agreed with eager, and those at which it didn't, with reasons.

    ``eager`` has the errors of the eager model, which fails at some of them itself.
    """

    passed: list[Sizes] = field(default_factory=list)
    failed: list[tuple[Sizes, str]] = field(default_factory=list)
    max_error: float = 0.0
    eager: list[ModelError] = field(default_factory=list)

    @property
    def only_eager(self) -> bool:
        """Whether the program is right wherever the model works at all."""
        return bool(self.failed) and len(self.failed) == len(self.eager)

    @property
    def ok(self) -> bool:
        return bool(self.passed) and not self.failed

    def describe(self) -> str:
        """The first failure and how many there are."""
        sizes, reason = self.failed[0]
        where = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        more = f" (and at {len(self.failed) - 1} more sizes)" if len(self.failed) > 1 else ""
        return f"at {where}: {reason}{more}"


def choose_sizes(
    ranges: Mapping[str, Range],
    hint: Mapping[str, int],
    length_axis: str | None,
    residue: Residue | None = None,
) -> list[Sizes]:
    """Sizes to check: both edges and their neighbours, the hint, odd and even ones.

    The length axis goes through all of its values while the other axes take theirs in turn; the
    corners where every axis is smallest or largest are among them. Of an axis with a ``residue`` only
    sizes that leave its remainder are.
    """
    values = {
        axis: _values(span, hint.get(axis), residue if residue and residue.axis == axis else None)
        for axis, span in ranges.items()
    }
    if not values:
        return [{}]
    # The axis with the most values leads, the length axis if it is among them.
    lead = max(values, key=lambda axis: (len(values[axis]), axis == length_axis))
    result: list[Sizes] = []
    for axis in values:
        if axis == lead or len(values[axis]) > 1:
            for index, size in enumerate(values[axis]):
                sizes = {
                    other: size if other == axis else items[(index + 1) % len(items)]
                    for other, items in values.items()
                }
                result.append(sizes)
    result.append({axis: items[0] for axis, items in values.items()})
    result.append({axis: items[-1] for axis, items in values.items()})
    unique = {tuple(sizes.items()): sizes for sizes in result}
    return list(unique.values())


def check_program(
    program: torch.export.ExportedProgram, scope: ExportScope, also: Sequence[Sizes] = ()
) -> CheckResult:
    """Compares ``program`` with the model at :func:`choose_sizes`, and at ``also``.

    A program that writes to its own constants or to inputs that aren't meant to be changed is wrong
    whatever it computes: both are only read where it runs.

    Where the model has a mask, every other check masks a third of the positions, and the hint is
    checked both ways.

    Sizes at which the eager model itself fails count as failed. Where none did, every size that
    breaks a condition of the program does.
    """
    result, loaded, ranges, hint = CheckResult(), scope.loaded, scope.ranges, scope.traced
    try:
        module = program.module()
    except Exception as exc:  # a graph that refers to what tracing made and dropped
        result.failed.append((dict(hint), f"the graph can't be run: {describe_error(exc)}"))
        return result
    # What is written to a cache counts among the results.
    tolerance = HALF_TOLERANCE if stores_rounded(module) else TOLERANCE
    state = WriteWatch(
        {
            **dict(module.named_parameters()),
            **dict(module.named_buffers()),
            **_plain_tensors(module),
        }
    )
    chosen = choose_sizes(ranges, hint, loaded.length_axis, scope.residue)
    chosen += [sizes for sizes in also if sizes not in chosen and _within(sizes, ranges)]
    cases = [(sizes, index % 2) for index, sizes in enumerate(chosen)]
    if scope.masked:
        centre = {name: hint.get(name, span[1]) for name, span in ranges.items()}
        cases += [(centre, 0), (centre, 1)]
    for index, (sizes, odd) in enumerate(cases):
        try:
            inputs, expected = _answered(scope, sizes, index, bool(odd))
        except ModelError as failure:
            result.failed.append((sizes, failure.message))
            result.eager.append(failure)
            continue
        theirs = loaded.fresh(inputs)
        watch = WriteWatch({s.name: theirs[s.name] for s in loaded.inputs if not s.in_place})
        try:
            with torch.no_grad(), definite():
                outputs = {**module(**theirs), **_changed(loaded, theirs)}
        except Exception as exc:
            result.failed.append((sizes, describe_error(exc)))
            continue
        error = compare_outputs(outputs, expected)
        if isinstance(error, float) and error > tolerance:
            margins = find_margins(loaded.module, loaded.fresh(inputs), expected)
            error = compare_outputs(outputs, expected, margins)
        if written := state.written():
            # So it does at every size.
            names = ", ".join(_own_name(name) for name in written[:5])
            result.failed.append((sizes, f"its graph writes to its constants: {names}"))
            return result
        if changed := watch.written():
            result.failed.append((sizes, f"changes its inputs in place: {', '.join(changed)}"))
        elif isinstance(error, str):
            result.failed.append((sizes, error))
        elif not error <= tolerance:
            result.failed.append((sizes, f"differs from eager by {error:.2g} of its scale"))
        else:
            result.passed.append(sizes)
            result.max_error = max(result.max_error, error)
    if not result.failed:
        result.failed += broken_conditions(module, loaded.inputs, ranges, hint, scope.residue)
    return result


def _answered(
    scope: ExportScope, sizes: Sizes, seed: int, mask: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Inputs like real ones with eager's outputs; independent ones if the model refuses those."""
    loaded = scope.loaded
    for kind in (turn(seed), ""):
        inputs = scope.example(sizes, seed, mask=mask, kind=kind)
        mine = loaded.fresh(inputs)
        try:
            outputs = run_module(loaded.module, mine, loaded.name)
        except ModelError:
            if not kind:
                raise
        else:
            break
    return inputs, {**outputs, **_changed(loaded, mine)}


def _within(sizes: Sizes, ranges: Mapping[str, Range]) -> bool:
    return all(lo <= sizes[axis] <= hi for axis, (lo, hi) in ranges.items())


def _changed(loaded: LoadedModel, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inputs that the model changes in place, which count among its results."""
    return {
        f"{s.name} afterwards": dequantize_rows(inputs[s.name]) if s.has_scales else inputs[s.name]
        for s in loaded.inputs
        if s.in_place
    }


def compare_outputs(
    got: Mapping[str, torch.Tensor],
    want: Mapping[str, torch.Tensor],
    margins: Mapping[str, float] | None = None,
) -> float | str:
    """Largest error over all outputs relative to each one's scale, or what can't be compared.

    Integers and booleans must be equal; NaN and infinity must stand at the same places.

    Args:
        got: Outputs by name.
        want: Expected ones.
        margins: By name, the share of the scale that is taken off an error
            (:func:`edgecompile.models.rounding.find_margins`).
    """
    if list(got) != list(want):
        return f"gives the outputs {list(got)}, not {list(want)}"
    worst = 0.0
    for name, expected in want.items():
        actual = got[name]
        if actual.shape != expected.shape:
            return f"'{name}' has the shape {list(actual.shape)}, not {list(expected.shape)}"
        if actual.dtype != expected.dtype:
            return f"'{name}' is {actual.dtype}, not {expected.dtype}"
        if expected.numel() == 0:
            continue
        if not expected.dtype.is_floating_point:
            if not torch.equal(actual, expected):
                return f"'{name}' has other values than eager"
            continue
        finite = expected.isfinite()
        same = torch.where(finite, actual.isfinite(), _same_special(actual, expected))
        if not bool(same.all()):
            return f"'{name}' has NaN or infinity where eager hasn't, or the other way round"
        if bool(finite.any()):
            difference = (actual - expected)[finite].abs().max().item()
            scale = expected[finite].abs().max().item()
            error = difference / scale if scale > 0 else difference
            worst = max(worst, error - (margins or {}).get(name, 0.0))
    return worst


@dataclass(frozen=True)
class SideEffects:
    """Effects of a model's forward beside its outputs.

    Attributes:
        problem: the reason why it can't be compiled, as the rest of a sentence; empty if there is
            none.
        notes: the parts that a compiled program leaves out.
    """

    problem: str = ""
    notes: tuple[str, ...] = ()


def find_side_effects(
    loaded: LoadedModel, sizes: Mapping[str, int], largest: Mapping[str, int] | None = None
) -> SideEffects:
    """Finds effects of a model beside its outputs, by running it before it is traced.

    A compiled program is a function of its inputs: it has no random numbers and keeps no state
    (its weights are mapped read-only). A table that only grows with the length, as positions often
    are, is let grow first: it stays as it is from then on.

    Args:
        loaded: the model.
        sizes: the sizes of every axis, to run it at.
        largest: the largest sizes that will be asked for; None: those of ``sizes``.

    Raises:
        ModelError: the model fails.
    """
    loaded.run(loaded.make_example({**sizes, **(largest or {})}, seed=4))
    inputs = loaded.make_example(sizes, seed=5)
    watch = WriteWatch(inputs, values=True)
    module = loaded.module
    buffers = WriteWatch(dict(module.named_buffers()), values=True)
    # Weights may be large: their count of writes is enough.
    weights = WriteWatch(dict(module.named_parameters()))
    plain = WriteWatch(_plain_tensors(module))
    attributes = _attributes(module)
    error = compare_outputs(loaded.run(inputs), loaded.run(inputs))
    for what, changed in (
        ("weights", weights.written(dict(module.named_parameters()))),
        ("buffers", buffers.written(dict(module.named_buffers()))),
        # Another tensor in the place of one is no write: a note says so below.
        ("tensors", plain.written()),
    ):
        if changed:
            names = ", ".join(_own_name(name) for name in changed[:5])
            return SideEffects(f"changes its {what} in forward: {names}")
    # Of those that a model usually changes it was given copies when it was loaded.
    if moved := watch.written():
        return SideEffects(f"changes its inputs in place: {', '.join(moved)}")
    if isinstance(error, str) or error > TOLERANCE:
        return SideEffects("gives other outputs each time for the same input")
    assignments = sorted(
        name for name, value in _attributes(loaded.module).items() if attributes.get(name) != value
    )
    if not assignments:
        return SideEffects()
    names = ", ".join(assignments[:5]) + (
        f" and {len(assignments) - 5} more" if assignments[5:] else ""
    )
    return SideEffects(
        notes=(
            f"forward sets attributes of the module ({names}), which didn't change the outputs; "
            "a compiled program does none of that",
        )
    )


def _plain_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors in the modules' plain attributes: a program has those that it uses as constants."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor)
    }


def _own_name(label: str) -> str:
    """The model's own name of a part: the module around it is ours."""
    return label.removeprefix("model.").lstrip(".")


def _attributes(module: torch.nn.Module) -> dict[str, object]:
    """Values of the modules' plain attributes, as far as a change shows in them."""
    values: dict[str, object] = {}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if not name.startswith("_") and name != "training":
                label = _own_name(f"{path}.{name}")
                if isinstance(value, (bool, int, float, str, bytes, type(None))):
                    values[label] = value
                elif isinstance(value, torch.Tensor):
                    values[label] = (id(value), value._version)
                elif isinstance(value, (list, dict, set)):
                    values[label] = len(value)
    return values


def _values(span: Range, hint: int | None, residue: Residue | None) -> list[int]:
    lo, hi = span
    middle = (lo + hi) // 2
    step = 1
    if residue is not None:
        step = residue.step
        lo, middle, hi = residue.at_least(lo), residue.at_most(middle), residue.at_most(hi)
    centre = middle if hint is None else hint
    sizes = {lo, lo + step, centre, centre + step, middle, middle + step, hi - step, hi}
    return sorted(value for value in sizes if lo <= value <= hi)


def _same_special(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (actual == expected) | (actual.isnan() & expected.isnan())
