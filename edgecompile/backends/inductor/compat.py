"""The only module that touches torch's private API.

``generate_cpp`` drives AOTInductor up to its generated C++ and stops there: compiling and linking
are ours (:mod:`edgecompile.toolchain.compilers`). ``tests/backends/inductor/test_compat.py`` fails loudly when torch
changes what is relied on here.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sympy  # type: ignore[import-untyped]
import torch
import torch._dynamo
import torch._inductor
import torch._inductor.config
import torch._inductor.cpu_vec_isa as cpu_vec_isa
from torch import Tensor
from torch._decomp import decompositions
from torch._inductor import fx_utils as inductor_fx_utils
from torch._inductor import lowering as inductor_lowering
from torch._inductor.codegen import cpp as inductor_cpp
from torch._inductor.index_propagation import IndexPropagation, TypedExpr
from torch._inductor.virtualized import V
from torch.fx import GraphModule
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from edgecompile.backends.inductor.failures import first_line, read_failure
from edgecompile.backends.inductor.source import (
    name_by_content,
    only_file,
    split_source,
    temporary_folder,
)
from edgecompile.backends.inductor.strides import moving_terms, name_fixed, read_stride
from edgecompile.backends.lowering.collisions import may_collide
from edgecompile.backends.operators import ops
from edgecompile.errors import CompileError
from edgecompile.targets.profile import VariantSpec
from edgecompile.toolchain.compilers import find_toolchain

#: To be held from an exported program to its C++: the graph's tracing and code generation patch
#: and read global state of torch, so only one thread of a process may be at it.
GENERATING = threading.Lock()


@dataclass(frozen=True)
class GeneratedCpp:
    """AOTInductor's code for one program.

    Attributes:
        wrapper: C++ of the model class and the AOTI container's C entry points.
        kernels: C++ of the generated kernels; empty if the graph has none.
        constants: every tensor that the program reads from outside, by fully qualified name.
        isa: the vector instruction set that Inductor really used, as it recorded it; "" for
            scalar code.
        calls: the calls of operators without a C interface, as Inductor wrote them; "" if there
            are none.
        assumed: conditions on the graph's sizes (sympy) that Inductor took for given while it
            generated; its code may be wrong where one of them doesn't hold.
        overflows: whether integers of the kernels may leave their type's range, where torch's wrap.
    """

    wrapper: str
    kernels: str
    constants: Mapping[str, Tensor]
    isa: str
    calls: str = ""
    assumed: tuple[Any, ...] = ()
    overflows: bool = False


def vector_isa(arch: str, simdlen: int) -> cpu_vec_isa.VecISA:
    """Inductor's vector ISA class for an architecture and a vector width in bits.

    For SSE (x86-64, 128 bits), which Inductor has no vector code for, the class that stands for
    scalar code: it is false.

    Raises:
        CompileError: Inductor has no such instruction set.
    """
    table: dict[tuple[str, int], type[cpu_vec_isa.VecISA]] = {
        ("x86-64", 128): cpu_vec_isa.InvalidVecISA,
        ("x86-64", 256): cpu_vec_isa.VecAVX2,
        ("x86-64", 512): cpu_vec_isa.VecAVX512,
        ("aarch64", 128): cpu_vec_isa.VecNEON,
    }
    if (arch, simdlen) not in table:
        raise CompileError(
            f"torch's Inductor has no {simdlen}-bit vector code for {arch}",
            hint="use a variant with one of: " + ", ".join(f"{a} {b} bit" for a, b in table),
        )
    return table[arch, simdlen]()


def _forced_isa(isa: cpu_vec_isa.VecISA) -> AbstractContextManager[None]:
    """Makes ``isa`` the only instruction set that Inductor sees; none, if it's false.

    Inductor otherwise offers what the build host's CPU has, so AVX-512 or NEON code could not be
    generated elsewhere. The function is looked up at each call, hence patched and restored.
    """
    visible = [] if isinstance(isa, cpu_vec_isa.InvalidVecISA) else [isa]
    return patch.multiple(cpu_vec_isa, valid_vec_isa_list=lambda: visible)


def _unprobed_isa() -> AbstractContextManager[None]:
    """Keeps Inductor from compiling and loading a test of AVX-512's bfloat16 where the build host's CPU has that.

    Only its own matmuls ask for the result, and the programs have none of these.
    """
    return patch.multiple(cpu_vec_isa.VecAVX512, __bool__=cpu_vec_isa.VecISA.__bool__)


def _ordered_sums() -> AbstractContextManager[None]:
    """Leaves sums at indices (``index_add``) to the runtime, which adds in the order of the indices.

    Inductor's own loops add atomically from several threads, in another order in each run.
    """
    module: Any = inductor_lowering
    original = module.needs_fallback_due_to_atomic_add_limitations

    def falls_back(dtype: torch.dtype) -> bool:
        return dtype.is_floating_point or original(dtype)

    return patch.multiple(module, needs_fallback_due_to_atomic_add_limitations=falls_back)


#: The most terms that a kernel adds up one after the other, in each lane of its vectors.
_PLAIN_TERMS = 128


@contextmanager
def _exact_sums(served: Mapping[Any, Any]) -> Iterator[None]:
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


#: Terms up to which a sum takes no longer than threads take to begin and end it.
_TERMS_OF_ONE_THREAD = 1 << 15


def _sums_of_one_thread() -> AbstractContextManager[None]:
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


def _ordered_writes() -> AbstractContextManager[None]:
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


@contextmanager
def strides_read() -> Iterator[None]:
    """Lets Inductor read how far an index moves with a loop, which it does often, off the terms that move.

    Inductor simplifies the whole index for it. That took minutes for positions behind strided convolutions, whose
    sizes are quotients of quotients. Where the code holds the stride, it stays as Inductor writes it.
    """
    module: Any = inductor_cpp
    simplified, tiles = module.stride_at_vec_range, module.CppTile2DKernel
    write = tiles.gen_transposed_tile_load_store

    def stride(index: Any, loop: Any, lanes: int | None = None) -> Any:
        if not isinstance(loop, sympy.Symbol):
            return simplified(index, loop, lanes)
        moving = moving_terms(index, loop)
        found = read_stride(moving, loop)
        if found is not None:
            return found
        names = name_fixed(moving, loop)
        found = simplified(moving.xreplace(names), loop, lanes)
        return found.xreplace({name: quotient for quotient, name in names.items()})

    def write_stride(*args: Any, **kwargs: Any) -> Any:
        with patch.multiple(module, stride_at_vec_range=simplified):
            return write(*args, **kwargs)

    with (
        patch.multiple(module, stride_at_vec_range=stride),
        patch.multiple(tiles, gen_transposed_tile_load_store=write_stride),
    ):
        yield


def conditions_compared() -> AbstractContextManager[None]:
    """Lets Inductor compare conditions on sizes that graphs hold: it subtracts one from the other.

    It does so where it renews the values of a graph whose operators write in place.
    """
    module: Any = inductor_fx_utils
    is_same = module._is_fake_tensor_same

    def same(new: Any, old: Any, *args: Any, **kwargs: Any) -> bool:
        if isinstance(new, torch.SymBool) and isinstance(old, torch.SymBool):
            return bool(new.node.expr == old.node.expr)
        return bool(is_same(new, old, *args, **kwargs))

    return patch.multiple(module, _is_fake_tensor_same=same)


def _options(gm: GraphModule, variant: VariantSpec, cxx: str) -> dict[str, Any]:
    # Inductor writes short sums out, but not those of a single row, which then come in another order: a run of
    # several tokens wouldn't be equal to runs of single ones.
    generates = any(node.target in ops.OF_TEXTS for node in gm.graph.nodes)
    return {
        **({"unroll_reductions_threshold": 1} if generates else {}),
        "aot_inductor.package": True,
        "aot_inductor.package_cpp_only": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.package_constants_on_disk_format": "pickle_weights",
        "aot_inductor.link_libtorch": False,
        "aot_inductor.enable_line_tables": False,
        "aot_inductor.enable_frame_pointer": False,
        "aot_inductor.precompile_headers": False,
        "aot_inductor.custom_ops_to_c_shims": ops.C_SHIMS,
        "cpp_cache_precompile_headers": False,
        # Half precision is rounded where torch rounds it, instead of once at a kernel's end.
        "emulate_precision_casts": True,
        # Without this Inductor's probe library fails to link and it falls back to scalar code.
        "cpp.vec_isa_ok": True,
        # Inductor assembles an empty constants section, which isn't used, but must succeed.
        "cpp.cxx": (None, cxx),
        "cpp.march": variant.march,
        "cpp.simdlen": variant.simdlen,
        # Team sizes are asked for at run time instead of being baked in.
        "cpp.dynamic_threads": True,
        # How many Inductor divides loops for: elsewhere torch's own number, so code would depend on the
        # build host, and where that is one, all threads of a team do what only one of them may.
        "cpp.threads": 2,
    }


def generate_cpp(
    gm: GraphModule,
    kwargs: Mapping[str, Tensor],
    variant: VariantSpec,
    *,
    shared: Container[str] = (),
) -> GeneratedCpp:
    """Generates C++ for a lowered graph; the caller holds :data:`GENERATING`.

    Args:
        gm: an exported program's module after :func:`~edgecompile.backends.cpu.lowering.lower.lower_graph`.
        kwargs: example inputs by name.
        variant: the variant that the code will be compiled for.
        shared: names of constants that mean the same tensor in every program of the model. Any
            other (lifted or folded by the compiler, and perhaps different from program to
            program) is renamed after its content.

    Raises:
        CompileError: Inductor failed, caused by what it raised (:mod:`~edgecompile.backends.inductor.failures`), fixed a
            size that varies, or did not vectorise for the instruction set asked for.
    """
    isa = vector_isa(variant.arch, variant.simdlen)
    sizes = varying_sizes(gm)
    environment = next((size.node.shape_env for size, _ in sizes), None)
    assume_no_ones(sizes)
    # Inductor narrows the ranges around the hint wherever it compares sizes, but the code runs beyond them as well.
    served = {} if environment is None else dict(environment.var_to_range)
    guard_count = 0 if environment is None else len(environment.guards)
    cxx = find_toolchain(variant.arch).cxx
    with (
        _forced_isa(isa),
        _unprobed_isa(),
        _ordered_sums(),
        _exact_sums(served),
        _sums_of_one_thread(),
        _ordered_writes(),
        strides_read(),
        temporary_folder() as folder,
        # A shared cache can hand back C++ of another instruction set.
        patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
        sizes_interpolated(),
        conditions_compared(),
        _overflow_heeded(served) as overflows,
        torch.no_grad(),
    ):
        try:
            files: Any = torch._inductor.aot_compile(
                gm, (), dict(kwargs), options=_options(gm, variant, cxx)
            )
        except Exception as error:
            raise generation_failed(error) from error
        paths = [Path(item).resolve() for item in files if isinstance(item, str)]
        code = only_file(paths, ".wrapper.cpp").read_text()
        metadata = json.loads(only_file(paths, ".wrapper_metadata.json").read_text())
        calls = [path.read_text() for path in paths if path.name.endswith(".wrapper.json")]
    new = [] if environment is None else environment.guards[guard_count:]
    refuse_fixed(sizes, new)
    tables = [item for item in files if not isinstance(item, str)]
    constants = {name: pair[0].detach() for table in tables for name, pair in table.items()}
    used = str(metadata.get("AOTI_CPU_ISA", ""))
    if used != str(isa).upper():
        raise CompileError(
            f"Inductor generated code for '{used}' instead of {type(isa).__name__}",
            hint="this is a defect of edgecompile with this version of torch; please report it",
        )
    wrapper, kernels = split_source(code)
    wrapper, constants = name_by_content(wrapper, constants, shared)
    # Whether an instance is true is a compiler run of torch's, in a folder of its own.
    vectorised = not isinstance(isa, cpu_vec_isa.InvalidVecISA)
    return GeneratedCpp(
        wrapper,
        kernels,
        constants,
        used if vectorised else "",
        "".join(calls),
        assumed=tuple(guard.expr for guard in new),
        overflows=bool(overflows),
    )


def generation_failed(error: Exception) -> CompileError:
    """The error for an exception of Inductor."""
    failure = read_failure(error)
    at = "" if failure.place is None else f" (at {failure.place})"
    cure = f"{failure.cure}; " if failure.cure else ""
    return CompileError(
        f"torch's Inductor could not generate code: {failure.text}{at}",
        hint=f"{cure}`__cause__` shows torch's own traceback",
    )


def varying_sizes(gm: GraphModule) -> list[tuple[torch.SymInt, str]]:
    """The symbolic sizes of a graph's inputs, each with where it is found."""
    return [
        (size, f"dimension {dim} of '{node.name}'")
        for node in gm.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), Tensor)
        for dim, size in enumerate(node.meta["val"].shape)
        if isinstance(size, torch.SymInt)
    ]


def assume_no_ones(sizes: Sequence[tuple[torch.SymInt, str]]) -> None:
    """Takes sizes that vary for 2 or more, as torch.export does while it traces.

    A program that was stored and read again begins at its true lower bound. Inductor then asks whether
    a size is 1, the answer cuts the range, and of a range 1 to 2 a constant would be left.
    """
    for size, _ in sizes:
        spans, symbol = size.node.shape_env.var_to_range, size.node._expr
        if symbol in spans and spans[symbol].lower < 2 <= spans[symbol].upper:
            spans[symbol] = ValueRanges(2, spans[symbol].upper)


def refuse_fixed(sizes: Sequence[tuple[torch.SymInt, str]], guards: Sequence[Any]) -> None:
    """Raises CompileError if Inductor took a size that varies for a constant."""
    for size, place in sizes:
        symbol = size.node._expr
        number = size.node.shape_env.replacements.get(symbol)
        own = [guard for guard in guards if symbol in guard.expr.free_symbols]
        if own and number is not None and number.is_number:
            where = str(own[-1].sloc).strip("()").rpartition(" in ")[2].lstrip("_")
            raise CompileError(
                f"torch's Inductor fixes {place} to {number}, the size that it tunes for: "
                f"{where or 'an operator'} can't be compiled for sizes that vary",
                hint="write it with operators whose sizes may vary; or in padded buckets (mode pad), "
                "each for a single length, if padding does no harm",
            )


def sizes_interpolated() -> AbstractContextManager[None]:
    """Makes interpolation right at sizes that its decomposition, which Inductor compiles, takes for impossible.

    With aligned corners an output of one place reads the first one; the decomposition divides by zero. And by a factor
    torch's own kernels copy an input that has as many places (a factor of 1.3 makes 3 of 3), as the linear ones do here.
    """
    interpolate: Any = decompositions._upsample_linear
    compute_scale: Any = decompositions._compute_scale
    largest: Any = torch.sym_max

    def scale(inner: Any, outer: Any, align_corners: bool, factor: float | None = None) -> Any:
        if align_corners:
            return (inner - 1.0) / largest(outer - 1, 1)
        return compute_scale(inner, outer, align_corners, factor)

    def linear_scale(
        inner: Any, outer: Any, align_corners: bool, factor: float | None = None
    ) -> Any:
        usual = scale(inner, outer, align_corners, factor)
        if align_corners or factor is None or not 1 < factor < 1.5:  # never as many, or one
            return usual
        return torch.where(torch.scalar_tensor(outer - inner) == 0, 1.0, usual)

    def interpolate_linearly(*args: Any) -> Any:
        with patch.multiple(decompositions, _compute_scale=linear_scale):
            return interpolate(*args)

    return patch.multiple(
        decompositions, _upsample_linear=interpolate_linearly, _compute_scale=scale
    )


@contextmanager
def _overflow_heeded(served: Mapping[Any, Any]) -> Iterator[list[str]]:
    """Makes Inductor compute integers with their type's range where they may leave it.

    It computes what depends on positions and sizes alone as expressions of unlimited integers, and
    simplifies them; torch's integers wrap around. What it would so have computed is listed.
    """
    start, original = IndexPropagation.__init__, IndexPropagation.propagate_sympy
    overflows: list[str] = []

    def begin(self: Any, inner: Any, loops: Mapping[Any, Any], indirect: Any) -> None:
        start(self, inner, loops, indirect)  # type: ignore[arg-type]
        ranges = {**self.shape_env.var_to_range, **served}
        ends = {
            # A loop over nothing has no last place.
            loop: max(bound_sympy(sympy.sympify(size), ranges).upper - 1, 0)
            for loop, size in loops.items()
        }
        self.bounds = {**ranges, **{loop: ValueRanges(0, end) for loop, end in ends.items()}}

    def propagate(self: Any, name: str, args: Any, kwargs: Any) -> Any:
        result: Any = original(self, name, args, kwargs)
        value = getattr(result, "value", None)
        if not isinstance(value, TypedExpr) or _fits(value.expr, value.dtype, self.bounds):
            return result
        overflows.append(str(value.expr))
        return self.fallback(name, args, kwargs)

    with patch.multiple(IndexPropagation, __init__=begin, propagate_sympy=propagate):
        yield overflows


def _fits(expression: Any, dtype: torch.dtype, ranges: dict[Any, Any]) -> bool:
    """Whether an integer stays within its type's range, as far as its bounds are known."""
    whole = not (dtype.is_floating_point or dtype == torch.bool)
    symbols = getattr(expression, "free_symbols", ())
    # Sizes that depend on values have no bounds.
    if not whole or not all(s in ranges and ranges[s].upper.is_Integer for s in symbols):
        return True
    bounds, limits = bound_sympy(sympy.sympify(expression), ranges), torch.iinfo(dtype)
    # Bounds beyond 64 bits are infinite.
    return bool(limits.min <= bounds.lower and bounds.upper <= limits.max)


def torch_constant(kind: str, number: int) -> str:
    """The name in torch of what a serialized graph says by number: ``float32``, ``strided``.

    Args:
        kind: ``as_scalar_type``, ``as_layout`` or ``as_memory_format``.
        number: within that kind.
    """
    from torch._export.serde import serialize

    tables: dict[str, Mapping[Any, Any]] = {
        "as_scalar_type": serialize._SERIALIZE_TO_TORCH_DTYPE,
        "as_layout": serialize._SERIALIZE_TO_TORCH_LAYOUT,
        "as_memory_format": serialize._SERIALIZE_TO_TORCH_MEMORY_FORMAT,
    }
    return str(tables[kind][number]).removeprefix("torch.")


@dataclass(frozen=True)
class TracingBreak:
    """A place where torch.compile leaves the graph; ``place`` is ``file:line in function``."""

    reason: str
    place: str


def find_breaks(module: torch.nn.Module, inputs: Mapping[str, Tensor]) -> list[TracingBreak]:
    """Traces a module's bytecode and says where it can't go on in one graph.

    Raises:
        CompileError: tracing fails altogether, or the module does.
    """
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            explained = torch._dynamo.explain(module)(**inputs)
    except Exception as error:
        raise CompileError(f"torch can't trace it: {first_line(error)}") from error
    finally:
        torch._dynamo.reset()
    breaks = []
    for item in explained.break_reasons:
        frames = [f"{x.filename}:{x.lineno} in {x.name}: {x.line}" for x in item.user_stack]
        reason = str(item.reason).strip().splitlines()[0]
        if reason.startswith("generic_jump"):
            reason = "control flow depends on the values of a tensor"
        breaks.append(TracingBreak(reason, frames[-1] if frames else ""))
    return breaks


def scaled_product(
    rows: Tensor, columns: Tensor, row_scales: Tensor, column_scales: Tensor, dtype: torch.dtype
) -> Tensor:
    """``rows @ columns`` of e4m3, times both scales, in ``dtype``: what Inductor has a template for."""
    return torch._scaled_mm(rows, columns, row_scales, column_scales, out_dtype=dtype)
