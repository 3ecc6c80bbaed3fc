"""What each operator does to codes: which elements of its result depend on which of its inputs.

A rule takes the codes, the values and the arguments by name, and gives the result's tensors. A rule
may say less than is true (two codes where one would do), never more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from edgecompile.padding_codes import Coded, Codes, label, mix, values_of

__all__ = ["COPIES", "FRESH", "PUTS", "RULES", "elementwise", "whole"]

#: A bias of this and less leaves exp(score + bias - maximum) nothing of float32's range, unless
#: scores differ by half of it: where they do, float32 holds them in steps of 32 and more.
MASKED = -5e8
#: What a score with such a bias counts as; finite, since a row of these gives numbers, not NaN.
_BIASED = -1e30
#: Weights of more elements count as one.
_MOST_ELEMENTS = 1 << 16

#: Operators that move elements of their first argument and change none; views are among them too.
COPIES = frozenset(
    "cat stack flip roll index_select gather index clone repeat repeat_interleave detach alias _unsafe_view "
    "unsafe_split unsafe_split_with_sizes unsafe_chunk contiguous lift_fresh tril triu diag_embed "
    "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d constant_pad_nd pixel_shuffle "
    "pixel_unshuffle channel_shuffle rot90 _reshape_alias _reshape_copy view_copy expand_copy "
    "permute_copy _pack_padded_sequence".split()
)
#: Operators that put elements of another argument, of this number, among those of their first.
PUTS = {"index_put": 2, "scatter": 3, "slice_scatter": 1, "select_scatter": 1, "index_copy": 3}
#: Operators that take no more than a shape from their first argument.
FRESH = frozenset(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided".split()
)

Arguments = Mapping[str, Any]
Rule = Callable[[Codes, str, Arguments, Any], Any]
RULES: dict[str, Rule] = {}


def _rule(names: str) -> Callable[[Rule], Rule]:
    def keep(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), rule))
        return rule

    return keep


def unknown_of(item: Any) -> torch.Tensor:
    if isinstance(item, Coded):
        return item.unknown
    return torch.zeros(item.shape if isinstance(item, torch.Tensor) else (), dtype=torch.bool)


def _equal(item: Any, value: float) -> torch.Tensor:
    """Where an operand is known to be a number."""
    return ~unknown_of(item) & (torch.as_tensor(values_of(item)) == value)


def _plain(name: str, arguments: Arguments) -> int:
    """The operator and its arguments that aren't tensors."""
    rest = {k: v for k, v in arguments.items() if not _has_tensor(v)}
    return label(name, sorted(rest.items(), key=str))


def _has_tensor(item: Any) -> bool:
    return isinstance(item, torch.Tensor) or (
        isinstance(item, (list, tuple)) and any(_has_tensor(part) for part in item)
    )


def elementwise(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    """An operator whose result at a place depends on its operands there."""
    operands = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
    unknown = unknown_of(operands[0])
    for operand in operands[1:]:
        unknown = unknown | unknown_of(operand)
    code = mix(_plain(name, arguments), *map(codes.of, operands))
    return Coded.of(value, unknown, code)


@_rule("mul")
def _mul(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    a, b = arguments["self"], arguments["other"]
    code = mix(label(name), codes.of(a), codes.of(b))
    code = torch.where(_equal(a, 1), codes.of(b), torch.where(_equal(b, 1), codes.of(a), code))
    # NaN and infinity times zero aren't zero: the value tells.
    zero = (_equal(a, 0) | _equal(b, 0)) & (value == 0)
    return Coded.of(value, (unknown_of(a) | unknown_of(b)) & ~zero, code)


@_rule("div")
def _div(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    result = elementwise(codes, name, arguments, value)
    zero = _equal(arguments["self"], 0) & (value == 0)
    code = torch.where(_equal(arguments["other"], 1), codes.of(arguments["self"]), result.code)
    return Coded.of(value, result.unknown & ~zero, code)


@_rule("add sub")
def _add(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    a, b, alpha = arguments["self"], arguments["other"], arguments.get("alpha", 1)
    result = elementwise(codes, name, arguments, value)
    if alpha != 1 or not value.is_floating_point():
        return result
    code, unknown, value = result.code, result.unknown, result.value.clone()
    code = torch.where(_equal(b, 0), codes.of(a), code)
    if name == "add":
        code = torch.where(_equal(a, 0), codes.of(b), code)
    for other, sign in ((a, 1), (b, 1 if name == "add" else -1)):
        number = sign * torch.as_tensor(values_of(other), dtype=torch.float64)
        biased = ~unknown_of(other) & (number <= MASKED) & unknown
        value = torch.where(biased & value.isfinite(), _BIASED, value)
        unknown = unknown & ~biased
    return Coded.of(value, unknown, code)


@_rule("where masked_fill")
def _where(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    if name == "where":
        condition, a, b = arguments["condition"], arguments["self"], arguments["other"]
    else:
        condition, a, b = arguments["mask"], arguments["value"], arguments["self"]
    chosen = torch.as_tensor(values_of(condition))
    open_ = unknown_of(condition)
    mixed = mix(label("where"), codes.of(condition), codes.of(a), codes.of(b))
    code = torch.where(open_, mixed, torch.where(chosen, codes.of(a), codes.of(b)))
    unknown = open_ | torch.where(chosen, unknown_of(a), unknown_of(b))
    return Coded.of(value, unknown, code)


@_rule("logical_and bitwise_and logical_or bitwise_or")
def _logic(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    result = elementwise(codes, name, arguments, value)
    if value.dtype != torch.bool:
        return result
    settles = 0 if name.endswith("and") else 1
    settled = _equal(arguments["self"], settles) | _equal(arguments["other"], settles)
    return Coded.of(value, result.unknown & ~settled, result.code)


@_rule("_to_copy")
def _cast(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source = arguments["self"]
    code = codes.of(source)
    if not value.is_floating_point() and value.dtype != source.dtype:
        code = mix(label(name, str(value.dtype)), code)
    return Coded.of(value, unknown_of(source), code)


def _dims(arguments: Arguments, rank: int) -> list[int]:
    given = arguments.get("dim")
    if given is None or given == []:
        return list(range(rank))
    return [d % rank for d in ([given] if isinstance(given, int) else given)]


def _ordered(code: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Codes that tell the places along some dimensions apart."""
    for dim in dims:
        place = torch.arange(code.shape[dim]).reshape([-1] + [1] * (code.dim() - 1 - dim))
        code = mix(11, code, place)
    return code


#: Reductions for which an element of this value, known, is as good as none.
_NEUTRAL = {
    **dict.fromkeys(("sum", "linalg_vector_norm", "any"), lambda v: v == 0),
    **dict.fromkeys(("prod", "all"), lambda v: v == 1),
    **dict.fromkeys(("amax", "max", "logsumexp", "argmax"), lambda v: v <= MASKED),
    **dict.fromkeys(("amin", "min", "argmin"), lambda v: v >= -MASKED),
}


@_rule(
    "sum mean prod amax amin max min any all var std var_mean std_mean linalg_vector_norm logsumexp "
    "argmax argmin median nanmedian aminmax norm"
)
def _reduce(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source = arguments["self"]
    if isinstance(arguments.get("other"), torch.Tensor):
        return elementwise(codes, name, arguments, value)  # max and min of two tensors
    dims, unknown = _dims(arguments, source.dim()), unknown_of(source)
    keep = bool(arguments.get("keepdim"))
    terms, count = mix(1, codes.of(source)), 1
    ordered = mix(1, _ordered(codes.of(source), dims))
    test = _NEUTRAL.get(name)
    if test is None:
        for dim in dims:
            count *= source.shape[dim]
    else:
        neutral = ~unknown & test(values_of(source))
        terms, ordered = terms.masked_fill(neutral, 0), ordered.masked_fill(neutral, 0)
    open_ = unknown.any(dims, keep) if dims else unknown

    def result(index: int, tensor: torch.Tensor) -> Coded:
        parts = ordered if tensor.dtype == torch.int64 and name != "sum" else terms
        code = parts.sum(dims, keep) if dims else parts
        return Coded.of(tensor, open_, mix(label(name, index, count), code))

    if isinstance(value, torch.Tensor):
        return result(0, value)
    return tuple(result(index, tensor) for index, tensor in enumerate(value))


@_rule("_softmax _log_softmax _safe_softmax")
def _softmax(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source, dim = arguments["self"], arguments["dim"]
    unknown, given = unknown_of(source), values_of(source)
    masked = ~unknown & (given <= MASKED)
    live = (~masked).any(dim, keepdim=True)
    masked &= live
    code = codes.of(source)
    row = mix(1, code).masked_fill(masked, 0).sum(dim, keepdim=True)
    open_ = unknown.any(dim, keepdim=True)
    if name != "_log_softmax":
        open_ = open_ & ~masked
        value = value.masked_fill(masked, 0)
    return Coded.of(value, open_, mix(label("softmax", name == "_log_softmax"), row, code))


@_rule("cumsum cumprod logcumsumexp cummax cummin")
def _cumulate(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source, dim = arguments["self"], arguments["dim"]
    unknown = unknown_of(source)
    zero = ~unknown & (values_of(source) == 0)
    code = codes.of(source)
    if name == "cumsum":
        terms = mix(1, code).masked_fill(zero, 0)
    else:
        terms = mix(1, _ordered(code, [dim % source.dim()]))
    code = mix(label(name), terms.cumsum(dim))
    open_ = unknown.to(torch.int64).cumsum(dim) > 0
    if isinstance(value, torch.Tensor):
        return Coded.of(value, open_, code)
    return tuple(Coded.of(tensor, open_, mix(index, code)) for index, tensor in enumerate(value))


@_rule("sort topk")
def _sort(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source = arguments["self"]
    dim = arguments.get("dim", -1) % max(source.dim(), 1)
    descending = arguments.get("descending", arguments.get("largest", name == "topk"))
    unknown, given = unknown_of(source), values_of(source)
    # What is masked comes last, whatever the others are.
    last = ~unknown & ((given <= MASKED) if descending else (given >= -MASKED))
    row = mix(1, _ordered(codes.of(source), [dim])).masked_fill(last, 0).sum(dim, keepdim=True)
    enough = (~last).sum(dim, keepdim=True)
    ranks = torch.arange(value[0].shape[dim]).reshape([-1] + [1] * (source.dim() - 1 - dim))
    count = torch.where(ranks < enough, 0, source.shape[dim])
    code = mix(label(name, descending), row, ranks, count)
    open_ = torch.ones_like(value[0], dtype=torch.bool)
    return tuple(Coded.of(tensor, open_, mix(index, code)) for index, tensor in enumerate(value))


def _row(codes: Codes, item: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """One code for all that lies along some dimensions, in order."""
    return _ordered(codes.of(item), dims).sum(list(dims), keepdim=True)


@_rule("mm bmm addmm baddbmm mv dot addmv")
def _contract(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    a, b = [
        arguments[k]
        for k in (
            ("self", "mat2", "vec", "tensor")
            if "add" not in name
            else ("mat1", "batch1", "mat", "mat2", "batch2", "vec")
        )
        if k in arguments
    ]
    some = [~_equal(item, 0) for item in (a, b)]
    weight = next((t for t in (a, b) if _is_plain(t) and t.numel() > _MOST_ELEMENTS), None)
    if weight is not None and min(a.dim(), b.dim()) > 1:
        if weight is b:
            left, right = _row(codes, a, [a.dim() - 1]), torch.arange(value.shape[-1])
        else:
            left, right = torch.arange(a.shape[-2])[:, None], _row(codes, b, [b.dim() - 2])
        code = mix(codes.whole(weight), left, right)
        if a.dim() == 3:
            code = mix(3, code, torch.arange(a.shape[0])[:, None, None])
        zero = torch.zeros_like(value, dtype=torch.bool)
    else:
        left, right = (mix(k, codes.of(t)) * s for k, t, s in zip((21, 22), (a, b), some))
        code = left @ right
        zero = (some[0].float() @ some[1].float()) == 0
    unknown = torch.ones_like(value, dtype=torch.bool) & ~zero
    extra = arguments.get("self") if "add" in name else None
    rest = label(name, arguments.get("alpha", 1), arguments.get("beta", 1))
    if extra is not None:
        code, unknown = mix(rest, code, codes.of(extra)), unknown | True
    return Coded.of(value, unknown, mix(5, code))


@_rule("convolution")
def _convolve(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source, weight, groups = arguments["input"], arguments["weight"], arguments["groups"]
    if arguments["transposed"] or isinstance(weight, Coded) or source.dim() != weight.dim():
        return whole(codes, name, arguments, value)
    n, c, *sizes = source.shape
    code = mix(1, codes.of(source)).masked_fill(_equal(source, 0), 0)
    code = code.reshape(n, groups, c // groups, *sizes)
    place = torch.arange(c // groups).reshape(-1, *([1] * len(sizes)))
    column = torch.where(code == 0, 0, mix(2, code, place)).sum(2)
    pads = [side for pad in reversed(arguments["padding"]) for side in (pad, pad)]
    column = torch.nn.functional.pad(column, pads)
    found = torch.zeros(n, groups, *value.shape[2:], dtype=torch.int64)
    taps = torch.cartesian_prod(*(torch.arange(k) for k in weight.shape[2:])).reshape(
        -1, len(sizes)
    )
    for tap in taps.tolist():
        part = column
        for d, (t, step, wide) in enumerate(
            zip(tap, arguments["stride"], arguments["dilation"], strict=True)
        ):
            stop = t * wide + step * (value.shape[2 + d] - 1) + 1
            part = part[(slice(None),) * (2 + d) + (slice(t * wide, stop, step),)]
        found += torch.where(part == 0, 0, mix(3, part, label(tap)))
    out = weight.shape[0]
    found = found.repeat_interleave(out // groups, 1)
    channel = torch.arange(out).reshape(-1, *([1] * len(sizes)))
    given = arguments.get("bias")
    bias = 0 if given is None else codes.whole(given)
    unknown = torch.ones_like(value, dtype=torch.bool) & ((found != 0) | (given is not None))
    return Coded.of(value, unknown, mix(codes.whole(weight), found, channel, bias))


@_rule("gather")
def _gather(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source, index = arguments["self"], arguments["index"]
    if source.dim() != index.dim():
        return whole(codes, name, arguments, value)
    dim = arguments["dim"] % source.dim()
    row = _row(codes, source, [dim])
    for other, size in enumerate(index.shape):
        row = row if other == dim else row.narrow(other, 0, size)
    return Coded.of(value, torch.ones((), dtype=torch.bool), mix(label(name), codes.of(index), row))


@_rule("scatter")
def _scatter(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    target, index = arguments["self"], arguments["index"]
    source, dim = arguments.get("src", arguments.get("value")), arguments["dim"] % target.dim()
    others = [size for d, size in enumerate(target.shape) if d != dim]
    parts = [target, index, source] if isinstance(source, torch.Tensor) else [target, index]
    if any(p.dim() != target.dim() for p in parts) or any(
        others != [size for d, size in enumerate(p.shape) if d != dim] for p in parts
    ):
        return whole(codes, name, arguments, value)
    row = mix(_plain(name, arguments), *(_row(codes, part, [dim]) for part in parts))
    code = _ordered(row.expand(value.shape), [dim])
    return Coded.of(value, torch.ones((), dtype=torch.bool), code)


@_rule("index")
def _index(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source, places = arguments["self"], arguments["indices"]
    if any(place is None or place.dtype in (torch.bool, torch.uint8) for place in places):
        return whole(codes, name, arguments, value)
    table = codes.whole(source) if _is_plain(source) else _content(codes, source)
    row = mix(label(name), table, *map(codes.of, places))
    row = row.reshape([*row.shape, *([1] * (value.dim() - row.dim()))]).expand(value.shape)
    code = _ordered(row, range(value.dim() - source.dim() + len(places), value.dim()))
    return Coded.of(value, torch.ones((), dtype=torch.bool), code)


@_rule("embedding")
def _embed(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    weight, ids = arguments["weight"], arguments["indices"]
    if isinstance(weight, Coded):
        return whole(codes, name, arguments, value)
    code = mix(codes.whole(weight), codes.of(ids)[..., None], torch.arange(value.shape[-1]))
    return Coded.of(value, unknown_of(ids)[..., None], code)


def _is_plain(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and not isinstance(item, Coded)


def _varies(arguments: Arguments) -> bool:
    """Whether more than the first argument depends on the inputs."""
    return sum(isinstance(item, Coded) for item in arguments.values()) > 1


def _weights(codes: Codes, arguments: Arguments) -> int:
    """One code for all plain tensors among the arguments."""
    plain = {k: v for k, v in arguments.items() if _is_plain(v)}
    found = [(k, codes.whole(v)) for k, v in plain.items()]
    return label(found, _plain("", arguments))


@_rule("native_layer_norm _fused_rms_norm")
def _layer_norm(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source = arguments["input"]
    if _varies(arguments):
        return whole(codes, name, arguments, value)
    first = source.dim() - len(arguments["normalized_shape"])
    dims = list(range(first, source.dim()))
    row = mix(_weights(codes, arguments), _row(codes, source, dims))
    code = _ordered(row.expand(source.shape), dims)
    every = torch.ones((), dtype=torch.bool)
    return (
        Coded.of(value[0], every, code),
        *(Coded.of(part, every, mix(index, row)) for index, part in enumerate(value[1:])),
    )


@_rule("native_group_norm")
def _group_norm(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source, groups = arguments["input"], arguments["group"]
    if _varies(arguments):
        return whole(codes, name, arguments, value)
    grouped = codes.of(source).reshape(source.shape[0], groups, -1)
    row = mix(_weights(codes, arguments), _ordered(grouped, [2]).sum(2))
    code = _ordered(row[:, :, None].expand(grouped.shape), [1, 2]).reshape(source.shape)
    every = torch.ones((), dtype=torch.bool)
    return (
        Coded.of(value[0], every, code),
        *(Coded.of(part, every, mix(index, row)) for index, part in enumerate(value[1:])),
    )


@_rule("native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit")
def _batch_norm(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source = arguments["input"]
    if arguments.get("training") or _varies(arguments):
        return whole(codes, name, arguments, value)
    code = mix(_weights(codes, arguments), _ordered(codes.of(source), [1]))
    every = torch.ones((), dtype=torch.bool)
    return (Coded.of(value[0], every, code), *(Coded.of(part) for part in value[1:]))


@_rule("view_as_complex")
def _to_complex(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source = arguments["self"]
    code = codes.of(source)
    return Coded.of(value, unknown_of(source).any(-1), mix(1, code[..., 0], code[..., 1]))


@_rule("view_as_real")
def _to_real(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source = arguments["self"]
    code = mix(label(name), codes.of(source)[..., None], torch.arange(2))
    return Coded.of(value, unknown_of(source)[..., None], code)


def _content(codes: Codes, tensor: Coded) -> int:
    """One code for all of a coded tensor."""
    flat = codes.of(tensor).reshape(-1)
    return label(tuple(tensor.shape), int(_ordered(flat, [0]).sum()))


def whole(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    """An operator of which nothing is known: all of its result depends on all that it takes."""
    parts = []
    for item in arguments.values():
        for tensor in item if isinstance(item, (list, tuple)) else [item]:
            if isinstance(tensor, Coded):
                parts.append(_content(codes, tensor))
            elif isinstance(tensor, torch.Tensor):
                parts.append(codes.whole(tensor))
    seed = label(_plain(name, arguments), parts)
    every = torch.ones((), dtype=torch.bool)
    many = value if isinstance(value, (list, tuple)) else (value,)
    made = [
        Coded.of(t, every, mix(seed, index, torch.arange(t.numel()).reshape(t.shape)))
        if isinstance(t, torch.Tensor)
        else t
        for index, t in enumerate(many)
    ]
    return type(value)(made) if isinstance(value, (list, tuple)) else made[0]
