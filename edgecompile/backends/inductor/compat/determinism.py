"""Results that depend on neither the number of threads nor their order."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import lowering as inductor_lowering
from torch._inductor.codegen import cpp as inductor_cpp

from edgecompile.backends.lowering.collisions import may_collide


def ordered_sums() -> AbstractContextManager[None]:
    """Leaves sums at indices (``index_add``) to the runtime, which adds in the order of the indices.

    Inductor's own loops add atomically from several threads, in another order in each run.
    """
    module: Any = inductor_lowering
    original = module.needs_fallback_due_to_atomic_add_limitations

    def falls_back(dtype: torch.dtype) -> bool:
        return dtype.is_floating_point or original(dtype)

    return patch.multiple(module, needs_fallback_due_to_atomic_add_limitations=falls_back)


def ordered_writes() -> AbstractContextManager[None]:
    """Leaves writes at indices that may collide to the runtime, which writes in the order of the indices.

    Inductor divides a loop of writes among threads, and the last one to come wins.
    """
    module: Any = inductor_lowering
    put, needs_fallback = module.index_put_impl_, module.use_scatter_fallback

    def collide() -> bool:
        graph = module.V.graph
        return may_collide(graph.module, graph.current_node)

    def put_in_order(
        target: Any,
        indices: Any,
        values: Any,
        accumulate: bool,
        check: bool,
        may_realize: bool = False,
    ) -> Any:
        if accumulate or not target.get_size() or not collide():
            return put(target, indices, values, accumulate, check, may_realize)
        return module.index_put_fallback(target, indices, values, accumulate)

    def falls_back(operator: Any, reduction: str | None, *args: Any) -> bool:
        plain = reduction is None and operator.overloadpacket is torch.ops.aten.scatter_
        return bool(needs_fallback(operator, reduction, *args)) or (plain and collide())

    return patch.multiple(module, index_put_impl_=put_in_order, use_scatter_fallback=falls_back)


#: Terms up to which a sum takes no longer than threads take to begin and end it.
_TERMS_OF_ONE_THREAD = 1 << 15


def sums_of_one_thread() -> AbstractContextManager[None]:
    """Leaves a sum of few terms, of which a kernel has only one, to one thread.

    Inductor divides it among all, in a program for one row. Its result then depends on their number, and isn't
    that of the same row in a program for several.
    """
    module: Any = inductor_cpp
    nest = module.LoopNest
    original = nest.max_parallel_depth

    def max_parallel_depth(self: Any) -> Any:
        most = original(self)
        if not most.parallel_depth or not self.loops[most.start_depth].is_reduction:
            return most
        terms = sympy.prod(loop.size for loop in self.loops if loop.is_reduction)
        few = terms.is_Integer and terms <= _TERMS_OF_ONE_THREAD
        return module.ParallelDepth(parallel_depth=0, start_depth=0) if few else most

    return patch.multiple(nest, max_parallel_depth=max_parallel_depth)
