"""Sums of many terms that lose as little as torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import lowering as inductor_lowering
from torch._inductor.codegen import cpp as inductor_cpp
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import bound_sympy

#: The most terms that a kernel adds up one after the other, in each lane of its vectors.
_PLAIN_TERMS = 128


@contextmanager
def exact_sums(served: Mapping[Any, Any]) -> Iterator[None]:
    """Makes kernels add up many terms as ``native/generated/sums.h`` does, which loses as little as torch.

    Inductor adds up the terms of a lane one after the other where it doesn't know that there are many,
    and else thousands of them. Its variances of many terms (Welford's) lose more than sums of squares
    about the mean, and take longer.

    Args:
        served: Ranges (torch's) of the symbolic sizes that the program serves.
    """
    module: Any = inductor_cpp
    scalar, vector = module.CppKernel, module.CppVecKernel
    plain, plain_vector = module.reduction_acc_type, vector.reduction_acc_type_vec
    helps = scalar.need_use_acc_helper

    def is_long(kernel: Any, kind: str, dtype: torch.dtype) -> bool:
        if kind != "sum" or dtype != torch.float32:
            return False
        terms = sympy.prod(kernel.call_ranges[kernel.reduction_depth :])
        if isinstance(kernel, vector) and kernel.tiling_idx >= kernel.reduction_depth:
            terms = terms / kernel.tiling_factor
        ranges = {**V.graph.sizevars.shape_env.var_to_range, **served}
        return not bool(bound_sympy(sympy.sympify(terms), ranges).upper <= _PLAIN_TERMS)

    def type_of_number(kind: str, dtype: torch.dtype) -> str:
        long = is_long(V.kernel, kind, dtype)
        return f"ec::Sum<{plain(kind, dtype)}>" if long else str(plain(kind, dtype))

    def type_of_vector(kernel: Any, kind: str, dtype: torch.dtype) -> str:
        long = is_long(kernel, kind, dtype)
        usual = plain_vector(kernel, kind, dtype)
        return f"ec::Sum<{usual}>" if long else str(usual)

    def summing(reduce: Callable[..., Any]) -> Callable[..., Any]:
        def reduction(kernel: Any, dtype: Any, source: Any, kind: str, value: Any) -> Any:
            known = len(kernel.reduction_var_names)
            sum_ = reduce(kernel, dtype, source, kind, value)
            if not is_long(kernel, kind, dtype):
                return sum_
            if len(kernel.reduction_var_names) > known:
                kernel.reduction_suffix.writeline(f"auto {sum_}_total = {sum_}.total();")
            return f"{sum_}_total"

        return reduction

    def needs_helper(kernel: Any, kind: str, dtype: Any, use_scalar: bool) -> bool:
        return kind != "sum" and bool(helps(kernel, kind, dtype, use_scalar))

    with (
        patch.multiple(inductor_lowering, use_two_step_variance=lambda *args, **kwargs: True),
        patch.multiple(module, reduction_acc_type=type_of_number),
        patch.multiple(
            scalar, reduction=summing(scalar.reduction), need_use_acc_helper=needs_helper
        ),
        patch.multiple(
            vector, reduction=summing(vector.reduction), reduction_acc_type_vec=type_of_vector
        ),
    ):
        yield
