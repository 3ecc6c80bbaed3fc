"""Failures of torch's Inductor, put into words with the model's line."""

from __future__ import annotations

import inspect

import pytest
import torch

from edgecompile.backends.inductor.compat.generation import GENERATING, generate_cpp
from edgecompile.backends.inductor.failures import read_failure
from edgecompile.errors import CompileError
from edgecompile.explanation.program import lower_program
from edgecompile.export.export import export_model
from edgecompile.loaders.load import load_model
from edgecompile.models.source_lines import line_of_text
from edgecompile.precision import FP32
from edgecompile.targets.profile import load_target
from tests.factories import explained

_TRACE = """
  args[0]: TensorBox(stack_traces = {
      File "/home/me/model.py", line 3, in forward,
          rows = x[x > 0],
  })
Found from :
 File "{torch}", line 1, in forward
    return self.inner(x)
  File "/home/me/model.py", line 7, in forward
    y = f(rows)
""".replace("{torch}", torch.nn.modules.conv.__file__)


def test_the_operators_own_line_is_told_not_that_of_its_arguments() -> None:
    failure = read_failure(RuntimeError(f"LoweringException: AssertionError: no{_TRACE}"))
    assert str(failure.place) == "/home/me/model.py:7 in forward: y = f(rows)"
    assert failure.text == "LoweringException: AssertionError: no" and failure.cure == ""


def test_numbers_that_depend_on_values_are_told_as_such() -> None:
    said = "Could not guard on data-dependent expression Ne(u1, 2*u0) (unhinted: Ne(u1, 2*u0))."
    failure = read_failure(RuntimeError(said))
    assert failure.text == (
        "it has to know whether u1 != 2 * u0, where u1, u0 depend on values in the input"
    )
    assert "torch.where" in failure.cure and failure.place is None
    said = "Could not extract specialized integer from data-dependent expression u0 (unhinted: u0)."
    assert read_failure(RuntimeError(said)).text == (
        "it has to know the value of u0, where u0 depends on values in the input"
    )


def test_an_error_without_words_is_told_by_its_type() -> None:
    assert read_failure(NotImplementedError()).text == "NotImplementedError"


def test_a_builds_error_names_the_line_and_a_cure() -> None:
    loaded = load_model(f"{explained.__file__}:picked")
    exported = export_model(loaded)
    lowered = lower_program(exported.program, FP32)
    variant = load_target("cpu-x86-64").variants[-1]
    example = exported.example({"length": 12})
    with pytest.raises(CompileError, match="the value of u0") as failed, GENERATING:
        generate_cpp(lowered.gm, example, variant, shared=lowered.constants)
    place = line_of_text(failed.value.message)
    lines, first = inspect.getsourcelines(explained.Picked.forward)
    number = next(i for i, line in enumerate(lines) if "unfold" in line)
    assert place is not None and place.line == first + number
    assert "torch.where" in (failed.value.hint or "") and "`__cause__`" in (failed.value.hint or "")
