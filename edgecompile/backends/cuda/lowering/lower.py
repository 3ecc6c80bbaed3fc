"""Rewrites an exported graph for a GPU, before Inductor sees it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from edgecompile.backends.cuda.kernels.extremes import find_last
from edgecompile.backends.cuda.lowering.attention import lower_attention
from edgecompile.backends.cuda.lowering.boxes import lower_averages
from edgecompile.backends.cuda.lowering.convolutions import emit_convolution, finish_convolutions
from edgecompile.backends.cuda.lowering.counts import count_selections
from edgecompile.backends.cuda.lowering.divisions import settle_divisions
from edgecompile.backends.cuda.lowering.fp8 import narrow_to_fp8
from edgecompile.backends.cuda.lowering.gelu import lower_gelu
from edgecompile.backends.cuda.lowering.gemm import merge_linears, sum_vectors
from edgecompile.backends.cuda.lowering.int8 import narrow_to_int8
from edgecompile.backends.cuda.lowering.matrices import fold_weights
from edgecompile.backends.cuda.lowering.narrow import narrow_graph
from edgecompile.backends.cuda.lowering.operators import lower_operators
from edgecompile.backends.cuda.lowering.tiles import hints_of
from edgecompile.backends.cuda.lowering.values import settle_sizes
from edgecompile.backends.cuda.number_ranges import largest_number
from edgecompile.backends.inductor.missing_kernels import missing_kernels_error, modules_of_nodes
from edgecompile.backends.inductor.source import ExternCall
from edgecompile.backends.lowering.arithmetic import lower_arithmetic
from edgecompile.backends.lowering.boxes import lower_boxes
from edgecompile.backends.lowering.complex import lower_complex
from edgecompile.backends.lowering.constants import (
    constant_of,
    drop_unused_constants,
    make_constants_contiguous,
    value_of,
)
from edgecompile.backends.lowering.convolutions import lower_convolutions
from edgecompile.backends.lowering.dead_rows import drop_dead_rows
from edgecompile.backends.lowering.distinct import write_distinct
from edgecompile.backends.lowering.equal_nodes import merge_equal_nodes
from edgecompile.backends.lowering.halves import widen_halves
from edgecompile.backends.lowering.last_writes import order_writes
from edgecompile.backends.lowering.recurrences import split_recurrences
from edgecompile.backends.lowering.rewriting import (
    Lowering,
    LoweringReport,
    drop_dropout,
    select_by_masks,
    write_checks,
)
from edgecompile.export.halves import computes_in_halves
from edgecompile.targets.gpu import GpuFacts

aten = torch.ops.aten

#: By precision what activations are computed in, where that isn't float32.
_NARROW = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.float16,
    "fp8": torch.float16,
}

#: The host reads a number from the GPU.
_READS = {aten.item.default, aten._local_scalar_dense.default}

#: Operators that only run a body under another mode of autograd or autocasting.
_WRAPPERS = {
    torch.ops.higher_order.wrap_with_set_grad_enabled: 1,
    torch.ops.higher_order.wrap_with_autocast: 4,
}


def lower_for_gpu(
    gm: GraphModule, gpu: GpuFacts, precision: str, inputs: Mapping[str, Tensor] | None = None
) -> LoweringReport:
    """Rewrites ``gm`` in place: a float32 program's module, on the CPU, before anything is made fake.

    Args:
        gm: the result of :meth:`torch.export.ExportedProgram.module`.
        gpu: the GPU that it is for.
        precision: ``fp16``, ``bf16`` or ``fp32``: what it computes in; or ``int8``: as ``fp16``, with the
            matrices of products in int8; or ``fp8``: as ``fp16``, with products in e4m3. Inputs and outputs keep their dtypes; every output becomes a
            row-major tensor of its own.
        inputs: inputs of the sizes that tiles are chosen for; None: those that it was exported
            with.

    Raises:
        MissingKernelError: sizes within the program depend on values; lists every such call.
    """
    low = Lowering(gm, LoweringReport())
    if computes_in_halves(gm):
        widen_halves(low)
    select_by_masks(gm)
    write_distinct(gm)
    settle_sizes(low)
    low.report.counts["writes"] += order_writes(gm, find_last)
    lower_boxes(low)
    count_selections(low)
    lower_averages(low)
    _refuse_sizes(gm)
    _inline_bodies(gm)
    drop_dropout(gm)
    write_checks(gm)
    low.report.counts["rows"] += drop_dead_rows(gm)
    _fill_scalars(gm)
    split_recurrences(low)
    lower_complex(low)
    lower_arithmetic(low)
    merge_equal_nodes(low)
    lower_convolutions(low, emit_convolution)
    fold_weights(low)
    if precision in _NARROW:
        narrow_graph(gm, _NARROW[precision])
    finish_convolutions(low, gpu, hints_of(gm, inputs or {}))
    merge_linears(low)
    if precision == "int8":
        narrow_to_int8(low, gpu)
    elif precision == "fp8":
        narrow_to_fp8(low)
    sum_vectors(low)
    lower_attention(low, gpu)
    lower_operators(low, gpu)
    lower_gelu(low)
    settle_divisions(low)
    _own_outputs(gm)
    gm.graph.eliminate_dead_code()
    drop_unused_constants(gm)
    make_constants_contiguous(gm)
    gm.graph.lint()
    gm.recompile()
    return low.report


def _refuse_sizes(gm: GraphModule) -> None:
    """Refuses sizes that depend on values in another way than by numbers with an end, which the host reads."""
    missing: dict[str, list[ExternCall]] = {}
    for node in gm.graph.nodes:
        if not node.meta.get("unbacked_bindings") or node.target is aten.slice.Tensor:
            continue
        name = str(node.target).removesuffix(".default")
        if node.target in _READS and _has_end(gm, node):
            continue
        missing.setdefault(name, []).append(ExternCall(name, (node.name,)))
    if missing:
        raise missing_kernels_error(missing, modules_of_nodes(gm))
    for node in gm.graph.nodes:
        # Inductor finds out itself, and rewritten nodes have copies of what others know.
        node.meta.pop("unbacked_bindings", None)


def _has_end(gm: GraphModule, read: Node) -> bool:
    """Whether a number that is read has an end, or no size is made of it."""
    number = read.meta["val"]
    if not isinstance(number, torch.SymInt):
        return True
    values = (value_of(node) for node in gm.graph.nodes)
    sizes = (size for value in values if value is not None for size in value.shape)
    symbols = free_unbacked_symbols(number)
    is_size = any(symbols & free_unbacked_symbols(size) for size in sizes)
    return not is_size or largest_number(number) is not None


def _inline_bodies(gm: GraphModule) -> None:
    """Puts the bodies of wrapping operators in their places."""
    for node in list(gm.graph.nodes):
        if node.target not in _WRAPPERS:
            continue
        at = _WRAPPERS[node.target]
        body = getattr(gm, str(node.args[at].target))
        _inline_bodies(body)
        inputs = [n for n in body.graph.nodes if n.op == "placeholder"]
        mapping = dict(zip(inputs, node.args[at + 1 :], strict=True))
        with gm.graph.inserting_before(node):
            results = gm.graph.graph_copy(body.graph, mapping)
        for taker in list(node.users):
            assert taker.target is operator.getitem
            taker.replace_all_uses_with(results[taker.args[1]])  # type: ignore[index]
            gm.graph.erase_node(taker)
        gm.graph.erase_node(node)


def _fill_scalars(gm: GraphModule) -> None:
    """Writes tensors of one number, which a model makes when it is called, as that number.

    Inductor would read it from the GPU to fold it.
    """
    for node in list(gm.graph.nodes):
        constant = constant_of(gm, node.args[0]) if node.target in _LIFTS else None
        if constant is None or constant.numel() != 1:
            continue
        with gm.graph.inserting_before(node):
            options: dict[str, Any] = {"dtype": constant.dtype, "device": torch.device("cpu")}
            sizes = list(constant.shape)
            new = gm.graph.call_function(aten.full.default, (sizes, constant.item()), options)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        gm.graph.erase_node(node)


_LIFTS = {aten.lift_fresh_copy.default, aten.lift_fresh.default}


def _own_outputs(gm: GraphModule) -> None:
    """Makes every output a row-major tensor that nothing else shares."""
    output = next(iter(reversed(gm.graph.nodes)))

    def own(node: Node) -> Node:
        if value_of(node) is None:
            return node
        with gm.graph.inserting_before(output):
            copy = gm.graph.call_function(
                aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
        copy.meta = dict(node.meta)
        return copy

    output.args = torch.fx.map_arg(output.args, own)
