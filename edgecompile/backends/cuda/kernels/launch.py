"""Operators whose kernels are written in Triton, and how they are launched.

On a GPU (or while Inductor traces for one) an operator's kernel becomes part of the graph. On the CPU
the operator computes with torch's own ones, or, within :func:`interpreted`, with the very kernel in
Triton's interpreter: slow, but what a device will do is then tried without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl
from torch.library import triton_op, wrap_triton
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle
from triton.runtime.jit import JITFunction

from edgecompile.backends.cuda.number_ranges import largest_number
from edgecompile.errors import CompileError

_interpreting = False


@contextmanager
def interpreted() -> Iterator[None]:
    """While it is entered, operators on CPU tensors run their kernels in Triton's interpreter."""
    global _interpreting
    before, _interpreting = _interpreting, True
    scopes = _Scopes()
    try:
        with (
            # What kernels call, Triton's own functions among it, was made to be compiled when it was imported.
            patch.object(JITFunction, "__call__", lambda f, *a, **k: _interpret(f.fn)(*a, **k)),
            patch.object(InterpreterBuilder, "create_dot", _dot),
            patch.object(interpreter, "_patch_lang", scopes.add),
            patch.object(interpreter.FunctionRewriter, "_compile_and_exec", scopes.rewrite),
        ):
            yield
    finally:
        _interpreting = before
        scopes.forget()


class _Scopes:
    """Undoes the interpreter's changes to Triton and to the modules of kernels.

    Of its own it leaves behind what it changed for functions that kernels call, and compiling fails.
    """

    def __init__(self) -> None:
        self._changes: list[Any] = []
        self._added: list[tuple[dict[str, Any], set[str]]] = []
        self._patch = interpreter._patch_lang

    def add(self, function: Any) -> _Scopes:
        self._changes.append(self._patch(function))
        return self

    def restore(self) -> None:
        """At the end of a kernel."""
        while self._changes:
            self._changes.pop().restore()

    @property
    def rewrite(self) -> Callable[[Any, Any], Any]:
        def rewrite(rewriter: Any, tree: Any) -> Any:
            names = rewriter.fn.__globals__
            before = set(names)
            result = _rewrite(rewriter, tree)
            self._added.append((names, set(names) - before))
            return result

        return rewrite

    def forget(self) -> None:
        self.restore()
        for names, added in self._added:
            for name in added:
                names.pop(name, None)
        InterpretedFunction.rewritten_fn.clear()


_rewrite = interpreter.FunctionRewriter._compile_and_exec


def _dot(builder: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
    """Triton's own multiplies bfloat16 numbers by their bits."""
    factors = []
    for x in (a, b):
        data = x.data
        if x.dtype.scalar == tl.bfloat16:
            data = (data.astype(np.uint32) << 16).view(np.float32)
        factors.append(data.astype(d.data.dtype))
    return TensorHandle(np.matmul(*factors) + d.data, d.dtype.scalar)


@cache
def _interpret(function: Any) -> Any:
    return InterpretedFunction(function)


def define(
    name: str, reference: Callable[..., Any], *, mutates: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Any]:
    """Makes an operator ``edgecompile::NAME`` of a function that launches kernels.

    Args:
        name: the operator's.
        reference: computes the same with torch's operators, on a CPU.
        mutates: arguments that are changed in place.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        operator: Any = triton_op(f"edgecompile::{name}", function, mutates_args=tuple(mutates))

        def on_cpu(*args: Any, **kwargs: Any) -> Any:
            return (function if _interpreting else reference)(*args, **kwargs)

        operator.register_kernel("cpu", on_cpu)
        return getattr(torch.ops.edgecompile, name).default

    return decorate


def needs_64_bits(*reach: Any) -> bool:
    """Whether one of these offsets may need more than 32 bits; one without a known end may."""
    return any((_end(each) or _TOO_FAR) >= _TOO_FAR for each in reach)


_TOO_FAR = 1 << 31


def _end(size: Any) -> int | None:
    if isinstance(size, torch.SymInt):
        return largest_number(size)
    return max(int(size), 1)


def launch(
    kernel: Any, grid: tuple[Any, ...], *args: Any, reach: Sequence[Any], **options: Any
) -> None:
    """Launches a kernel: into the graph that is traced, or in the interpreter for CPU tensors.

    Args:
        kernel: the kernel.
        grid: the number of its programs along each dimension.
        args: its arguments.
        reach: ends of the offsets and row numbers that the kernel computes in 32 bits.
        options: its constants, and how it is compiled.

    Raises:
        CompileError: an offset is known to need 64 bits.
    """
    if any((_end(each) or 0) >= _TOO_FAR for each in reach):
        raise CompileError(
            f"a tensor is too large for the GPU kernel {kernel.fn.__name__}, which counts up to 2^31 values",
            hint="compile for a smaller batch or a shorter sequence",
        )
    if _interpreting:
        for unused in ("num_warps", "num_stages"):
            options.pop(unused, None)
        _interpret(kernel.fn)[grid](*args, **options)
    else:
        wrap_triton(kernel)[grid](*args, **options)
