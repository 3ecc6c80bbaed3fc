"""Makes eager torch definite where it leaves results open, in the way that the runtime is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
_memory: Any = torch.utils.deterministic
_lock = threading.Lock()
#: How many are within, and the settings that the first of them found.
_within = 0
_found = (False, False, True)


@contextmanager
def definite() -> Iterator[None]:
    """Lets the last of several writes to one place win, and equal values keep their order in sorts.

    Eager's threads race for a place from about 3,000 written elements on, and its sorts and selections of
    equal values take them in any order. A reference can't be that.

    torch's setting for writes is the process's: other threads write so, too, until the last one has left.
    """
    with _Definite():
        _enter()
        try:
            yield
        finally:
            _leave()


def _enter() -> None:
    global _within, _found
    with _lock:
        if not _within:
            _found = (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                _memory.fill_uninitialized_memory,
            )
            torch.use_deterministic_algorithms(True, warn_only=True)
            _memory.fill_uninitialized_memory = False
        _within += 1


def _leave() -> None:
    global _within
    with _lock:
        _within -= 1
        if not _within:
            torch.use_deterministic_algorithms(_found[0], warn_only=_found[1])
            _memory.fill_uninitialized_memory = _found[2]


class _Definite(TorchFunctionMode):
    """Makes every sort stable, and every selection the first places of one; ``put`` writes as an index does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule, kwargs = _RULES.get(func), dict(kwargs or {})
        if rule is not None and not args and "input" in kwargs:
            args = (kwargs.pop("input"),)
        if rule is None or not args or args[0].dim() == 0 or args[0].is_cuda:
            return func(*args, **kwargs)
        return rule(func, *args, **kwargs)


def _sort(
    func: Any, x: Tensor, dim: int = -1, descending: bool = False, stable: Any = True, **kwargs: Any
) -> Any:
    function = _STABLE.get(func, func)
    return function(x, stable=True, dim=dim, descending=descending, **kwargs)


def _select(
    func: Any,
    x: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
    **kwargs: Any,
) -> Any:
    if kwargs or not 0 <= k <= x.shape[dim]:
        return func(x, k, dim, largest, sorted, **kwargs)
    values, places = torch.sort(x, stable=True, dim=dim, descending=largest)
    return torch.return_types.topk((values.narrow(dim, 0, k), places.narrow(dim, 0, k)))


def _put(func: Any, x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    if accumulate or not x.is_contiguous():
        return func(x, index, source, accumulate)
    written = x if func in _IN_PLACE else x.clone()
    written.view(-1)[index.reshape(-1)] = source.reshape(-1)
    return written


_IN_PLACE = (Tensor.put_, aten.put_.default)
_STABLE = {aten.sort.default: aten.sort.stable, aten.argsort.default: aten.argsort.stable}
_RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.sort, Tensor.sort, torch.argsort, Tensor.argsort, *_STABLE), _sort),
    **dict.fromkeys((torch.topk, Tensor.topk, aten.topk.default), _select),
    **dict.fromkeys((torch.put, Tensor.put, aten.put.default, *_IN_PLACE), _put),
}
