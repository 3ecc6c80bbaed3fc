"""The state that a factory declares: outputs that are inputs of the next run, and their start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from edgecompile.errors import ModelError
from edgecompile.models.specs import InputSpec, OutputSpec
from edgecompile.runtime.format.manifest.schema import StateSpec, TensorSpec
from edgecompile.runtime.format.manifest.state import MAX_START, pair_problem

_FORM = 'state={"h": "h_next"} says that the output h_next is the input h of the next run'


def check_state(
    state: Mapping[str, Any] | None,
    start: Mapping[str, Any] | None,
    examples: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Sequence[int | str]],
    problems: list[str],
) -> None:
    """Adds a line to ``problems`` for each fault that is seen without running the model.

    Args:
        state, start: the fields of a ModelSpec.
        examples: the example inputs by name.
        shapes: their shapes, with axis names where the size varies.
        problems: a list that gets a line for every problem.
    """
    for name, output in (state or {}).items():
        if name not in examples:
            problems.append(f"state names the input {name!r}, which doesn't exist")
        elif not isinstance(output, str):
            problems.append(f"state of '{name}' is {output!r}, not the name of an output: {_FORM}")
        elif varying := [dim for dim in shapes[name] if isinstance(dim, str)]:
            problems.append(
                f"the state '{name}' varies with {' and '.join(varying)}, but keeps its size from run "
                "to run: leave it out of axes"
            )
    outputs = list((state or {}).values())
    twice = sorted({str(name) for name in outputs if outputs.count(name) > 1})
    if twice:
        problems.append(f"state names the output {', '.join(twice)} twice")
    for name, values in (start or {}).items():
        if name not in (state or {}) or name not in examples:
            problems.append(f"start names {name!r}, which is no state")
        elif isinstance(problem := _read_start(values, examples[name]), str):
            problems.append(f"the start of '{name}' {problem}")


def find_states(
    subject: str,
    state: Mapping[str, str] | None,
    start: Mapping[str, Any] | None,
    inputs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
) -> tuple[StateSpec, ...]:
    """The manifest's entries, once the outputs are known.

    Raises:
        ModelError: an output doesn't exist, or can't be the input of the next run.
    """
    given = {item.name: TensorSpec(item.name, item.dtype, tuple(item.shape)) for item in inputs}
    made = {item.name: TensorSpec(item.name, item.dtype, tuple(item.shape)) for item in outputs}
    problems, result = [], []
    for name, output in (state or {}).items():
        if output not in made:
            problems.append(f"there is no output {output!r}, only {', '.join(made)}")
        elif problem := pair_problem(made[output], given[name]):
            problems.append(problem)
        values = None
        if name in (start or {}):
            spec = given[name]
            sizes = [dim for dim in spec.shape if isinstance(dim, int)]
            example = torch.empty(sizes, dtype=getattr(torch, spec.dtype))
            values = _read_start((start or {})[name], example)
        assert not isinstance(values, str)  # check_state has refused it
        result.append(StateSpec(output, name, values))
    if problems:
        raise ModelError(
            f"the state of '{subject}' can't be kept: " + "; ".join(problems), hint=_FORM
        )
    return tuple(result)


def _read_start(values: Any, example: torch.Tensor) -> tuple[float | int, ...] | str:
    """The values of the first run, one if all are the same; or what is wrong with them."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    try:
        array = np.asarray(values)
        kind = example.numpy().dtype
        with np.errstate(over="ignore"):  # told below
            exact = array.astype(kind)
    except (TypeError, ValueError):
        return f"is {values!r}, not a number or an array"
    if array.dtype.kind not in "biuf" or not np.isfinite(exact).all():
        return "has values that aren't finite numbers"
    if kind.kind != "f" and not np.array_equal(exact, array):
        return f"has values that aren't {kind}"
    if array.ndim and array.shape != tuple(example.shape):
        return f"has the shape {list(array.shape)}, must be {list(example.shape)} or a number"
    plain = exact.astype(int) if kind.kind == "b" else exact
    numbers = plain.reshape(-1).tolist()
    if len(set(numbers)) == 1:
        return (numbers[0],)
    if len(numbers) > MAX_START:
        return f"has {len(numbers)} different values, at most {MAX_START} can be kept"
    return tuple(numbers)
