"""The model argument: a path, a factory, an nn.Module, an ExportedProgram, or what a factory returns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from edgecompile import checks
from edgecompile.bundle.names import bundle_name
from edgecompile.errors import UsageError
from edgecompile.models.options import LoadOptions
from edgecompile.models.tasks import SEQ2SEQ_LM
from edgecompile.runtime.format.schema import CAUSAL_LM

_FORMS = (
    "give a folder's path, 'file.py:factory', 'package.module:factory', a .pt2 file's path, an "
    "nn.Module with example_inputs and axes, or an ExportedProgram"
)
_AXES = 'axes={"x": {1: "length"}} says that dimension 1 of the input x is the length'


@dataclass(frozen=True)
class Subject:
    """A model as :func:`edgecompile.loaders.load.load_model` takes it.

    Attributes:
        model: the path or factory as text, or an object in memory.
        options: how to load it.
        name: of its bundle, without suffix.
    """

    model: Any
    options: LoadOptions
    name: str

    @property
    def in_memory(self) -> bool:
        """Whether only this process has it."""
        return not isinstance(self.model, str)

    def check(self) -> None:
        """Refuses what is no model before anything is loaded.

        Raises:
            ModelError: see :func:`edgecompile.loaders.load.check_model`.
        """
        if not self.in_memory:
            from edgecompile.loaders.load import check_model

            check_model(self.model, self.options)


def find_subject(
    model: Any,
    example_inputs: Any = None,
    axes: Any = None,
    options: LoadOptions | None = None,
    *,
    varying: bool = False,
) -> Subject:
    """The model argument, checked as far as it can be without reading a file.

    Args:
        model, example_inputs, axes: as of :func:`edgecompile.build`.
        options: how to load it.
        varying: whether lengths are given, so that something has to vary with them.

    Raises:
        UsageError: the arguments don't describe a model; says which, and what to give.
        ModelError: the options contradict each other.
    """
    options = checks.options("load_options", options, LoadOptions)
    settled = [name for name in ("batch", "max_length") if getattr(options, name) is not None]
    if settled:
        raise UsageError(
            f"load_options has {' and '.join(settled)}", hint="give them as arguments of their own"
        )
    options.check()
    if isinstance(model, (str, os.PathLike)):
        _refuse(example_inputs, axes, "a folder, a factory and a saved program say themselves")
        text = os.fsdecode(model)
        return Subject(text, options, bundle_name(text))
    # An object of torch exists only where torch is loaded already.
    torch: Any = sys.modules.get("torch")
    if torch is None or isinstance(model, type):
        raise UsageError(f"model is {checks.describe(model)}", hint=_FORMS)
    if isinstance(model, torch.export.ExportedProgram):
        _refuse(example_inputs, axes, "an ExportedProgram says itself")
        if varying and not model.range_constraints:
            raise UsageError(
                "the ExportedProgram has no dynamic dimension, so nothing varies with the lengths",
                hint='export it with dynamic_shapes={"x": {1: torch.export.Dim("length")}}, or leave '
                "lengths and texts out to build the one size that it has",
            )
        return Subject(model, options, options.name or "model")
    from edgecompile.loaders.factories import to_spec
    from edgecompile.loaders.factory_specs import ModelSpec, find_problems

    if isinstance(model, torch.nn.Module):
        name = type(model).__name__
        if options.task in (CAUSAL_LM, SEQ2SEQ_LM):
            _refuse(example_inputs, axes, f"the task {options.task} settles")
            value = {"module": model, "task": options.task, "name": name}
            return Subject(value, options, bundle_name(options.name or name))
        if example_inputs is None:
            raise UsageError(
                f"model is an nn.Module ({name}) without example_inputs",
                hint='give tensors by the names of its arguments: example_inputs={"x": torch.randn('
                f"1, 16, 8)}}; {_AXES}",
            )
        if varying and not axes:
            raise UsageError(f"no dimension of {name}'s inputs varies with the lengths", hint=_AXES)
        spec = ModelSpec(model, example_inputs, axes or {}, name=name)
    elif isinstance(model, (Mapping, ModelSpec)):
        _refuse(example_inputs, axes, "a description of a model says itself")
        if isinstance(model, Mapping) and "task" in model:
            return Subject(model, options, bundle_name(str(model.get("name", "model"))))
        spec = to_spec(model, "model is", options)
    else:
        raise UsageError(f"model is {checks.describe(model)}", hint=_FORMS)
    problems = find_problems(spec, options)
    if problems:
        raise UsageError("the model can't be used: " + "; ".join(problems), hint=_AXES)
    return Subject(spec, options, bundle_name(options.name or spec.name or "model"))


def without_lengths(subject: Subject, load: LoadOptions) -> Any:
    """The model where no lengths are given: one in memory is loaded, and loading it again gives the same.

    Raises:
        UsageError: its lengths vary.
    """
    if not subject.in_memory:
        return subject.model  # loading takes long, and the build does it anyway
    from edgecompile.loaders.load import load_model
    from edgecompile.planning.request import PlanRequest
    from edgecompile.planning.scope import with_traffic

    loaded = load_model(subject.model, load)
    with_traffic(PlanRequest(None), loaded.encoder or loaded)
    return loaded


@contextmanager
def kept_state(model: Any) -> Iterator[None]:
    """Leaves an nn.Module of the caller as it was: modes, gradients and the way of attention.

    Args:
        model: what :class:`Subject` holds.
    """
    module = model.get("module") if isinstance(model, Mapping) else getattr(model, "module", None)
    if not callable(getattr(module, "named_modules", None)):
        yield
        return
    assert module is not None
    modes = [(part, part.training) for part in module.modules()]
    tensors = [(tensor, tensor.requires_grad) for tensor in module.parameters()]
    attention = getattr(getattr(module, "config", None), "_attn_implementation", None)
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
        for tensor, gradient in tensors:
            tensor.requires_grad_(gradient)
        if attention is not None and module.config._attn_implementation != attention:
            module.set_attn_implementation(attention)


def _refuse(example_inputs: Any, axes: Any, reason: str) -> None:
    """Refuses example inputs and axes of a model that has its own."""
    given = {"example_inputs": example_inputs, "axes": axes}
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UsageError(
            f"{' and '.join(names)}: for an nn.Module; {reason} what goes in and what varies",
            hint=f"leave {' and '.join(names)} out",
        )
