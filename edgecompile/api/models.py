"""The model argument: a path, a factory, an nn.Module, an ExportedProgram, or a factory's result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from edgecompile import checks
from edgecompile.bundle.names import bundle_name, manifest_name
from edgecompile.errors import UsageError
from edgecompile.models.options import LoadOptions
from edgecompile.models.tasks import SEQ2SEQ_LM
from edgecompile.runtime.format.manifest.schema import CAUSAL_LM

_FORMS = (
    "a folder's path, 'file.py:factory', 'package.module:factory', a .pt2 or .onnx file's path, an "
    "nn.Module with example_inputs and axes, or an ExportedProgram"
)
_AXES = (
    'axes={"x": {0: "batch", 1: "length"}} says that dimension 0 of the input x is the batch, and '
    "dimension 1 the length"
)
_VARYING = (
    f"{_AXES}; an ExportedProgram is made with "
    'dynamic_shapes={"x": {1: torch.export.Dim("length")}}. Or leave the lengths out, and its one size is '
    "built"
)


@dataclass(frozen=True)
class ModelArgument:
    """A model as :func:`edgecompile.loaders.load.load_model` takes it.

    Attributes:
        model: the path or factory as text, or an object in memory.
        options: options for loading it.
        name: the name of its bundle, without suffix.
    """

    model: Any
    options: LoadOptions
    name: str

    @property
    def in_memory(self) -> bool:
        """Whether only this process has it."""
        return not isinstance(self.model, str)

    def check(self, *, varying: bool = False) -> None:
        """Refuses what is no model, or doesn't go with its options, before anything is loaded.

        Args:
            varying: whether lengths are given, so that something has to vary with them.

        Raises:
            ModelError: see :func:`edgecompile.loaders.load.check_model`.
            UsageError: a description of a model makes no sense, or options don't go with the model.
        """
        from edgecompile.loaders.load import check_model

        check_model(self.model, self.options)
        if not self.in_memory:
            return
        from edgecompile.loaders.factory_specs import ModelSpec, find_problems

        fixed = not getattr(self.model, "range_constraints", True)  # of an ExportedProgram
        if isinstance(self.model, ModelSpec):
            problems = find_problems(self.model, self.options)
            if problems:
                raise UsageError(f"{self.name} can't be used: " + "; ".join(problems), hint=_AXES)
            fixed = not self._axes
        if varying and fixed:
            raise UsageError(
                f"no dimension of {self.name}'s inputs varies with the lengths", hint=_VARYING
            )

    def check_pairs(self, second: str) -> None:
        """Refuses pairs of sizes where the model has no axis for the second one, before it is loaded.

        Raises:
            UsageError: names the axes that there are.
        """
        from edgecompile.lengths.joint import both_axes_hint
        from edgecompile.loaders.factory_specs import ModelSpec

        if isinstance(self.model, ModelSpec) and second not in self._axes:
            raise UsageError(
                f"`lengths` are pairs of {second} and length, but {self.name} has the axes "
                + ", ".join(sorted(self._axes)),
                hint="name the dimension in `axes`, or give the lengths alone"
                + both_axes_hint(sorted(self._axes)),
            )

    @property
    def _axes(self) -> set[str]:
        """Names of the axes of a specification, once it is known to make sense."""
        return {axis for dims in self.model.axes.values() for axis in dims.values()}


def read_model_argument(
    model: Any,
    example_inputs: Any = None,
    axes: Any = None,
    options: LoadOptions | None = None,
    *,
    batch: Any = None,
) -> ModelArgument:
    """The model argument with how to load it, told apart by its type; :meth:`ModelArgument.check` looks closer.

    Args:
        model, example_inputs, axes, batch: the arguments of :func:`edgecompile.build`.
        options: options for loading it.

    Raises:
        UsageError: the arguments don't describe a model; says which, and what to give.
        ModelError: a dict doesn't describe one.
    """
    options = checks.options("load_options", options, LoadOptions)
    settled = [name for name in ("batch", "max_length") if getattr(options, name) is not None]
    if settled:
        raise UsageError(
            f"`load_options` has {' and '.join(settled)}",
            hint="give them as arguments of their own",
        )
    options = replace(options, batch=batch)
    if isinstance(model, (str, os.PathLike)):
        checks.given_path("model", model, _FORMS)
        _refuse(example_inputs, axes, "a folder, a factory and a saved program say themselves")
        text = os.fsdecode(model)
        return ModelArgument(text, options, bundle_name(text))
    # An object of torch exists only where torch is loaded already.
    torch: Any = sys.modules.get("torch")
    if torch is None or isinstance(model, type):
        raise UsageError(f"`model` is {checks.describe(model)}", hint=f"give {_FORMS}")
    if isinstance(model, torch.export.ExportedProgram):
        _refuse(example_inputs, axes, "an ExportedProgram says itself")
        return ModelArgument(model, options, manifest_name(options.name or "model"))
    from edgecompile.loaders.factories import to_spec
    from edgecompile.loaders.factory_specs import ModelSpec

    if isinstance(model, torch.nn.Module):
        name = type(model).__name__
        if options.task in (CAUSAL_LM, SEQ2SEQ_LM):
            _refuse(example_inputs, axes, f"the task {options.task} settles")
            value = {"module": model, "task": options.task, "name": name}
            return ModelArgument(value, options, manifest_name(options.name or name))
        if example_inputs is None:
            raise UsageError(
                f"`model` is an nn.Module ({name}) without `example_inputs`",
                hint='give tensors by the names of its arguments: example_inputs={"x": torch.randn('
                f"1, 16, 8)}}; {_AXES}",
            )
        spec = ModelSpec(model, example_inputs, {} if axes is None else axes, name=name)
    elif isinstance(model, (Mapping, ModelSpec)):
        _refuse(example_inputs, axes, "a description of a model says itself")
        if isinstance(model, Mapping) and "task" in model:
            return ModelArgument(model, options, manifest_name(str(model.get("name", "model"))))
        spec = to_spec(model, "`model` is", options)
    else:
        raise UsageError(f"`model` is {checks.describe(model)}", hint=f"give {_FORMS}")
    own = spec.name if isinstance(spec.name, str) else None
    return ModelArgument(spec, options, manifest_name(options.name or own or "model"))


def without_lengths(subject: ModelArgument, load: LoadOptions) -> Any:
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
        model: the model of a :class:`ModelArgument`.
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
    arguments = {"example_inputs": example_inputs, "axes": axes}
    names = " and ".join(f"`{name}`" for name, value in arguments.items() if value is not None)
    if names:
        raise UsageError(
            f"{names}: for an nn.Module; {reason} what goes in and what varies",
            hint=f"leave {names} out",
        )
