"""The reference of a case: the model in float64, and the distance of eager from it.

A model in float32 or half precision is a rounded one, eager's no less than ours. Where activations are large in a few
channels, or numbers nearly cancel, eager itself loses digits, and a program that sums in another
order loses others. So a program is compared with float64, and :mod:`edgecompile.bundle.margins` allows
it a multiple of eager's own error.

float64 takes several times as long as float32, and of a large model minutes. So :class:`References` runs
those cases in float64 that it has to, and others within a bound on time.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgecompile.errors import ModelError
from edgecompile.precision import TOLERANCES
from edgecompile.runtime.format.golden.ties import Ties

if TYPE_CHECKING:
    from torch import Tensor

    from edgecompile.models.choices import Choices
    from edgecompile.models.double import Kept
    from edgecompile.models.loaded import LoadedModel

Arrays = Mapping[str, npt.NDArray[np.generic]]

#: How long all float64 runs of some cases may take before one more is left out: so many times as
#: long as those in float32, and a minute beside, in which models up to some hundred megabytes finish.
MOST_TIMES = 3.0
_GRACE_S = 60.0


@dataclass(frozen=True)
class Reference:
    """Eager's answer to some inputs.

    Attributes:
        outputs: the outputs of float64, rounded to their own type; eager's own where ``problem`` says
            so, where values are neither of float32 nor of float16, and where one of them isn't finite.
        rounding: the largest difference of eager, by output that float64 gave.
        problem: the reason why some output is eager's own; "" where there is no reason but its type.
        lost: whether the problem is that eager differs by more than
            :data:`edgecompile.models.rounding.MOST`, or ``MOST_OF_HALVES``.
        skipped: whether float64 was left out because it took too long.
        ties: the other possible outputs, where places of nearly equal values were chosen; None:
            none.
        apart: the least difference, as a share of their scale, of nearly equal values on which outputs may depend in
            another way than ``ties`` has; inf: there are none.
    """

    outputs: Arrays
    rounding: Mapping[str, float]
    problem: str = ""
    lost: bool = False
    skipped: bool = False
    ties: Ties | None = None
    apart: float = math.inf

    @property
    def open(self) -> bool:
        """Whether eager's outputs are only one of several right answers."""
        return self.apart < math.inf


class References:
    """References of one model, of which float64 takes a bounded share of the time.

    Args:
        model: Model whose answers they are.
        rtol: Largest difference of two values that tie, as a share of the values' scale.
    """

    def __init__(self, model: LoadedModel, rtol: float = TOLERANCES["fp32"].rtol) -> None:
        self._model = model
        self._kept: Kept | None = None
        self._rtol = rtol
        self._narrow_s = 0.0
        self._wide_s = 0.0
        self._order_s = 0.0

    @property
    def spent(self) -> bool:
        """Whether float64 has taken its time."""
        return self._is_spent(self._wide_s)

    def _is_spent(self, seconds: float) -> bool:
        return seconds > _GRACE_S + MOST_TIMES * self._narrow_s

    def find(self, inputs: Arrays, *, always: bool = False) -> Reference:
        """The reference of some inputs.

        Args:
            inputs: Arrays by name.
            always: whether float64 is run, however long it took before.

        Raises:
            ModelError: the model fails in float32.
        """
        from edgecompile.models.arrays import to_numpy
        from edgecompile.models.double import Footprint, Kept, lacks_room
        from edgecompile.models.orders import Repeated
        from edgecompile.models.rounding import MOST, MOST_OF_HALVES

        started = time.monotonic()
        with Footprint() as footprint:
            outputs, choices = _run_with_choices(self._model, inputs)
        self._narrow_s += time.monotonic() - started
        narrow = to_numpy(outputs)
        started = time.monotonic()
        apart, ties = self._follow(inputs, outputs, choices, always)
        self._order_s += time.monotonic() - started
        started = time.monotonic()
        try:
            plain = Reference(narrow, {}, ties=ties, apart=apart)
            if self.spent and not always:
                problem = f"float64 had taken over {MOST_TIMES:g} times as long as float32"
                return replace(plain, problem=problem, skipped=True)
            numbers = footprint.most + sum(a.size for a in inputs.values() if a.dtype == np.float32)
            if problem := lacks_room(numbers):
                return replace(plain, problem=problem)
            most = MOST_OF_HALVES if footprint.halves else MOST
            mode = nullcontext() if choices is None else Repeated(choices.calls, self._rtol)
            self._kept = self._kept or Kept(self._model.module)
            found = _compare(self._model, inputs, narrow, most, mode, self._kept)
            return replace(found, ties=ties, apart=apart)
        finally:
            self._wide_s += time.monotonic() - started

    def _follow(
        self,
        inputs: Arrays,
        outputs: Mapping[str, Tensor],
        choices: Choices | None,
        always: bool,
    ) -> tuple[float, Ties | None]:
        """How far values are apart that leave outputs open, and the ties that don't.

        Other orders are tried as long as that takes no longer than float64 may; then each near tie counts as open.
        """
        from edgecompile.models.arrays import to_tensors
        from edgecompile.models.orders import MOST, follow_orders

        if choices is None:
            return math.inf, None

        def run(mode: AbstractContextManager[Any]) -> Mapping[str, Tensor]:
            with mode:
                return self._model.run(to_tensors(inputs))

        apart = math.inf
        # Of a language model's many tokens some always choose experts by a hair: other runs cost much and help nothing.
        if self._model.generation is None:
            most = MOST if always or not self._is_spent(self._order_s) else 0
            apart = follow_orders(choices, outputs, self._rtol, run, most)
        return apart, choices.find_ties(outputs, self._rtol)


def find_reference(
    model: LoadedModel, inputs: Arrays, rtol: float = TOLERANCES["fp32"].rtol
) -> Reference:
    """Runs a model in float32 and in float64.

    Args:
        model: the model.
        inputs: its inputs, by name.
        rtol: largest difference of two values that tie, as a share of the values' scale.

    Raises:
        ModelError: the model fails in float32.
    """
    return References(model, rtol).find(inputs)


def _compare(
    model: LoadedModel,
    inputs: Arrays,
    narrow: Arrays,
    most: float,
    choosing: AbstractContextManager[Any],
    kept: Kept,
) -> Reference:
    """Runs a model in float64, in a context that chooses as float32 did, and compares its own outputs with that."""
    import torch

    from edgecompile.models.arrays import to_tensors
    from edgecompile.models.double import run_in_float64
    from edgecompile.models.modules import describe_error
    from edgecompile.models.rounding import measure

    tensors = model.fresh(to_tensors(inputs))
    try:
        with redirect_stdout(sys.stderr), choosing:
            wide = run_in_float64(model.module, tensors, kept)
    except Exception as exc:  # a model that only float32 will do for
        return Reference(narrow, {}, f"float64 fails: {describe_error(exc)}")
    outputs: dict[str, npt.NDArray[np.generic]] = dict(narrow)
    rounding: dict[str, float] = {}
    problem, lost = "", False
    for name, mine in narrow.items():
        if mine.dtype not in (np.float32, np.float16) or wide[name].dtype != torch.float64:
            continue
        if wide[name].shape != mine.shape:
            problem = problem or f"{name} has another shape in float64"
            continue
        found = measure(torch.from_numpy(mine), wide[name], most)
        if found.lost:
            lost = True
            share = f"{found.error / (found.largest or 1.0):.2g}"
            problem = problem or f"{name} differs by {share} of its scale in float64"
            continue
        outputs[name] = found.exact.numpy()
        rounding[name] = found.error
    return Reference(outputs, rounding, problem, lost)


def _run_with_choices(
    model: LoadedModel, inputs: Arrays
) -> tuple[Mapping[str, Tensor], Choices | None]:
    """The outputs of eager, and what it chose, if its code takes the record of that."""
    from edgecompile.models.arrays import to_tensors
    from edgecompile.models.choices import Choices

    tensors = to_tensors(inputs)
    try:
        with Choices() as choices:
            return model.run(tensors), choices
    except ModelError:  # the model's own fault, or code that takes no mode
        return model.run(to_tensors(inputs)), None


def run_eager(model: LoadedModel, inputs: Arrays) -> Arrays:
    """The model's own outputs of one run in float32, by name."""
    from edgecompile.models.arrays import to_numpy, to_tensors

    return to_numpy(model.run(to_tensors(inputs)))
