"""Checks what a factory returned and makes a LoadedModel of it; every problem is reported."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from edgecompile.checks import MOST
from edgecompile.errors import ModelError
from edgecompile.loaders.folders.files import plain_name
from edgecompile.loaders.input_specs import check_kinds, describe_inputs, read_sum
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.modules import NamedModule, describe_error
from edgecompile.models.options import LoadOptions
from edgecompile.models.probing import probe_model
from edgecompile.models.specs import BATCH, AxisLimits, Bound, axis_sizes, batch_problem
from edgecompile.runtime.format.dtypes import INPUT_NAMES, Number
from edgecompile.runtime.format.sums import axes_of, find_givers, size_of, size_span, take_sizes

_NAME = re.compile(r"[A-Za-z_]\w{0,99}")
_MAX_DIMS = 8
_GPU = re.compile(r"\bcuda\b|\bGPU\b|'CPU' backend", re.IGNORECASE)
LENGTH = "length"


def build_model(
    spec: ModelSpec, source: ModelSource, default_name: str, options: LoadOptions
) -> LoadedModel:
    """Makes a LoadedModel of a factory's result.

    Raises:
        ModelError: lists everything that is wrong with it, or says where the module fails on its
            example inputs.
    """
    checked = _Checked(spec, options)
    if checked.module is None or checked.problems:
        raise ModelError(
            f"'{source.spec}' can't be used: " + "; ".join(checked.problems),
            hint="what a factory returns is described in edgecompile.ModelSpec",
        )
    inputs, axes, examples = checked.inputs, checked.axes, checked.examples
    name = plain_name(options.name or spec.name or default_name)
    named = _find_runnable(checked.module, spec, source, examples, checked.notes)
    outputs, copied = probe_model(named, inputs, axes, name, axis_sizes(inputs, examples))
    return LoadedModel(
        name=name,
        module=named,
        inputs=inputs,
        outputs=outputs,
        axes=axes,
        length_axis=checked.length_axis,
        source=source,
        tokenizer=None if spec.tokenizer is None else Path(spec.tokenizer),
        notes=(*checked.notes, *copied),
    )


def find_problems(spec: ModelSpec, options: LoadOptions) -> list[str]:
    """The faults of a factory's result that can be found without running it."""
    return _Checked(spec, options).problems


class _Checked:
    """The parts of a ModelSpec, looked at in the order in which they depend on each other."""

    def __init__(self, spec: ModelSpec, options: LoadOptions) -> None:
        self.problems: list[str] = []
        self.spec = spec = check_kinds(spec, self.problems)
        self.options = options
        self.notes: list[str] = []
        self.module = self._module()
        self.examples = self._examples()
        shapes = self._shapes()
        self.axes = self._axes(shapes)
        self.length_axis = self._length_axis()
        self._limit_length()
        # The sizes that each axis may have.
        extents = {axis: (span.lo, span.hi or MOST) for axis, span in self.axes.items()}
        self._check_sizes(shapes, extents)
        self.inputs = describe_inputs(
            self.examples,
            shapes,
            extents,
            pad={**(spec.pad or {}), **options.pad},
            bounds=spec.bounds or {},
            masks=spec.masks,
            problems=self.problems,
        )

    def _module(self) -> nn.Module | None:
        module: Any = self.spec.module
        if not isinstance(module, nn.Module):
            kind = module.__name__ if isinstance(module, type) else f"a {type(module).__name__}"
            self.problems.append(f"module is {kind}, not a torch.nn.Module (an instance)")
            return None
        if isinstance(module, torch.jit.ScriptModule):
            self.problems.append(
                "module is TorchScript, which isn't exported: give the torch.nn.Module behind it"
            )
        state = [*module.named_parameters(), *module.named_buffers()]
        away = {name: t.device.type for name, t in state if t.device.type != "cpu"}
        if away:
            places = ", ".join(sorted(set(away.values())))
            self.problems.append(
                f"weights are on {places} ('{next(iter(away))}'): they must have values on the CPU"
            )
        return module

    def _examples(self) -> dict[str, torch.Tensor]:
        inputs: Any = self.spec.inputs
        accepted = None if self.module is None else _parameters(self.module)
        if isinstance(inputs, (torch.Tensor, np.ndarray)):
            inputs = (inputs,)
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            if accepted is None:
                return {}
            names = [name for name in accepted if not name.startswith("*")]
            if len(inputs) > len(names):
                self.problems.append(
                    f"{len(inputs)} example inputs, but forward takes {', '.join(names) or 'none'}"
                )
            inputs = dict(zip(names, inputs, strict=False))
        if not isinstance(inputs, Mapping) or not inputs:
            self.problems.append("inputs is no dict of example tensors by argument name")
            return {}
        tensors = {str(name): self._tensor(str(name), value) for name, value in inputs.items()}
        result = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        if accepted is not None:
            self._check_arguments(result, accepted)
        return result

    def _tensor(self, name: str, value: Any) -> torch.Tensor | None:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor):
            self.problems.append(f"the input '{name}' is a {type(value).__name__}, not a tensor")
            return None
        if value.device.type == "meta":
            self.problems.append(f"the input '{name}' is on meta: it must have values")
            return None
        tensor = value.detach().cpu()
        if tensor.dtype in (torch.float64, torch.float16, torch.bfloat16):
            self.notes.append(f"the input '{name}' was {tensor.dtype}, it is float32 now")
            tensor = tensor.float()
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in INPUT_NAMES:
            self.problems.append(f"the input '{name}' is {dtype}, which isn't supported")
            return None
        if tensor.dim() > _MAX_DIMS or 0 in tensor.shape:
            self.problems.append(
                f"the input '{name}' has the shape {list(tensor.shape)}: at most {_MAX_DIMS} "
                "dimensions, none of size 0"
            )
            return None
        return tensor.contiguous()

    def _check_arguments(
        self, examples: Mapping[str, torch.Tensor], accepted: Mapping[str, bool]
    ) -> None:
        open_ended = any(name.startswith("**") for name in accepted)
        names = [name for name in accepted if not name.startswith("*")]
        for name in examples:
            if not _NAME.fullmatch(name):
                self.problems.append(f"{name!r} isn't a name for an input")
            elif name not in names and not open_ended:
                self.problems.append(
                    f"forward takes no '{name}'; it takes {', '.join(names) or 'nothing'}"
                )
        missing = [name for name in names if accepted[name] and name not in examples]
        if missing:
            self.problems.append(f"no example input for {', '.join(missing)}")

    def _shapes(self) -> dict[str, list[int | str]]:
        shapes: dict[str, list[int | str]] = {k: list(t.shape) for k, t in self.examples.items()}
        axes: Any = self.spec.axes
        if not isinstance(axes, Mapping) or not all(isinstance(v, Mapping) for v in axes.values()):
            self.problems.append('axes isn\'t of the form {"x": {1: "length"}}')
            return shapes
        for name, dims in axes.items():
            if name not in shapes:
                self.problems.append(f"axes names the input '{name}', which doesn't exist")
                continue
            for dim, axis in dims.items():
                rank, found = len(shapes[name]), read_sum(axis) if isinstance(axis, str) else None
                if not isinstance(dim, int) or not -rank <= dim < rank:
                    self.problems.append(
                        f"axes names dimension {dim!r} of '{name}', which has {rank}, the first one 0"
                    )
                elif found is None or not all(_NAME.fullmatch(term) for term, _ in found.terms):
                    self.problems.append(
                        f"{axis!r} is neither a name for an axis nor a sum such as 2*length+1"
                    )
                else:
                    shapes[name][dim] = str(found)
        return shapes

    def _axes(self, shapes: Mapping[str, Sequence[int | str]]) -> dict[str, AxisLimits]:
        dims = dict.fromkeys(d for shape in shapes.values() for d in shape if isinstance(d, str))
        names = [dim for dim in dims if _NAME.fullmatch(dim)]
        names += [axis for axis, _ in find_givers(dims, names)]
        for dim in dims:
            others = [axis for axis in axes_of(dim, names) if axis not in names]
            if others:
                self.problems.append(
                    f"the size {dim} gives no size of {' and '.join(others)}: all but one of its axes "
                    "have to be dimensions of inputs, or follow from another size"
                )
        limits: Any = self.spec.limits
        if not isinstance(limits, Mapping):
            self.problems.append('limits isn\'t of the form {"length": (1, 512)}')
            limits = {}
        self.problems += [f"limits names the axis {a!r}" for a in limits if a not in names]
        problem = batch_problem(names, self.options.batch)
        if problem:
            first = next(iter(self.examples), "x")
            self.problems.append(f'{problem}: axes={{"{first}": {{0: "batch"}}}} names one')
        result = {}
        for axis in names:
            pair, asked = limits.get(axis), self.options.batch if axis == BATCH else None
            span = AxisLimits(1, 1 if axis == BATCH else None) if pair is None else _span(pair)
            if span is None:
                self.problems.append(
                    f"the limits of {axis} are {pair!r}, not (lowest, highest) from 1"
                )
                span = AxisLimits(1)
            if asked is not None:
                inside = span.lo <= asked[0] and asked[1] <= (span.hi or asked[1])
                if pair is not None and not inside:
                    self.problems.append(f"the batch {asked[0]}..{asked[1]} isn't within {span}")
                span = AxisLimits(*asked)
            result[axis] = span
        return result

    def _length_axis(self) -> str | None:
        name = self.spec.length_axis
        if name is not None and name not in self.axes:
            self.problems.append(f"length_axis is {name!r}, which no input has")
            return None
        others = [axis for axis in self.axes if axis != BATCH]
        if name is None and LENGTH not in others and len(others) > 1:
            self.problems.append(f"length_axis must say which of {', '.join(others)} it is")
        # Where nothing else varies, what varies with traffic is how much comes at once.
        return name or (LENGTH if LENGTH in others else next(iter([*others, *self.axes]), None))

    def _limit_length(self) -> None:
        for name in ("max_context", "lookup"):
            if getattr(self.options, name) is not None:
                self.problems.append(f"`{name}` is for language models that generate")
        for value in (self.spec.max_length, self.options.max_length):
            if value is None:
                continue
            if self.length_axis is None:
                self.problems.append("a maximum length is given, but there is no length axis")
                return
            limits = self.axes[self.length_axis]
            if not isinstance(value, int) or not limits.lo <= value <= MOST:
                self.problems.append(f"max_length is {value!r}, not a size from {limits.lo} on")
            elif value is self.options.max_length and limits.hi is not None and value > limits.hi:
                self.problems.append(f"the maximum length {value} is over the model's {limits.hi}")
            else:
                hi = min(value, limits.hi or value)
                self.axes[self.length_axis] = AxisLimits(limits.lo, hi)

    def _check_sizes(
        self, shapes: Mapping[str, Sequence[int | str]], extents: Mapping[str, tuple[int, int]]
    ) -> None:
        seen: dict[str, tuple[str, int]] = {}
        sums: list[tuple[str, str, int]] = []
        places = ((n, d, axis) for n, s in shapes.items() for d, axis in enumerate(s))
        for name, dim, axis in places:
            if not isinstance(axis, str):
                continue
            size = int(self.examples[name].shape[dim])
            if axis not in self.axes:
                sums.append((axis, name, size))
                continue
            first, other = seen.setdefault(axis, (name, size))
            if other != size:
                self.problems.append(
                    f"{axis} is {other} in the example '{first}' and {size} in '{name}'"
                )
            limits = self.axes[axis]
            # A batch chosen by option needn't be the one of the example.
            if axis != BATCH and not limits.lo <= size <= (limits.hi or size):
                self.problems.append(
                    f"{axis} is {size} in the example '{name}', outside its limits {limits}"
                )
        sizes = {axis: size for axis, (_, size) in seen.items()}
        given = {**sizes, **{text: size for text, _, size in reversed(sums)}}
        for text in take_sizes(given, find_givers(given, sizes)):
            self.problems.append(f"{text} is {given[text]} in the examples, for no whole size")
        for axis in self.axes:
            if axis in given and axis not in sizes:
                sizes[axis], limits = given[axis], self.axes[axis]
                if axis != BATCH and not limits.lo <= sizes[axis] <= (limits.hi or sizes[axis]):
                    self.problems.append(
                        f"{axis} is {sizes[axis]} in the examples, outside its limits {limits}"
                    )
        for text, name, size in sums:
            if any(axis not in sizes for axis in axes_of(text, self.axes)):
                continue
            wanted, least = size_of(text, sizes), size_span(text, extents)[0]
            if size != wanted:
                self.problems.append(
                    f"{text} is {size} in the example '{name}', but follows as {wanted}"
                )
            if least < 1:
                self.problems.append(
                    f"{text} is {least} at the least sizes: limits must leave at least 1"
                )


def _find_runnable(
    module: nn.Module,
    spec: ModelSpec,
    source: ModelSource,
    examples: Mapping[str, torch.Tensor],
    notes: list[str],
) -> NamedModule:
    """The module with float32 weights; as it is given, if it runs in no other way: its forward may name dtypes.

    Raises:
        ModelError: it fails on its example inputs in both ways.
    """

    def wrapped(plain: nn.Module) -> NamedModule:
        return NamedModule(plain, list(examples), output_names=spec.outputs).eval()

    told: list[str] = []
    plain = wrapped(_to_plain(module, told))
    try:
        _run_example(plain, examples, source.spec, told)
    except ModelError as error:
        given = wrapped(module)
        if not told or "dtype" not in error.message:
            raise
        try:
            _run_example(given, examples, source.spec, ())
        except ModelError:
            raise error from None
        notes.append("weights keep their dtypes, since forward converts to those")
        return given
    notes += told
    return plain


def _to_plain(module: nn.Module, notes: list[str]) -> nn.Module:
    """The module in eval mode with float32 weights; the user's own is copied if it must change."""
    tensors = [*module.parameters(), *module.buffers()]
    other = {str(t.dtype) for t in tensors if t.is_floating_point() and t.dtype != torch.float32}
    if other:
        notes.append(f"weights were {', '.join(sorted(other))}, they are float32 now")
        module = copy.deepcopy(module).float()
    return module.eval()


def _run_example(
    module: nn.Module, examples: Mapping[str, torch.Tensor], spec: str, notes: Sequence[str]
) -> None:
    with torch.no_grad(), redirect_stdout(sys.stderr):
        try:
            # The tensors are the factory's own: whatever the model changes, they stay.
            module(**{name: tensor.clone() for name, tensor in examples.items()})
        except ModelError:
            raise
        except Exception as exc:
            shapes = ", ".join(f"{k} {list(t.shape)} {t.dtype}" for k, t in examples.items())
            raise ModelError(
                f"the model of '{spec}' fails on its example inputs ({shapes}): "
                + describe_error(exc),
                hint=_failure_hint(exc, notes),
            ) from exc


def _failure_hint(exc: Exception, notes: Sequence[str]) -> str:
    """A hint where a module fails on its own example."""
    text = str(exc)
    hints = []
    if "dtype" in text and any(note.startswith("weights were") for note in notes):
        hints.append(
            "all weights are float32 now: let forward convert to the dtype of the weights it "
            "uses (x.to(self.layer.weight.dtype)) instead of to one that it names"
        )
    if "meta" in text:
        hints.append("a tensor on meta has no values: load the weights before you return the model")
    if _GPU.search(text):
        hints.append("everything runs on the CPU here: take what moves to a GPU out of forward")
    return "; ".join([*hints, "`__cause__` shows the traceback"])


def _parameters(module: nn.Module) -> dict[str, bool]:
    """Names of forward's arguments and whether each must be given; stars mark open-ended ones."""
    result = {}
    for name, item in inspect.signature(module.forward).parameters.items():
        if item.kind is item.VAR_POSITIONAL:
            result["*" + name] = False
        elif item.kind is item.VAR_KEYWORD:
            result["**" + name] = False
        else:
            result[name] = item.default is item.empty
    return result


def _span(value: Any) -> AxisLimits | None:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return None
    lo, hi = value
    top = lo if hi is None else hi
    if not (isinstance(lo, int) and isinstance(top, int) and 1 <= lo <= top <= MOST):
        return None
    return AxisLimits(lo, hi)


@dataclass(frozen=True)
class ModelSpec:
    """The specification that a factory returns.

    Attributes:
        module: the model; it is put in eval mode and its weights are converted to float32.
        inputs: example tensors by the names of ``forward``'s arguments, or a sequence of them in
            the arguments' order. The model must work with them.
        axes: Dimensions that vary, for each input: dimension → axis name. Dimensions that share
            a name always have the same size. A size that follows from others is a sum such as
            ``"2*length"``, ``"past+length"`` or ``"length-1"``. Where nothing varies, the examples'
            size is the plan.
        limits: smallest and largest size per axis; None as largest: no limit. Default: from 1 on;
            ``batch`` has 1 unless a batch range is asked for. A plan needs the largest size of every
            axis that its lengths don't count.
        max_length: shorthand for the upper limit of the length axis.
        length_axis: the axis that varies with traffic; default: the one called ``length``, or the
            only one that isn't ``batch``.
        pad: value that fills an input behind its content in pad mode, by input name.
        bounds: Smallest and largest allowed value by input name. Either may be an axis or a sum of
            axes: ``{"lengths": (1, "length")}``. Every run is checked against them.
        masks: inputs that are 1 at real positions and 0 at padding; default: those of integer or
            bool type whose name ends in ``mask``.
        outputs: names for what ``forward`` returns as a tensor or a tuple.
        name: the name of the model.
        tokenizer: path of its ``tokenizer.json``.
    """

    module: nn.Module
    inputs: Mapping[str, Any] | Sequence[Any]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    limits: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    max_length: int | None = None
    length_axis: str | None = None
    pad: Mapping[str, Number] = field(default_factory=dict)
    bounds: Mapping[str, tuple[Bound, Bound]] = field(default_factory=dict)
    masks: Sequence[str] | None = None
    outputs: Sequence[str] | None = None
    name: str | None = None
    tokenizer: str | Path | None = None
