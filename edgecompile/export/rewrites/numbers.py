"""Python's mathematics of sizes that vary: roots, logarithms, powers, and the lengths of tensors.

``math``'s functions turn a size into a float, which fixes it, as ``len`` does. While :func:`symbolic_math` is entered,
they give a symbol where they get one.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch

from edgecompile.export.rewrites.boxes import branching_functions
from edgecompile.export.rewrites.logarithms import Logarithm, logarithm
from edgecompile.export.rewrites.symbols import Size, is_symbol, sym_float, sym_int
from edgecompile.models.source_lines import is_user_code

#: Most powers of two that a size is compared with.
_MOST_BITS = 64


def _log(x: Size, base: float = math.e) -> Any:
    if base == math.e:
        return logarithm(x, math.log)
    return logarithm(x, lambda n: math.log(n, base), base)


#: For symbols, by the names of ``math``'s functions.
_OWN: dict[str, Callable[..., Any]] = {
    # A power is what ONNX has a translation of, too.
    "sqrt": lambda x: sym_float(x) ** 0.5,
    # Half of 1 more: the root of a square, in float32 too, may be rounded to less than a whole number.
    "isqrt": lambda x: sym_int((sym_float(x) + 0.5) ** 0.5),
    "log": _log,
    "log2": lambda x: logarithm(x, math.log2, 2),
    "log10": lambda x: logarithm(x, math.log10, 10),
    "log1p": lambda x: logarithm(x, math.log1p, added=1),
    "exp": lambda x: math.e ** sym_float(x),
    "pow": lambda x, y: sym_float(x) ** sym_float(y),
}


def _bit_length(x: Size) -> int:
    """``int.bit_length`` of a size, with the range over which it is the same as conditions."""
    for bits in range(_MOST_BITS):
        if -(1 << bits) < x < 1 << bits:
            return bits
    raise OverflowError(f"a size of over {_MOST_BITS} bits")


def _round(x: Size, ndigits: int | None = None) -> Any:
    """``round`` by floors: torch can't write a symbol's own into checks within a graph."""
    if ndigits is not None or isinstance(x, (torch.SymInt, Logarithm)):
        return x.__round__(ndigits)
    low, high = (x - 0.5).__ceil__(), (x + 0.5).__floor__()
    # Halfway between two whole numbers, where these two differ, it is the even one.
    return low + low % 2 * (high - low)


def _length(x: Any) -> Any:
    """``len``, and of a tensor its first size as it is: Python's own gives an int, which fixes it."""
    return x.shape[0] if isinstance(x, torch.Tensor) and x.dim() else len(x)


class _Cast(type):
    """A class that stands for ``int`` or ``float`` and gives symbols for symbols."""

    plain: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.plain)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.plain)

    # So that ``type(x) == int`` holds, and a table by type has it.
    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.plain

    def __hash__(cls) -> int:
        return hash(cls.plain)


def _cast(plain: type, symbolic: Callable[[Size], Size]) -> type:
    def new(_: type, *args: Any, **kwargs: Any) -> Any:
        return symbolic(*args) if any(map(is_symbol, args)) else plain(*args, **kwargs)

    # numpy asks a class that it doesn't know for its dtype.
    own = {"__new__": new, "plain": plain, "dtype": np.dtype(plain)}
    return _Cast(plain.__name__, (plain,), own)


_CASTS = {"int": _cast(int, sym_int), "float": _cast(float, sym_float)}
#: torch's functions that take a dtype: of classes they know Python's own alone.
_TYPED: dict[Any, str] = {
    torch: """
        arange as_tensor asarray bartlett_window blackman_window cumprod cumsum empty empty_like eye full
        full_like hamming_window hann_window kaiser_window linspace log_softmax logspace mean nanmean nansum
        ones ones_like prod rand rand_like randint randn randn_like scalar_tensor softmax sum tensor
        tril_indices triu_indices zeros zeros_like
    """,
    torch.Tensor: """
        cumprod cumsum log_softmax mean nanmean nansum new_empty new_full new_ones new_tensor new_zeros prod
        softmax sum to
    """,
}
#: One thread at a time replaces: another would take what it finds for the originals.
_REPLACING = threading.RLock()


@contextmanager
def symbolic_math(casts: bool = False) -> Iterator[None]:
    """Lets mathematics of sizes keep them varying, until it is left.

    Replaces ``math`` and its functions in the modules that aren't torch's or Python's own, which
    compare them with the originals, and gives sizes the methods that numpy's functions call. torchvision's
    functions that branch on a size and, for tensors, ``len`` are replaced as well.

    Args:
        casts: replace ``int``, ``float`` and ``round`` there, too. Code that asks whether a type *is* one of
            them notices.

    Numbers are computed as before, also by other threads; one that enters waits until this one has left.
    """
    with _REPLACING, _replaced(_places(casts)):
        yield


def _places(casts: bool) -> list[tuple[Any, str, Any]]:
    """The replacements: the owner of each attribute, its name, and its value meanwhile."""
    symbolic = ModuleType("math")
    vars(symbolic).update(vars(math))
    replaced: dict[int, Any] = {id(math): symbolic}
    for name, own in _OWN.items():
        original = getattr(math, name)
        setattr(symbolic, name, _for_symbols(original, own))
        replaced[id(original)] = getattr(symbolic, name)
    replaced.update({id(original): own for original, own in branching_functions()})
    places: list[tuple[Any, str, Any]] = [(torch.SymInt, "bit_length", _bit_length)]
    modules = [item for item in list(sys.modules.values()) if isinstance(item, ModuleType)]
    for module in {id(item): item for item in modules}.values():
        file = getattr(module, "__file__", None)
        if is_user_code(file) if file else module.__name__ == "__main__":
            known = [(name, replaced.get(id(item))) for name, item in list(vars(module).items())]
            places += [(module, name, own) for name, own in known if own is not None]
            builtins: dict[str, Any] = {"len": _length}
            if casts:
                builtins |= {"round": _for_symbols(round, _round), **_CASTS}
            places += [(module, n, v) for n, v in builtins.items() if n not in vars(module)]
    for kind in (torch.SymInt, torch.SymFloat):
        methods = ("sqrt", "log", "log2", "log10", "log1p", "exp")
        places += [(kind, name, getattr(symbolic, name)) for name in methods]
    for owner, names in _TYPED.items() if casts else ():
        places += [(owner, name, _with_types(getattr(owner, name))) for name in names.split()]
    return places


def _with_types(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original`` with Python's own types for those that stand for them."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("dtype"), _Cast):
            kwargs["dtype"] = kwargs["dtype"].plain
        return original(*(a.plain if isinstance(a, _Cast) else a for a in args), **kwargs)

    return function


def _for_symbols(original: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        return (own if any(map(is_symbol, args)) else original)(*args, **kwargs)

    return function


@contextmanager
def _replaced(places: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Sets attributes, and puts back what was there."""
    missing = object()
    before = [(owner, name, vars(owner).get(name, missing)) for owner, name, _ in places]
    try:
        for owner, name, value in places:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            if value is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
