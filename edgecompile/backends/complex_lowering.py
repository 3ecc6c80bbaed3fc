"""Graph lowering of complex numbers to pairs of real tensors.

Inductor has no code for complex numbers and calls a function of torch for each operator. What
models do with them is little: rotary embeddings written as a complex product, Fourier transforms.
A transform becomes a product with tables of cosines and sines: quick for the sizes that models
transform, a few hundred.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from edgecompile.backends.graph_constants import attribute_name, constant_of, value_of
from edgecompile.backends.graph_inlining import inline

__all__ = ["lower_complex"]

aten = torch.ops.aten

#: Operators that move elements alone: done to each part.
_MOVES = {
    aten.alias.default, aten.clone.default, aten.contiguous.default, aten.detach.default,
    aten.expand.default, aten.flatten.using_ints, aten.permute.default, aten.reshape.default,
    aten.resolve_conj.default, aten.select.int, aten.slice.Tensor, aten.squeeze.dim, aten.transpose.int,
    aten.unsqueeze.default, aten.view.default, aten.neg.default,
}  # fmt: skip

_CONVERSIONS = {
    aten.to.dtype,
    aten.to.dtype_layout,
    aten._to_copy.default,
}

#: A complex operand is a pair (of numbers where it is a number), a real one a tensor; so is the
#: result.
Pair = tuple[Tensor, Tensor]


def _times(a: Any, b: Any) -> Pair:
    if not isinstance(a, tuple):
        a, b = b, a
    if not isinstance(b, tuple):  # a real tensor or a number
        return a[0] * b, a[1] * b
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _plus(a: Any, b: Any, *, alpha: float = 1) -> Pair:
    if alpha != 1:
        b = _times(b, alpha) if isinstance(b, tuple) else b * alpha
    if not isinstance(a, tuple):
        a, b = b, a
    if not isinstance(b, tuple):
        # The imaginary part has the sum's shape, even if only the real one grows.
        return a[0] + b, a[1] + b * 0
    return a[0] + b[0], a[1] + b[1]


def _transform(x: Pair | Tensor, dim: int, inverse: bool, norm: str | None, half: bool) -> Pair:
    """The discrete Fourier transform along ``dim``, as a product with two tables."""
    real, imaginary = (x, None) if isinstance(x, Tensor) else x
    if not real.is_floating_point():
        real = real.to(torch.get_default_dtype())
    n = real.shape[dim]
    tables = _fixed_tables if isinstance(n, int) else _dynamic_tables
    cos, sin = tables(n, real.dtype, half)
    scaled = norm or "backward"
    if scaled == "ortho" or scaled == ("backward" if inverse else "forward"):
        scale: Any = n**-0.5 if scaled == "ortho" else 1 / n
        cos, sin = cos * scale, sin * scale
    sin = sin if inverse else -sin

    def product(part: Tensor, table: Tensor) -> Tensor:
        return (part.transpose(dim, -1) @ table).transpose(dim, -1)

    if imaginary is None:
        return product(real, cos), product(real, sin)
    return (
        product(real, cos) - product(imaginary, sin),
        product(real, sin) + product(imaginary, cos),
    )


def _fixed_tables(n: int, dtype: torch.dtype, half: bool) -> Pair:
    """Cosines and sines of ``2 pi i k / n`` for all i and k, as constants of the graph."""
    i, k = np.arange(n), np.arange(n // 2 + 1 if half else n)
    # Reduced first: the angle of a large product would have no digits left.
    angle = (i[:, None] * k % n) * (2 * math.pi / n)
    # By numpy, of which tracing sees nothing but the results.
    kind = np.float64 if dtype == torch.float64 else np.float32
    cos, sin = (torch.from_numpy(f(angle).astype(kind)) for f in (np.cos, np.sin))
    return cos, sin


def _dynamic_tables(n: Any, dtype: torch.dtype, half: bool) -> Pair:
    """The same of a size that only a run knows: made in each."""
    i, k = torch.arange(n), torch.arange(n // 2 + 1 if half else n)
    turns = (i[:, None] * k[None, :] % n).to(dtype) / n
    # Half a turn either way: float32 has the most digits there.
    angle = (turns - torch.round(turns)) * (2 * math.pi)
    return torch.cos(angle), torch.sin(angle)


def _fft(inverse: bool, half: bool = False) -> Callable[..., Pair]:
    def run(x: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Pair:
        if n is not None:
            raise NotImplementedError("a transform of another size than the tensor's")
        return _transform(x, dim, inverse, norm, half)

    return run


def _fftn(
    x: Any, s: Any = None, dim: list[int] | None = None, norm: str | None = None
) -> Pair | Tensor:
    if s is not None:
        raise NotImplementedError("a transform of another size than the tensor's")
    first = x if isinstance(x, Tensor) else x[0]
    for d in dim if dim is not None else range(first.dim()):
        x = _transform(x, d, False, norm, False)
    result: Pair | Tensor = x
    return result


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
    aten.fft_fft.default: _fft(inverse=False),
    aten.fft_ifft.default: _fft(inverse=True),
    aten.fft_rfft.default: _fft(inverse=False, half=True),
    aten.fft_fftn.default: _fftn,
    aten.fft_fft2.default: lambda x, s=None, dim=(-2, -1), norm=None: _fftn(x, s, dim, norm),
}


def _is_complex(node: Any) -> bool:
    value = value_of(node)
    return value is not None and value.is_complex()


def lower_complex(gm: GraphModule, kept: dict[str, str]) -> int:
    """Rewrites everything complex, or nothing; returns how many operators.

    Args:
        gm: rewritten in place.
        kept: gets the reason, by node name, why nothing was rewritten.
    """
    _drop_formalities(gm)
    concerned = [
        node
        for node in gm.graph.nodes
        if _is_complex(node) or any(_is_complex(x) for x in node.all_input_nodes)
    ]
    for node in concerned:
        reason = _obstacle(gm, node)
        if reason is not None:
            kept[node.name] = reason
            return 0
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
    return len(concerned)


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


def _obstacle(gm: GraphModule, node: Node) -> str | None:
    if node.op == "get_attr":
        return None if constant_of(gm, node) is not None else "a complex constant can't be read"
    if node.op != "call_function" or (node.target not in _MOVES and node.target not in _FUNCTIONS):
        return f"{node.target} of complex numbers"
    if any(_changes(user) for user in node.users):
        return "its memory is changed later"  # a pair's parts have another one
    if isinstance(node.kwargs.get("alpha"), complex):
        return "a sum with a complex factor"
    if not str(node.target).startswith("aten.fft_"):
        return None
    bound: dict[str, Any] = dict(zip(("x", "size", "dim", "norm"), node.args, strict=False))
    bound.update({"size" if k in ("n", "s") else k: v for k, v in node.kwargs.items()})
    if value_of(node.args[0]) is None or bound.get("size") is not None:
        return "a Fourier transform of another size than the tensor's"
    return None


def _changes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


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
    made = []
    for part in (0, 1):

        def chosen(n: Node, part: int = part) -> Node:
            return pairs[n][part] if n in pairs else n

        args, kwargs = map_arg(node.args, chosen), map_arg(node.kwargs, chosen)
        with gm.graph.inserting_before(node):
            new = gm.graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
        new.meta = {**node.meta, "val": _part_like(node.meta["val"])}
        made.append(new)
    return made[0], made[1]


def _done(gm: GraphModule, node: Node, pairs: dict[Node, tuple[Node, Node]]) -> list[Node]:
    """The node's function in real operators, on the parts of its operands."""
    operands = [x for x in node.args if isinstance(x, Node)]
    flat = [part for x in operands for part in pairs.get(x, (x,))]

    def run(*tensors: Tensor) -> Any:
        rest = list(tensors)
        values: list[Any] = []
        for x in node.args:
            if isinstance(x, complex):
                values.append((x.real, x.imag))
            elif not isinstance(x, Node):
                values.append(x)
            elif x in pairs:
                values.append((rest.pop(0), rest.pop(0)))
            else:
                values.append(rest.pop(0))
        return _FUNCTIONS[node.target](*values, **node.kwargs)

    # Only transforms ask for sizes.
    return inline(gm, node, run, flat, symbolic=str(node.target).startswith("aten.fft_"))
