"""Counts what a model does in one run, by running it at a few lengths and looking on.

Products and convolutions are counted by torch's own counter; what it would pass over (the fused
forms of attention, of LSTMs and of transformer layers) runs in its plain form meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from edgecompile.buckets.costs.flops import FlopModel, fit_quadratic
from edgecompile.errors import CostError, ModelError
from edgecompile.export.guards import quiet_torch
from edgecompile.export.ladder import without_fast_path
from edgecompile.models.loaded import LoadedModel
from edgecompile.models.modules import run_module

_TABLES = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_ROUNDING = 1e-12
_LOOKUPS = ("embedding", "embedding_bag")
#: What torch's counter has no formula for.
_FORMULAS = {
    torch.ops.aten.mv: lambda a, *_, **__: 2 * a[0] * a[1],
    torch.ops.aten.addmv: lambda _, a, *__, **___: 2 * a[0] * a[1],
}


class _NoTracker(ModuleTracker):
    """Doesn't look which module is running.

    torch's tracker asks for the gradient function of each input and output of a module. It fails
    where a module gets, or returns, a view of a parameter that was made without gradients.
    """

    def __enter__(self) -> _NoTracker:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class FlopCounter(FlopCounterMode):
    """torch's counter of operations, for their total alone."""

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=_FORMULAS)
        self.mod_tracker = _NoTracker()


def count_work(
    model: LoadedModel,
    lengths: Iterable[int],
    *,
    sizes: Mapping[str, int] | None = None,
) -> FlopModel:
    """Counts a model's work as a function of the length.

    The model runs eagerly at the smallest, the middle and the largest of ``lengths``; of two
    lengths also halfway between, if that is another. Nothing of it is changed.

    Args:
        model: the model.
        lengths: at least one.
        sizes: sizes of axes other than the length axis; an axis without one has its least.

    Raises:
        CostError: there is no length axis, or sizes are missing or outside the model's limits;
            every one is named. Or an operation can't be counted.
        ModelError: the model fails at one of the lengths.
    """
    axis = model.length_axis
    if axis is None:
        raise CostError(f"{model.name} has no length axis, so its work has nothing to vary with")
    ascending = sorted(set(lengths))
    fixed = _other_sizes(model, ascending, sizes or {})
    chosen = _choose(ascending)
    runs = [_run(model, {**fixed, axis: length}) for length in chosen]

    flops = [run.flops for run in runs]
    arithmetic = fit_quadratic(chosen, flops)
    weight_bytes, others = _split_bytes(model.module, runs)
    traffic = fit_quadratic(chosen, others)
    deviation = max(
        abs(arithmetic(n) - count) / max(1, count) for n, count in zip(chosen, flops, strict=True)
    )
    return FlopModel(
        model=model.name,
        length_axis=axis,
        sizes=tuple(sorted(fixed.items())),
        flops_per_element=arithmetic.per_element,
        flops_per_pair=arithmetic.per_pair,
        fixed_flops=arithmetic.fixed,
        weight_bytes=float(weight_bytes),
        fixed_bytes=traffic.fixed,
        bytes_per_element=traffic.per_element,
        bytes_per_pair=traffic.per_pair,
        calls=runs[0].calls or runs[0].functions,
        lengths=tuple(chosen),
        flops=tuple(flops),
        misfit=deviation if deviation > _ROUNDING else 0.0,
        notes=_notes(model.module, runs),
    )


def _other_sizes(
    model: LoadedModel, lengths: Sequence[int], axis_sizes: Mapping[str, int]
) -> dict[str, int]:
    """The sizes of all axes but the length axis."""
    axis = model.length_axis
    assert axis is not None
    problems = [] if lengths else ["no length is given"]
    sizes = {name: limits.lo for name, limits in model.axes.items() if name != axis}
    for name, size in axis_sizes.items():
        if name in sizes:
            sizes[name] = size
        elif name == axis:
            problems.append(f"the size of {name} is given twice: it is the length axis")
        elif name != "batch" or size != 1:  # a model without a batch axis has a batch of one
            axes = ", ".join(sizes) or "none"
            problems.append(f"there is no axis {name}; beside {axis} there are: {axes}")
    for name, size in [*((axis, length) for length in lengths), *sizes.items()]:
        limits = model.axes[name]
        if isinstance(size, bool) or not isinstance(size, int):
            problems.append(f"{name} {size!r} isn't a whole number")
        elif size < max(1, limits.lo) or (limits.hi is not None and size > limits.hi):
            problems.append(f"{name} {size} is outside the model's limits, {limits}")
    if problems:
        raise CostError(f"the work of {model.name} can't be counted: " + "; ".join(problems))
    return sizes


def _choose(lengths: Sequence[int]) -> list[int]:
    """Both ends and a middle: three points decide a quadratic."""
    middle = (lengths[0] + lengths[-1]) / 2
    if len(lengths) > 2:
        inner = min(lengths[1:-1], key=lambda length: abs(length - middle))
    else:
        inner = int(middle)
    return sorted({lengths[0], inner, lengths[-1]})


@dataclass
class _Run:
    """Counts of one run.

    Attributes:
        flops: operations that torch's counter knows.
        calls, written: calls of leaf modules that returned new tensors, and bytes of these.
        functions, results: the same counts for torch's functions that the model's Python code
            calls.
        rows: the number of rows that were looked up, by the identity of the table.
        read: identities of tensors that went into other functions.
        silent: types by name of leaf modules with matrices of weights and no products.
    """

    flops: int = 0
    calls: int = 0
    written: int = 0
    functions: int = 0
    results: int = 0
    rows: Counter[int] = field(default_factory=Counter)
    read: set[int] = field(default_factory=set)
    silent: dict[str, str] = field(default_factory=dict)


def _run(model: LoadedModel, sizes: Mapping[str, int]) -> _Run:
    """Runs the model once and looks on."""
    seen = _Run()
    inputs = model.make_example(sizes)
    failure: ModelError | None = None
    with (
        quiet_torch(),
        _unchanged(model.module),
        without_fast_path(),
        torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounter() as counter,
        _watched_modules(model.module, counter, seen),
        _WatchedFunctions(seen),
    ):
        try:
            run_module(model.module, inputs, model.name)
        except ModelError as error:
            failure = error
    if failure is not None:
        with _unchanged(model.module):
            model.run(inputs)  # raises where the model itself fails
        raise CostError(
            f"the work of {model.name} can't be counted: {failure.message}, but only while its "
            "operations are counted",
            hint="`quick=True` needs no costs, and a calibration brings measured ones",
        ) from failure
    seen.flops = int(counter.get_total_flops())
    return seen


def _split_bytes(module: torch.nn.Module, runs: Sequence[_Run]) -> tuple[int, list[int]]:
    """Bytes of weights read from end to end in every run, and the other bytes that move in each run.

    A parameter that is only ever looked up rows of is no weight to read, but its rows are.
    """
    read = {identity for run in runs for identity in run.read}
    looked_up = {identity for run in runs for identity in run.rows} - read
    tensors = {id(t): t for t in (*module.parameters(), *module.buffers())}
    whole = sum(byte_size(t) for identity, t in tensors.items() if identity not in looked_up)
    tables = {identity: tensors[identity] for identity in looked_up if identity in tensors}
    others = []
    for run in runs:
        written = run.written if run.calls else run.results
        rows = sum(
            min(run.rows[identity], table.shape[0]) * byte_size(table) // table.shape[0]
            for identity, table in tables.items()
        )
        others.append(2 * written + rows)
    return whole, others


@contextmanager
def _watched_modules(module: torch.nn.Module, counter: FlopCounter, seen: _Run) -> Iterator[None]:
    """Hooks on the leaf modules for as long as the context lasts."""
    before: list[int] = []

    def enter(_leaf: torch.nn.Module, _args: Any) -> None:
        before.append(counter.get_total_flops())

    def leave(name: str, leaf: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        written = _fresh_bytes((args, kwargs), output)
        seen.calls += bool(written)
        seen.written += written
        idle = counter.get_total_flops() == before.pop() and not isinstance(leaf, _TABLES)
        if idle and any(p.ndim > 1 and p.is_floating_point() for p in leaf.parameters()):
            seen.silent[name] = type(leaf).__name__

    with ExitStack() as stack:
        for name, leaf in module.named_modules():
            if next(leaf.children(), None) is None:
                stack.callback(leaf.register_forward_pre_hook(enter).remove)
                hook = leaf.register_forward_hook(partial(leave, name), with_kwargs=True)
                stack.callback(hook.remove)
        yield


class _WatchedFunctions(TorchFunctionMode):
    """Sees torch's functions as the model's code calls them, not what they are made of."""

    def __init__(self, seen: _Run) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = list(tensors_in((args, kwargs or {})))
        name = getattr(func, "__name__", "").partition(".")[0]
        table = next((t for t in tensors if t.ndim == 2 and t.is_floating_point()), None)
        indices = next((t for t in tensors if not t.is_floating_point()), None)
        if name in _LOOKUPS and table is not None and indices is not None:
            self.seen.rows[id(table)] += indices.numel()
        elif next(tensors_in(result), None) is not None:
            self.seen.read.update(id(tensor) for tensor in tensors)
        written = _fresh_bytes(tensors, result)
        self.seen.functions += bool(written)
        self.seen.results += written
        return result


def _fresh_bytes(arguments: Any, result: Any) -> int:
    """Bytes of the results that aren't views of what was given, nor that itself."""
    places = {storage_of(tensor) for tensor in tensors_in(arguments)}
    fresh = {
        storage_of(tensor): tensor
        for tensor in tensors_in(result)
        if storage_of(tensor) not in places
    }
    return sum(map(byte_size, fresh.values()))


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the memory that a tensor shares with its views; 0 without elements."""
    return int(tensor.untyped_storage().data_ptr())


def byte_size(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


@contextmanager
def _unchanged(module: torch.nn.Module) -> Iterator[None]:
    """Lets the module run on copies of its buffers, in eval mode, without using up randomness."""
    parts = list(module.modules())
    modes = [part.training for part in parts]
    buffers = [(part, *item) for part in parts for item in part.named_buffers(recurse=False)]
    copies = {id(buffer): buffer.clone() for _, _, buffer in buffers}
    try:
        with torch.random.fork_rng(devices=[]):
            for part, name, buffer in buffers:
                setattr(part, name, copies[id(buffer)])
            for part in parts:
                part.training = False  # exported modules refuse eval()
            yield
    finally:
        for part, name, buffer in buffers:
            setattr(part, name, buffer)
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def _notes(module: torch.nn.Module, runs: Sequence[_Run]) -> tuple[str, ...]:
    notes = []
    silent = {name: kind for run in runs for name, kind in run.silent.items()}
    if silent:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(Counter(silent.values()).items()))
        notes.append(f"no products were counted in {kinds}, though they have matrices of weights")
    if any(isinstance(part, torch.nn.RNNBase) for part in module.modules()):
        notes.append(
            "a recurrence goes step by step, reads its weights at every step and reaches far less "
            "of the peak than large products do, so it costs more than modelled"
        )
    if not all(run.calls for run in runs):
        notes.append(
            "the model calls no modules, so the result of every operation counts as memory traffic"
        )
    return tuple(notes)
