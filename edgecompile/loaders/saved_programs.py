"""ExportedPrograms as models, saved (.pt2) or in memory: their signature has the inputs and axes.

Reading a saved one is as safe as running the model it holds: load only what you trust. Archives
from which torch would run code while it reads them are refused before (``export.archive``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from edgecompile.errors import ModelError
from edgecompile.export.archive import load_program
from edgecompile.export.conditions import input_nodes
from edgecompile.export.ladder import upper_limit
from edgecompile.export.program import fill_bounds
from edgecompile.files import hash_tree
from edgecompile.loaders.input_specs import with_pads
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.modules import NamedModule
from edgecompile.models.options import LoadOptions
from edgecompile.models.probing import probe_model
from edgecompile.models.specs import AxisLimits, InputSpec, axis_sizes
from edgecompile.runtime.format.dtypes import INPUT_NAMES
from edgecompile.runtime.format.sums import find_givers, parse_sum


def load_saved_program(path: Path, options: LoadOptions) -> LoadedModel:
    """A saved ExportedProgram as a model; see :func:`load_program_object`.

    Raises:
        ModelError: the file can't be read, or its signature can't be expressed.
    """
    source = ModelSource("pt2", str(path), hash_tree(path))
    return load_program_object(load_program(path), source, path.stem, options)


def load_program_object(
    program: torch.export.ExportedProgram, source: ModelSource, name: str, options: LoadOptions
) -> LoadedModel:
    """An ExportedProgram as a model.

    Inputs keep their names. Sizes that may vary become axes: one that is the first dimension of
    an input with two dimensions or more is ``batch``, the first other one ``length``, further
    ones ``axis2`` and so on; limits come from the program's range constraints. Integer inputs
    whose name ends in ``mask`` count as masks; pad values of others are given with
    ``options.pad`` (0 for integers that are looked up in a table).

    Args:
        program: the program with its example inputs; weights in float32 on the CPU.
        source: the origin of the model.
        name: its name where the options have none.
        options: options for loading it.

    Raises:
        ModelError: its signature can't be expressed, or its weights aren't float32 on the CPU.
    """
    spec = source.spec
    inputs, axes, positional = _read_signature(spec, program, options)
    _check_weights(spec, program)
    name = options.name or name
    module = NamedModule(program.module(), [item.name for item in inputs], positional=positional)
    # Sizes of the example inputs, for which the program surely works.
    args, kwargs = program.example_inputs or ((), {})
    examples = zip((item.name for item in inputs), [*args, *kwargs.values()], strict=True)
    sizes = axis_sizes(inputs, dict(examples))
    outputs, copied = probe_model(module, inputs, axes, name, sizes)
    return LoadedModel(
        name=name,
        module=module,
        inputs=inputs,
        outputs=outputs,
        axes=axes,
        # Where nothing else varies, what varies with traffic is how much comes at once.
        length_axis=next((axis for axis in ("length", "batch") if axis in axes), None),
        source=source,
        notes=(*_axis_notes(inputs, axes), *copied),
    )


def _check_weights(spec: str, program: torch.export.ExportedProgram) -> None:
    weights = program.state_dict.values()
    devices = {t.device.type for t in weights} - {"cpu"}
    if devices:
        raise ModelError(
            f"'{spec}' has weights on {', '.join(sorted(devices))}: they must have values on the CPU",
            hint="export the model after module.cpu()",
        )
    floats = {str(t.dtype) for t in weights if t.is_floating_point()} - {"torch.float32"}
    if floats:
        raise ModelError(
            f"'{spec}' has weights of {', '.join(sorted(floats))}; only float32 is supported",
            hint="export the model after module.float()",
        )


def _axis_notes(inputs: Sequence[InputSpec], axes: Mapping[str, AxisLimits]) -> tuple[str, ...]:
    """A note on the sizes of several axes: a saved program has lost their names."""
    if len([axis for axis in axes if axis != "batch"]) < 2:
        return ()
    places = {
        axis: f"{axis} is dimension {dim} of '{spec.name}'"
        for spec in reversed(inputs)
        for dim, axis in enumerate(spec.shape)
        if isinstance(axis, str)
    }
    return ("; ".join(places[axis] for axis in axes if axis != "batch"),)


def _read_signature(
    spec: str, program: torch.export.ExportedProgram, options: LoadOptions
) -> tuple[tuple[InputSpec, ...], dict[str, AxisLimits], int]:
    names = [str(name) for name in program.graph_signature.user_inputs]
    values = [node.meta["val"] for node in input_nodes(program)]
    called, positional = _arguments(spec, program, names)
    problems = []
    for name, value in zip(called, values, strict=True):
        if not isinstance(value, torch.Tensor):
            problems.append(f"the input '{name}' is a {type(value).__name__}, not a tensor")
        elif value.device.type != "cpu":
            problems.append(f"the input '{name}' is on {value.device}, not on the CPU")
        elif str(value.dtype).removeprefix("torch.") not in INPUT_NAMES:
            problems.append(f"the input '{name}' is {value.dtype}, which numpy hasn't")
    if problems:
        raise ModelError(f"'{spec}': " + "; ".join(problems))
    symbols = _name_symbols(values)
    unknown = {
        size
        for value in values
        for size in map(str, value.shape)
        if not size.isdigit() and _name_size(size, symbols) is None
    }
    if unknown:
        raise ModelError(
            f"'{spec}': a size is computed from others ({', '.join(sorted(unknown))}), which isn't "
            "a sum of sizes that inputs have",
            hint="export it with one Dim per size that varies",
        )
    specs = [_input_spec(name, value, symbols) for name, value in zip(called, values, strict=True)]
    filled = fill_bounds(program, specs)
    own = tuple(replace(s, pad=0) if s.bounds and s.pad is None else s for s in filled)
    inputs = with_pads(own, options)
    axes = {}
    for symbol, axis in symbols.items():
        ranges = [r for e, r in program.range_constraints.items() if str(e) == symbol]
        upper = upper_limit(ranges[0])
        if axis == "length" and options.max_length is not None:
            upper = min(upper or options.max_length, options.max_length)
        lower = max(1, int(ranges[0].lower))
        if axis == "batch":
            batch = options.batch or (lower, lower)
            if batch[0] < lower or (upper is not None and batch[1] > upper):
                raise ModelError(
                    f"'{spec}': the batch {batch[0]}..{batch[1]} isn't within the program's "
                    f"{AxisLimits(lower, upper)}",
                    hint="give a `batch` within them, a size or (smallest, largest)",
                )
            lower, upper = batch
        axes[axis] = AxisLimits(lower, upper)
    return inputs, axes, positional


def _arguments(
    spec: str, program: torch.export.ExportedProgram, names: Sequence[str]
) -> tuple[list[str], int]:
    """Names of the arguments and how many of them are positional; those have graph names."""
    example = program.example_inputs
    if example is None:
        raise ModelError(
            f"'{spec}' has no example inputs", hint="save it with torch.export.save again"
        )
    args, kwargs = example
    values = [*args, *kwargs.values()]
    if len(values) != len(names) or not all(isinstance(v, torch.Tensor) for v in values):
        raise ModelError(
            f"'{spec}' takes arguments that aren't tensors, or are nested in lists or dicts",
            hint="export a module whose forward takes tensors only",
        )
    return [*names[: len(args)], *map(str, kwargs)], len(args)


def _name_symbols(values: Sequence[Any]) -> dict[str, str]:
    axes: dict[str, str] = {}
    others = 0
    for value in values:
        for dim, size in enumerate(value.shape):
            symbol = str(size)
            if not symbol.isidentifier() or symbol in axes:
                continue
            if dim == 0 and value.dim() > 1 and "batch" not in axes.values():
                axes[symbol] = "batch"
            else:
                others += 1
                axes[symbol] = "length" if others == 1 else f"axis{others}"
    # Symbols of which a sum alone is a size.
    sizes = [str(size).replace(" ", "") for value in values for size in value.shape]
    for symbol, _ in find_givers([s for s in sizes if not s.isdigit()], axes):
        others += 1
        axes[symbol] = "length" if others == 1 else f"axis{others}"
    return axes


def _name_size(size: str, symbols: Mapping[str, str]) -> str | None:
    """A symbolic size as an axis or a sum of axes; None where it is neither."""
    found = parse_sum(size.replace(" ", ""))
    if found is None or any(symbol not in symbols for symbol, _ in found.terms):
        return None
    return str(found._replace(terms=tuple((symbols[s], n) for s, n in found.terms)))


def _input_spec(name: str, value: torch.Tensor, symbols: dict[str, str]) -> InputSpec:
    sizes = [s if isinstance(s, int) else _name_size(str(s), symbols) for s in value.shape]
    shape = tuple(size for size in sizes if size is not None)
    dtype = str(value.dtype).removeprefix("torch.")
    if name.endswith("mask") and not value.dtype.is_floating_point:
        return InputSpec(name, dtype, shape, 0, (0, 1), (1, 1))
    return InputSpec(name, dtype, shape)
