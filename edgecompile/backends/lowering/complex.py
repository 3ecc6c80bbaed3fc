"""Graph lowering of complex numbers to pairs of real tensors.

Inductor has no code for complex numbers and calls a function of torch for each operator. What
models do with them is little: rotary embeddings written as a complex product, Fourier transforms
(:mod:`~edgecompile.backends.lowering.fourier`) and what stands between a transform and its inverse.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from edgecompile.backends.lowering.constants import attribute_name, constant_of, value_of
from edgecompile.backends.lowering.fourier import TRANSFORMS, Pair
from edgecompile.backends.lowering.in_place import changed_memory, changes_in_place, memory_of
from edgecompile.backends.lowering.inlining import inline
from edgecompile.backends.lowering.rewriting import Lowering

aten = torch.ops.aten

#: Operators that move or add elements alone: done to each part.
_MOVES = {
    aten.alias.default, aten.clone.default, aten.contiguous.default, aten.detach.default,
    aten.expand.default, aten.flatten.using_ints, aten.permute.default, aten.reshape.default,
    aten.resolve_conj.default, aten.select.int, aten.slice.Tensor, aten.squeeze.dim, aten.transpose.int,
    aten.unsqueeze.default, aten.view.default, aten.neg.default, aten.flip.default, aten.roll.default,
    aten.fft_fftshift.default, aten.fft_ifftshift.default, aten.index_select.default,
    aten.cat.default, aten.stack.default, aten.pad.default, aten.sum.default, aten.sum.dim_IntList,
    aten.mean.default, aten.mean.dim, aten.zeros.default, aten.zeros_like.default,
    aten.new_zeros.default,
}  # fmt: skip

#: Operators whose result shares its operand's memory, but not once the operand is a pair.
_COPIES = {aten.view_as_real.default, aten._conj.default}

_CONVERSIONS = {aten.to.dtype, aten.to.dtype_layout, aten._to_copy.default}


def _times(a: Any, b: Any) -> Pair:
    if not isinstance(a, tuple):
        a, b = b, a
    if not isinstance(b, tuple):  # a real tensor or a number
        return a[0] * b, a[1] * b
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _over(a: Any, b: Any) -> Pair:
    if not isinstance(b, tuple):
        return a[0] / b, a[1] / b
    size = torch.maximum(b[0].abs(), b[1].abs())  # so that no square overflows
    real, imaginary = b[0] / size, b[1] / size
    square = (real * real + imaginary * imaginary) * size
    x, y = _times(a, (real, -imaginary))
    return x / square, y / square


def _power(x: Pair, exponent: Any) -> Pair:
    result = x
    for _ in range(exponent - 1):
        result = _times(result, x)
    return result


def _product(function: Callable[[Tensor, Tensor], Tensor], a: Pair, b: Pair) -> Pair:
    """A complex product by a function that is linear in both operands."""
    return (
        function(a[0], b[0]) - function(a[1], b[1]),
        function(a[0], b[1]) + function(a[1], b[0]),
    )


def _einsum(equation: str, operands: Any, **_: Any) -> Pair:
    return _product(lambda a, b: torch.einsum(equation, a, b), *operands)


def _minus(a: Any, b: Any, *, alpha: float = 1) -> Pair:
    return _plus(a, (-b[0], -b[1]) if isinstance(b, tuple) else -b, alpha=alpha)


def _to_complex(x: Tensor, dtype: torch.dtype, *_: Any, **__: Any) -> Pair:
    real = x.to(dtype.to_real())
    return real, torch.zeros_like(real)


def _copy(into: Pair, source: Any, *_: Any) -> Pair:
    if isinstance(source, tuple):
        return into[0].copy_(source[0]), into[1].copy_(source[1])
    return into[0].copy_(source), into[1].zero_()


def _plus(a: Any, b: Any, *, alpha: float = 1) -> Pair:
    if alpha != 1:
        b = _times(b, alpha) if isinstance(b, tuple) else b * alpha
    if not isinstance(a, tuple):
        a, b = b, a
    if not isinstance(b, tuple):
        # The imaginary part has the sum's shape, even if only the real one grows.
        return a[0] + b, a[1] + b * 0
    return a[0] + b[0], a[1] + b[1]


#: Each takes pairs for complex operands and returns a pair, or a tensor for a real result.
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    aten.view_as_complex.default: lambda x: (x[..., 0], x[..., 1]),
    aten.view_as_real.default: lambda x: torch.stack(x, -1),
    aten.complex.default: lambda a, b: (a + torch.zeros_like(b), b + torch.zeros_like(a)),
    aten.polar.default: lambda a, b: (a * torch.cos(b), a * torch.sin(b)),
    aten.real.default: lambda x: x[0],
    aten.imag.default: lambda x: x[1],
    aten.abs.default: lambda x: torch.sqrt(x[0] * x[0] + x[1] * x[1]),
    aten._conj.default: lambda x: (x[0], -x[1]),
    aten.conj_physical.default: lambda x: (x[0], -x[1]),
    aten.mul.Tensor: _times,
    aten.add.Tensor: _plus,
    aten.sub.Tensor: _minus,
    aten.div.Tensor: _over,
    aten.reciprocal.default: lambda x: _over((torch.ones_like(x[0]), torch.zeros_like(x[1])), x),
    aten.pow.Tensor_Scalar: _power,
    aten.exp.default: lambda x: (
        torch.exp(x[0]) * torch.cos(x[1]),
        torch.exp(x[0]) * torch.sin(x[1]),
    ),
    aten.angle.default: lambda x: torch.atan2(x[1], x[0]),
    aten.matmul.default: partial(_product, torch.matmul),
    aten.mm.default: partial(_product, torch.matmul),
    aten.bmm.default: partial(_product, torch.matmul),
    aten.einsum.default: _einsum,
    aten.to.dtype: _to_complex,
    aten._to_copy.default: lambda x, *, dtype, **_: _to_complex(x, dtype),
    aten.copy_.default: _copy,
    **TRANSFORMS,
}


def _is_complex(node: Any) -> bool:
    value = value_of(node)
    return value is not None and value.is_complex()


def lower_complex(low: Lowering) -> None:
    """Rewrites everything complex, or nothing, with the reason in the report's ``kept``."""
    gm = low.gm
    _drop_formalities(gm)
    concerned = [
        node
        for node in gm.graph.nodes
        if _is_complex(node) or any(_is_complex(x) for x in node.all_input_nodes)
    ]
    changed = changed_memory(changes_in_place(gm))
    for node in concerned:
        reason = _obstacle(gm, node, changed)
        if reason is not None:
            low.report.kept[node.name] = reason
            return
    pairs: dict[Node, tuple[Node, Node]] = {}
    for node in concerned:
        if node.op == "get_attr":
            pairs[node] = _split_constant(gm, node)
        elif node.target in _MOVES:
            pairs[node] = _done_twice(gm, node, pairs)
        else:
            results = _done(gm, node, pairs)
            if _is_complex(node):
                pairs[node] = (results[0], results[1])
            else:
                results[0].meta.update(val=node.meta["val"])
                node.replace_all_uses_with(results[0])
    for node in reversed(concerned):
        gm.graph.erase_node(node)


def _drop_formalities(gm: GraphModule) -> None:
    """Erases what export leaves around a conversion that converts nothing."""
    for node in list(gm.graph.nodes):
        operand = node.args[0] if node.args else None
        if not isinstance(operand, Node) or not _is_complex(operand):
            continue
        if node.target is aten._assert_tensor_metadata.default:
            gm.graph.erase_node(node)
        elif node.target in _CONVERSIONS:
            before, after = value_of(operand), value_of(node)
            if before is not None and after is not None and before.dtype == after.dtype:
                node.replace_all_uses_with(operand)
                gm.graph.erase_node(node)


def _obstacle(gm: GraphModule, node: Node, changed: set[Node]) -> str | None:
    if node.op == "get_attr":
        return None if constant_of(gm, node) is not None else "a complex constant can't be read"
    if node.op != "call_function" or (node.target not in _MOVES and node.target not in _FUNCTIONS):
        return f"{node.target} of complex numbers"
    # A pair's parts have another memory than what isn't a pair.
    schemas = {user.target: getattr(user.target, "_schema", None) for user in node.users}
    changes = {target for target, schema in schemas.items() if schema and schema.is_mutable}
    if changes - {aten.copy_.default}:
        return "its memory is changed later"
    if node.target in _COPIES and memory_of(node) in changed:
        return "its memory is changed later"
    if isinstance(node.kwargs.get("alpha"), complex):
        return "a sum with a complex factor"
    return _odd_arguments(node)


def _odd_arguments(node: Node) -> str | None:
    """Arguments of a node that its operator takes, but its function here doesn't; None: none."""
    kind = str(node.target)
    tensors = [x for x in node.all_input_nodes if isinstance(x.meta.get("val"), Tensor)]
    if node.target in (aten.cat.default, aten.stack.default):
        if not all(_is_complex(x) for x in tensors):
            return f"{kind} of complex and real numbers"
    elif node.target is aten.pad.default:
        if len(node.args) > 2 and (node.args[2] != "constant" or any(node.args[3:])):
            return f"{kind} with other numbers than zeros"
    elif node.target is aten.pow.Tensor_Scalar:
        if node.args[1] not in range(1, 9):
            return f"{kind} with the exponent {node.args[1]}"
    elif node.target is aten.einsum.default:
        if len(tensors) != 2 or len(node.args[1]) != 2:  # type: ignore[arg-type]
            return f"{kind} of other than two operands"
    elif node.target in _CONVERSIONS and (not _is_complex(node) or _is_complex(tensors[0])):
        return f"{kind} of complex numbers"
    elif node.target in _MOVES and node.kwargs.get("dtype") and tensors:
        return f"{kind} to another kind of numbers"
    elif node.target is aten.copy_.default and not _is_complex(node):
        return f"{kind} to real numbers"
    return None


def _part_like(value: Tensor) -> Tensor:
    return torch.empty_like(value, dtype=value.dtype.to_real())


def _split_constant(gm: GraphModule, node: Node) -> tuple[Node, Node]:
    constant = constant_of(gm, node)
    assert constant is not None
    parts = []
    for part, tensor in (("real", constant.real), ("imag", constant.imag)):
        # Named so that no constant of the model can have the name.
        name = attribute_name("eccomplex_", f"{node.target}_{part}", (str(node.target), part))
        gm.register_buffer(name, tensor.contiguous(), persistent=False)
        with gm.graph.inserting_before(node):
            parts.append(gm.graph.get_attr(name))
        value = value_of(node)
        parts[-1].meta["val"] = tensor if value is None else _part_like(value)
    return parts[0], parts[1]


def _done_twice(
    gm: GraphModule, node: Node, pairs: dict[Node, tuple[Node, Node]]
) -> tuple[Node, Node]:
    def done(part: int) -> Node:
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: pairs.get(n, (n, n))[part])
        if "dtype" in kwargs:
            kwargs = {**kwargs, "dtype": node.meta["val"].dtype.to_real()}
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
        new.meta = {**node.meta, "val": _part_like(node.meta["val"])}
        return new

    return done(0), done(1)


def _done(gm: GraphModule, node: Node, pairs: dict[Node, tuple[Node, Node]]) -> list[Node]:
    """The node's function in real operators, on the parts of its operands."""
    operands = node.all_input_nodes
    flat = [part for x in operands for part in pairs.get(x, (x,))]

    def run(*tensors: Any) -> Any:
        rest = iter(tensors)
        values = {x: (next(rest), next(rest)) if x in pairs else next(rest) for x in operands}

        def value(x: Any) -> Any:
            if isinstance(x, complex):
                return x.real, x.imag
            return values[x] if isinstance(x, Node) else x

        args, kwargs = map_aggregate(node.args, value), map_aggregate(node.kwargs, value)
        return _FUNCTIONS[node.target](*args, **kwargs)

    return inline(gm, node, run, flat, symbolic=node.target in TRANSFORMS)
