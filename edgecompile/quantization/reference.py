"""The two errors of narrow weights: the effect of rounding them on a model, and the error that a bundle adds.

How far the rounded model, computed in float64, lies from the original is the precision's error; how
far the bundle lies from the rounded model is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from edgecompile.backends.compilation import CompiledModel
from edgecompile.bundle.cases import ROUNDED, Case
from edgecompile.bundle.margins import scale
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import describe_error
from edgecompile.precision import INT4, ROUNDED_PRODUCTS, TOLERANCES, Precision
from edgecompile.quantization.program import Deviation, QuantizedProgram, deviation_of
from edgecompile.runtime.format.golden.compare import compare_arrays
from edgecompile.targets.profile import VariantSpec

#: Of the precision's tolerance: what a bundle may differ from the rounded model by. Kernels sum in
#: another order, round activations to 15 bits, and approximate functions.
_OWN = 0.1
#: Features of CPUs whose kernels round activations to the weights' precision, and how many times
#: the weights' own error that may add: up to 2.3 times was seen of SmolLM2. Products of int4 do so on all of x86-64.
_COARSE = {"avx_vnni", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimddp"}
_ACTIVATIONS = 3.0
#: The same in pairs, which round a third more coarsely.
_ACTIVATIONS_IN_PAIRS = 4.0
#: Features of x86-64 that have an instruction for four pairs of int8.
_FOUR_PAIRS = {"avx_vnni", "avx512_vnni"}


@dataclass(frozen=True)
class RoundedCases:
    """The cases with the rounded model's answers.

    Attributes:
        cases: a case for each of the original ones, with limits of its own; () if there are none.
        deviation: the largest deviation of the rounded model from the original; None: not known.
        with_activations: the same where activations are rounded as the coarsest variant does; None: none does, or not known.
        problem: the reason why there are none; "" if there are.
    """

    cases: tuple[Case, ...] = ()
    deviation: Deviation | None = None
    with_activations: Deviation | None = None
    problem: str = ""

    def describe(self, precision: str) -> tuple[str, ...]:
        """The precision's own error, as a sentence or none."""
        if self.problem:
            return (f"the error of {precision} itself isn't known: {self.problem}",)
        if self.deviation is None:
            return ()
        coarsest = ""
        if self.with_activations is not None:
            coarsest = f"; with activations rounded as the coarsest variant does, by {_figures(self.with_activations)}"
        return (
            f"the model with its weights rounded to {precision} differs from the original by "
            f"{_figures(self.deviation)} at worst, both in float64: that is the error of {precision}, "
            f"whatever runs it{coarsest}",
        )


def _figures(deviation: Deviation) -> str:
    cosine = "" if deviation.cosine is None else f" and has a cosine of {deviation.cosine:.6f}"
    return f"{100 * deviation.error:.2g} % of an output's scale{cosine}"


def round_cases(model: LoadedModel, compiled: CompiledModel, cases: Sequence[Case]) -> RoundedCases:
    """Runs the rounded model, in float64 and with activations as they are, on the cases.

    Those that had no time for float64 before are left out.

    A bundle may differ from it by a tenth of the precision's tolerance; where kernels round
    activations, too, by some times the precision's own error beside, but no more than the tolerance.
    """
    made: list[Case] = []
    share = activations_share(compiled.variants, compiled.precision)
    coarse: list[Deviation | None] = []
    cases = [case for case in cases if not case.skipped]
    try:
        for index in sorted({case.bucket for case in cases}):
            own = [case for case in cases if case.bucket == index]
            exported = compiled.exported[min(index, len(compiled.exported) - 1)]
            program = QuantizedProgram(
                model, exported, [c.inputs for c in own], [c.outputs for c in own]
            )
            for case, outputs in zip(own, program.answers(compiled.precision), strict=True):
                made.append(replace(case, name=ROUNDED + case.name, outputs=outputs))
            if share and compiled.precision.name in ROUNDED_PRODUCTS:
                coarse.append(_with_activations(program, compiled.precision))
    except Exception as exc:  # an operator that has no float64
        return RoundedCases(problem=f"the rounded model fails in float64: {describe_error(exc)}")
    known = [found for found in coarse if found is not None]
    coarsest = reduce(Deviation.or_worse, known) if known and len(known) == len(coarse) else None
    by_key = {(case.bucket, ROUNDED + case.name): case.outputs for case in cases}
    pairs = [(case.outputs, by_key[case.bucket, case.name]) for case in made]
    deviation = deviation_of(pairs)
    tolerance = TOLERANCES[compiled.precision.name]
    rounding = [
        {
            name: compare_arrays(value, original[name], tolerance).max_abs_error
            for name, value in outputs.items()
            if value.dtype.kind == "f"
        }
        for outputs, original in pairs
    ]
    limited: list[Case] = []
    for case, errors in zip(made, rounding, strict=True):
        limits = {
            name: own_limit(case, name, compiled.precision.name, error, share)
            for name, error in errors.items()
        }
        limited.append(replace(case, rounding=errors, margins={}, limits=limits))
    return RoundedCases(tuple(limited), deviation, coarsest)


def _with_activations(program: QuantizedProgram, precision: Precision) -> Deviation | None:
    """The deviation in float32, activations being rounded; None where that fails, as no case needs it."""
    try:
        return program.deviation(precision)
    except Exception:
        return None


def rounds_activations(variants: Iterable[VariantSpec], precision: str) -> bool:
    """Whether kernels of some variant round activations to the weights' precision, those of int4 to int8."""
    return any(
        _COARSE & set(variant.requires) or (precision == INT4 and variant.arch == "x86-64")
        for variant in variants
    )


def rounding_products(variants: Sequence[VariantSpec]) -> tuple[str, ...]:
    """The precisions whose products round activations coarsely on every variant.

    On x86-64 without VNNI these are int4's alone: the head of such a model, in int8, rounds to 15 bits there.
    """
    return tuple(
        name
        for name in ROUNDED_PRODUCTS
        if all(rounds_activations([variant], name) for variant in variants)
    )


def adds_pairs(variant: VariantSpec) -> bool:
    """Whether a variant's int8 products are faster in pairs: on x86-64 without an instruction for four pairs."""
    return variant.arch == "x86-64" and not _FOUR_PAIRS & set(variant.requires)


def activations_share(variants: Iterable[VariantSpec], precision: Precision) -> float:
    """The error that rounding activations may add, as a multiple of the weights' own; 0 if no variant rounds them."""
    variants = list(variants)
    if precision.pairs and any(map(adds_pairs, variants)):
        return _ACTIVATIONS_IN_PAIRS
    return _ACTIVATIONS if rounds_activations(variants, precision.name) else 0.0


def own_limit(case: Case, name: str, precision: str, error: float, share: float) -> float:
    """The difference from the rounded model that a bundle may have in an output of a case.

    Args:
        case: the case.
        name: the output.
        precision: the precision's name.
        error: the difference that rounding the weights, or of int4 the activations, makes.
        share: the multiple of that difference that rounding activations may add.
    """
    most = TOLERANCES[precision].limit(scale(case, name))
    return min(most, _OWN * most + share * error)
