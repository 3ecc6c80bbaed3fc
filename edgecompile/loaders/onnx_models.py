"""ONNX files as models: named dimensions are axes, and ONNX Runtime checks what was imported.

Builds compare a bundle with the imported module, in eager mode. That this module computes what the file
says is checked here, at several sizes, where onnxruntime is installed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from edgecompile.errors import ModelError
from edgecompile.files import file_sha256
from edgecompile.loaders.factory_specs import ModelSpec, build_model
from edgecompile.loaders.input_specs import read_sum
from edgecompile.models.loaded import LoadedModel, ModelSource
from edgecompile.models.modules import NamedModule, describe_error
from edgecompile.models.options import LoadOptions
from edgecompile.models.specs import BATCH, batch_problem
from edgecompile.onnx_import.graph import Value
from edgecompile.onnx_import.importer import Imported, import_onnx, plain_names
from edgecompile.onnx_import.operators.attention import numbers_for_nan
from edgecompile.onnx_import.reference import difference, open_reference
from edgecompile.runtime.format.sums import AxisSum

# Names that converters make up where the model's author gave none.
_MADE_UP = re.compile(r"unk__\d+|p2o\.DynamicDimension\.\d+|\w*_dim_\d+|[ds]\d+")
_BATCH_NAMES = ("N", "n", "B", "b", "bs")
_LENGTH_NAMES = re.compile(r"length|seq|time|frame|width|len", re.IGNORECASE)
#: Sizes at which a model may run, the likely ones first: strides ask for multiples of powers of two.
_SIZES = (16, 64, 32, 128, 48, 11, 256, 512, 576, 640, 1)
#: Bytes, or at least truth values.
_FREE = (255, 1)
_MORE = (1.0, 0.5, 2.0, 3.0)
#: Differences that rounding explains, as parts of an output's largest number.
_TOLERANCE, _ROUNDED = 3e-2, 0.1


def load_onnx(path: Path, options: LoadOptions) -> LoadedModel:
    """An ONNX file as a model.

    Raises:
        ModelError: the file is broken, has operators that aren't taken, runs at no size that was tried, or
            computes something else than ONNX Runtime does.
        MissingDependencyError: the package onnx isn't installed.
    """
    imported = import_onnx(path, shapes=options.input_shape, fixed=options.fixed_input)
    notes = [f"the input '{name}' is always {n}" for name, n in options.fixed_input.items()]
    names = plain_names(value.name for value in imported.inputs)
    shapes = _name_axes(imported.inputs, names, notes)
    if options.state and options.batch in (None, (1, 1)):
        # A state keeps its sizes, and a stream has one batch.
        shapes = {n: [1 if size == BATCH else size for size in s] for n, s in shapes.items()}
    known = _Inputs(imported, names, shapes, _bounds(imported, names, shapes))
    _check_batch(path, shapes, options)
    inputs, sizes, free, bounds = _example(path, known)
    known = replace(known, bounds=bounds)
    _compare(path, known, sizes, free, notes)
    outputs = plain_names(imported.outputs)
    module = NamedModule(
        imported.module,
        list(names.values()),
        output_names=list(outputs.values()),
        positional=len(names),
    )
    spec = ModelSpec(
        module=module,
        inputs=inputs,
        axes={n: {d: a for d, a in enumerate(s) if isinstance(a, str)} for n, s in shapes.items()},
        length_axis=_length_axis(sizes, notes),
        pad=dict.fromkeys(bounds, 0),
        bounds=dict(bounds),
        state={names.get(a, a): outputs.get(b, b) for a, b in options.state.items()},
    )
    # Links are followed: weights lie beside the file itself.
    real = path.resolve()
    hashes = {path.name: file_sha256(real)}
    hashes.update((name, file_sha256(real.parent / name)) for name in imported.files)
    source = ModelSource("onnx", str(path), hashes)
    loaded = build_model(spec, source, path.stem, options)
    return _with_notes(loaded, notes)


def _with_notes(loaded: LoadedModel, notes: Sequence[str]) -> LoadedModel:
    return replace(loaded, notes=(*notes, *loaded.notes))


def _check_batch(
    path: Path, shapes: Mapping[str, Sequence[int | str]], options: LoadOptions
) -> None:
    problem = batch_problem({str(size) for s in shapes.values() for size in s}, options.batch)
    if problem is not None:
        name = next(iter(options.input_shape), None)
        cure = f"export the file with '{BATCH}' as the name of the first dimension of its inputs"
        if name is not None:
            cure = f"`input_shape` gives {name} no dimension '{BATCH}'; where the file fixes it, {cure}"
        raise ModelError(f"'{path}': {problem}", hint=cure)


def _name_axes(
    inputs: Sequence[Value], names: Mapping[str, str], notes: list[str]
) -> dict[str, list[int | str]]:
    """The inputs' shapes, with names for all that varies; ``notes`` gets what was made up."""
    given = [d for value in inputs for d in value.shape if isinstance(d, str)]
    sums = _sums(given)
    axes = plain_names(name for name in dict.fromkeys(given) if name not in sums)
    batches = [
        name
        for value in inputs
        for dim, name in enumerate(value.shape)
        if name in axes and _is_batch(str(name), dim, len(value.shape))
    ]
    if batches and BATCH not in axes.values():
        axes[batches[0]] = BATCH
    result: dict[str, list[int | str]] = {}
    for value in inputs:
        own = names[value.name]
        shape: list[int | str] = []
        for dim, size in enumerate(value.shape):
            if isinstance(size, int):
                shape.append(size)
            elif size is None:
                first = dim == 0 and len(value.shape) > 1
                shape.append(BATCH if first else f"{own}_{dim}")
                notes.append(f"dimension {dim} of '{own}' has no name; it is called {shape[-1]}")
            elif size in axes:
                shape.append(axes[size])
            else:
                terms = tuple((axes[name], factor) for name, factor in sums[size].terms)
                shape.append(str(AxisSum(terms, sums[size].constant)))
        result[own] = shape
    notes += [f"the axis '{n}' is called {a}" for n, a in axes.items() if n != a]
    return result


def _sums(names: Sequence[str]) -> dict[str, AxisSum]:
    """The names that are sums of others; a sign between other words is a part of a name."""
    found = {name: read_sum(name) for name in names}
    single = {name for name, read in found.items() if read is None or read.terms == ((name, 1),)}
    return {
        name: read
        for name, read in found.items()
        if read and read.terms and name not in single and single.issuperset(dict(read.terms))
    }


def _is_batch(name: str, dim: int, rank: int) -> bool:
    if "batch" in name.lower():
        return True
    likely = name in _BATCH_NAMES or _MADE_UP.fullmatch(name) is not None
    return dim == 0 and rank > 1 and likely


def _length_axis(sizes: Mapping[str, int], notes: list[str]) -> str | None:
    others = [axis for axis in sizes if axis != BATCH]
    if len(others) < 2:
        return None
    chosen = _likely_length(others)
    notes.append(f"lengths count {chosen}, one of the axes {', '.join(others)}")
    return chosen


def _likely_length(axes: Sequence[str]) -> str:
    likely = [axis for axis in axes if _LENGTH_NAMES.search(axis)]
    return (likely or axes)[0]


@dataclass(frozen=True)
class _Inputs:
    """The inputs of an imported module, by plain names.

    Attributes:
        imported: the module, with its inputs as the file has them.
        names: their plain names, by those in the file.
        shapes: their sizes; a text is a sum of axes.
        bounds: the least and the largest number of those that read a table, or count steps: at most an axis.
    """

    imported: Imported
    names: Mapping[str, str]
    shapes: Mapping[str, Sequence[int | str]]
    bounds: Mapping[str, tuple[int, int | str]]

    @property
    def lengths(self) -> set[str]:
        """The inputs that are lengths of sequences."""
        return {self.names[name] for name in self.imported.lengths}

    def draw(self, sizes: Mapping[str, int], free: int) -> dict[str, torch.Tensor]:
        """Random inputs of these sizes; whole numbers of which no table says more are at most ``free``."""
        source = torch.Generator().manual_seed(sum(sizes.values()))
        result = {}
        for value in self.imported.inputs:
            name = self.names[value.name]
            shape = [x if isinstance(x, int) else _size(x, sizes) for x in self.shapes[name]]
            if value.dtype.is_floating_point:
                result[name] = torch.randn(shape, generator=source).to(value.dtype)
            elif name.endswith("mask"):
                result[name] = torch.ones(shape, dtype=value.dtype)
            else:
                top = self.bounds.get(name, (0, free if shape else 1))[1]
                top = sizes[top] if isinstance(top, str) else top
                drawn = torch.randint(0, top + 1, shape, generator=source)
                if name in self.lengths and drawn.numel():
                    drawn.view(-1)[0] = (
                        top  # whether a layer has so many steps shows with the longest
                    )
                result[name] = drawn.to(value.dtype)
        return result


def _size(text: str, sizes: Mapping[str, int]) -> int:
    found = read_sum(text)
    assert found is not None  # its name was made so
    return sum(sizes[axis] * factor for axis, factor in found.terms) + found.constant


def _axes(shapes: Mapping[str, Sequence[int | str]]) -> Iterator[str]:
    for shape in shapes.values():
        for size in shape:
            found = read_sum(size) if isinstance(size, str) else None
            yield from (axis for axis, _ in found.terms) if found else ()


def _bounds(
    imported: Imported, names: Mapping[str, str], shapes: Mapping[str, Sequence[int | str]]
) -> dict[str, tuple[int, int | str]]:
    """Bounds of the inputs that read tables, and of lengths: the axis of lengths, if there is one.

    Where the steps are fixed, :func:`_with_steps` bounds lengths.
    """
    bounds: dict[str, tuple[int, int | str]] = {
        names[name]: (0, rows - 1) for name, rows in imported.rows.items()
    }
    axes = [axis for axis in dict.fromkeys(_axes(shapes)) if axis != BATCH]
    if axes:
        axis = _likely_length(axes)
        bounds.update((names[name], (0, axis)) for name in imported.lengths)
    return bounds


_Example = tuple[dict[str, torch.Tensor], dict[str, int], int, Mapping[str, tuple[int, int | str]]]


def _example(path: Path, known: _Inputs) -> _Example:
    """Inputs with which the module runs, the axes' sizes, the largest of unbounded numbers, and the bounds.

    Lengths have no bound where a layer has fewer steps than the axis says.

    Raises:
        ModelError: it runs at none of the sizes that are tried; says what the first one gave.
    """
    axes = list(dict.fromkeys(_axes(known.shapes)))
    if known.lengths and not set(axes) - {BATCH}:
        known = _with_steps(known)
    first: Exception | None = None
    unbounded = {n: ends for n, ends in known.bounds.items() if not isinstance(ends[1], str)}
    tried = [known] if unbounded == known.bounds else [known, replace(known, bounds=unbounded)]
    for size in _SIZES if set(axes) - {BATCH} else (1,):
        sizes = {axis: 1 if axis == BATCH else size for axis in axes}
        for free, inputs_of in itertools.product(_FREE, tried):
            inputs = inputs_of.draw(sizes, free)
            try:
                with torch.no_grad():
                    known.imported.module(*inputs.values())
                return inputs, sizes, free, inputs_of.bounds
            except Exception as error:
                first = first or error
    assert first is not None
    if isinstance(first, ModelError):
        raise first
    raise ModelError(f"'{path}' runs at no size that was tried: {describe_error(first)}") from first


def _with_steps(known: _Inputs) -> _Inputs:
    """The inputs, with lengths up to the fixed number of steps; unbounded where no input has as many.

    It is a size that the module takes as a length, where one more is refused.
    """
    sizes = {axis: 1 for axis in _axes(known.shapes)}

    def up_to(steps: int) -> _Inputs:
        return replace(known, bounds={**known.bounds, **dict.fromkeys(known.lengths, (0, steps))})

    def runs(inputs_of: _Inputs) -> bool:
        for free in _FREE:
            try:
                with torch.no_grad():
                    known.imported.module(*inputs_of.draw(sizes, free).values())
                return True
            except Exception:  # whatever a node says to such inputs
                continue
        return False

    fixed = {
        size
        for name, shape in known.shapes.items()
        for size in shape[:2]  # the batch may come first
        if isinstance(size, int) and name not in known.lengths
    }
    for steps in sorted(fixed, reverse=True):
        if runs(up_to(steps)) and not runs(up_to(steps + 1)):
            return up_to(steps)
    return known


def _compare(
    path: Path, known: _Inputs, sizes: Mapping[str, int], free: int, notes: list[str]
) -> None:
    """Compares the module with ONNX Runtime at several sizes; a note says what was compared.

    Raises:
        ModelError: they differ.
    """
    imported, names = known.imported, known.names
    reference = open_reference(path.resolve(), imported.inputs, imported.fixed)
    if reference is None:
        notes.append(
            "ONNX Runtime isn't here, or doesn't run this file: the import isn't checked against it"
        )
        return
    quantized = any("Quantize" in node.operator for node in imported.module.nodes)
    hidden = any(map(numbers_for_nan, imported.module.nodes))
    compared, worst = [], 0.0
    for factor in _MORE if sizes else (1.0,):
        tried = {axis: max(1, int(size * factor)) for axis, size in sizes.items()}
        inputs = known.draw(tried, free)
        given = {value.name: inputs[names[value.name]] for value in imported.inputs}
        text = ", ".join(f"{axis} {size}" for axis, size in tried.items()) or "its one size"
        try:
            wanted = reference.run(given)
        except Exception:  # a size that the model can't have
            continue
        if hidden and any(bool(result.isnan().all()) for result in wanted):
            continue  # nothing would differ
        try:
            with torch.no_grad():
                results = imported.module(*inputs.values())
        except Exception as error:
            if any(result.isnan().all() for result in wanted):
                continue  # an empty result, too: a pool was larger than what it pools
            raise ModelError(
                f"'{path}': ONNX Runtime runs the model with {text}, and its import doesn't: {describe_error(error)}",
                hint="this is a defect of edgecompile; please report it with the model",
            ) from error
        for name, a, b in zip(imported.outputs, results, wanted, strict=True):
            apart = difference(a, b, hidden)
            worst = max(worst, apart)
            if apart > (_ROUNDED if quantized else _TOLERANCE):
                raise ModelError(
                    f"'{path}': the imported output '{name}' differs from ONNX Runtime's by {apart:.3g} of its "
                    f"largest number, with {text}",
                    hint="this is a defect of edgecompile; please report it with the model",
                )
        compared.append(text)
    if not compared:
        notes.append(
            "ONNX Runtime gives numbers at no size that was tried: the import isn't checked against it"
        )
        return
    notes.append(
        f"the import was compared with ONNX Runtime {reference.version} ({'; '.join(compared)}): the largest "
        f"difference is {worst:.1e} of an output's largest number"
    )
