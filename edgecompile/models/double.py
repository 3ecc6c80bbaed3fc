"""Runs a model of float32 or half precision in float64: the reference that rounding is measured against."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from operator import is_
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from edgecompile.models.definite import definite
from edgecompile.runtime.gpu.device import main_memory

_DTYPE_OF = Tensor.dtype.__get__  # type: ignore[attr-defined]
# An operator makes scratch of its own beside its operands, such as a transposed weight.
_SCRATCH = 1.5
# How far below a module's attributes objects are searched for tables that it made.
_DEPTH = 4


def _grouped_mm(a: Tensor, b: Tensor, offs: Tensor, *_: Any, **__: Any) -> Tensor:
    """``torch.nn.functional.grouped_mm`` of rows [T, K] and matrices [E, K, N], which has no float64."""
    ends = offs.tolist()
    starts = [0, *ends[:-1]]
    parts = [a[i:j] @ m for i, j, m in zip(starts, ends, b, strict=True)]
    rest = a.new_zeros(a.shape[0] - ends[-1], b.shape[2])
    return torch.cat([*parts, rest])


#: The types of half precision.
HALVES = (torch.bfloat16, torch.float16)
#: What becomes float64: what models compute in.
_NARROW = (torch.float32, *HALVES)
#: What computes in one of these by its name, or has no float64.
_NAMED: Mapping[str, Callable[..., Tensor]] = {
    "float": Tensor.double,
    "half": Tensor.double,
    "bfloat16": Tensor.double,
    "_grouped_mm": _grouped_mm,
}


class InFloat64(TorchFunctionMode):
    """Every torch function called meanwhile computes in float64 where it would in float32 or half precision.

    Tensors of these types are widened as they are read, weights too, so a model needs no second copy of
    its weights: memory for those that a call reads is enough. A ``dtype`` of these that a model names
    becomes float64, as does the type that a tensor tells. Numbers of other types stay as they are, and
    autocast leaves float64 alone.

    Code that torch doesn't show to modes (TorchScript) computes as it would otherwise, or fails.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if func == _DTYPE_OF:
            return _wide_dtype(func(*args))
        if name in ("__get__", "__set__"):
            return func(*args)
        func = _NAMED.get(name, func)
        return widen(func(*widen(tuple(args)), **widen(dict(kwargs or {}))))


def run_in_float64(
    run: Callable[..., Mapping[str, Tensor]],
    inputs: Mapping[str, Tensor],
    kept: Kept | None = None,
) -> Mapping[str, Tensor]:
    """The results of a module, or of a function, for inputs that it may change, in float64.

    A module keeps nothing of this run: what it made and stored, such as a table of positions, is dropped.

    Args:
        run: the module or function.
        inputs: its keyword arguments.
        kept: the module's attributes as an earlier run found them; None: they are searched for.
    """
    wide = widen(dict(inputs))  # before the mode is on: with it a tensor's type can't be told
    if kept is None and isinstance(run, nn.Module):
        kept = Kept(run)
    with kept.unchanged() if kept else nullcontext(), torch.no_grad(), definite(), InFloat64():
        return run(**wide)


class Kept:
    """The attributes and items of a module, and of the objects and containers that it holds.

    They are searched for again only where one of them has changed since: else it holds no others.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._known: list[tuple[_Holder, _Holder]] = []

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Gives all of them back to the module, as they were before."""
        if not self._known or not all(_same(*pair) for pair in self._known):
            holders = _holders(self._module, _DEPTH, set())
            self._known = [(holder, holder.copy()) for holder in holders]
        try:
            yield
        finally:
            for holder, items in self._known:
                if _same(holder, items):
                    continue
                holder.clear()
                if isinstance(holder, dict):
                    holder.update(items)
                else:
                    holder.extend(items)


_Holder = dict[Any, Any] | list[Any]


def _holders(value: Any, depth: int, seen: set[int]) -> Iterator[_Holder]:
    """The dicts and lists of a value's attributes and items, each once."""
    if id(value) in seen or depth < 0 or isinstance(value, (Tensor, str, bytes, *_NOT_HELD)):
        return
    seen.add(id(value))
    module = isinstance(value, nn.Module)
    if module:
        depth = _DEPTH
    items: Sequence[Any] = ()
    if type(value) in _CONTAINERS:
        yield value
        items = list(value.values() if isinstance(value, dict) else value)
    elif type(value) is tuple:
        items = value
    elif not module and type(value).__module__.partition(".")[0] == "torch":
        return  # a graph's nodes and the like are no model's tables
    elif isinstance(own := getattr(value, "__dict__", None), dict):
        yield own
        items = list(own.values())
    for item in items:
        # A module's own dicts of buffers and submodules are no level of depth.
        yield from _holders(item, depth - (not module), seen)


_CONTAINERS = (dict, list, OrderedDict, defaultdict)
_NOT_HELD = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
)


def _same(holder: _Holder, items: _Holder) -> bool:
    """Whether a holder has the very keys and items that its copy has, in the same order."""
    if len(holder) != len(items) or not all(map(is_, holder, items)):
        return False
    if isinstance(holder, dict) and isinstance(items, dict):
        return all(map(is_, holder.values(), items.values()))
    return True


def widen(value: Any) -> Any:
    """The value with float64 in the place of narrower types: tensors, dtypes, and lists and dicts of them."""
    if isinstance(value, Tensor):
        return value.double() if value.dtype in _NARROW else value
    if type(value) in (list, tuple):
        return type(value)(widen(item) for item in value)
    if type(value) is dict:
        return {key: widen(item) for key, item in value.items()}
    return _wide_dtype(value)


def _wide_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


class Footprint(TorchFunctionMode):
    """Counts the numbers that torch's functions hold at a time in a model's own run.

    In float64 weights are widened as they are read. A view of a weight keeps its copy as long as it
    lives, so views count as the tensors that they would be copies of.

    Attributes:
        most: largest count of numbers, of float32 and narrower, of living results and of the operands of a call.
        halves: whether a result was in half precision.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self.halves = False
        self._alive: dict[int, ref[Tensor]] = {}
        self._held = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("__get__", "__set__"):
            return result
        made = list(_tensors(result))
        self.halves = self.halves or any(tensor.dtype in HALVES for tensor in made)
        read = sum(t.numel() for t in _tensors((args, kwargs)) if id(t) not in self._alive)
        for tensor in made:
            self._hold(tensor)
        self.most = max(self.most, self._held + read)
        return result

    def _hold(self, tensor: Tensor) -> None:
        key = id(tensor)
        if key in self._alive:
            return
        count = tensor.numel()
        with suppress(RuntimeError, NotImplementedError):  # a tensor of vmap has no storage to ask
            # An expanded tensor has more numbers than memory.
            count = min(count, tensor.untyped_storage().nbytes() // tensor.element_size())

        def drop(_: ref[Tensor]) -> None:
            del self._alive[key]
            self._held -= count

        self._alive[key] = ref(tensor, drop)
        self._held += count


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors among arguments or results that float64 would widen."""
    if isinstance(value, Tensor):
        if value.dtype in _NARROW and value.layout == torch.strided:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def lacks_room(numbers: int) -> str:
    """The reason why so many numbers have no room in float64 in the memory that is left; "" if they have.

    Args:
        numbers: count of them, as of :attr:`Footprint.most`.
    """
    room = main_memory()
    needed = int(_SCRATCH * 8 * numbers)
    if room is None or needed <= room:
        return ""
    return f"float64 takes {needed / 2**30:.1f} GiB, {room / 2**30:.1f} GiB are free"
