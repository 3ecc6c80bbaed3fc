"""Rules of operators on codes: which elements of a result depend on which inputs.

A rule takes the codes, the values and the arguments by name, and gives the result's tensors. A rule
may say less than is true (two codes where one would do), never more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from edgecompile.export.padding.codes import Coded, Codes, label, mix, values_of

#: A bias of this and less leaves exp(score + bias - maximum) nothing of float32's range, unless
#: scores differ by half of it: where they do, float32 holds them in steps of 32 and more.
MASKED = -5e8
#: What a score with such a bias counts as; finite, since a row of these gives numbers, not NaN.
_BIASED = -1e30


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Operators that move elements of their first argument and change none; views are among them too.
COPIES = _names(
    "cat stack flip roll index_select gather index clone repeat repeat_interleave detach alias _unsafe_view "
    "unsafe_split unsafe_split_with_sizes unsafe_chunk contiguous lift_fresh tril triu diag_embed "
    "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d constant_pad_nd pixel_shuffle "
    "pixel_unshuffle channel_shuffle rot90 _reshape_alias _reshape_copy view_copy expand_copy "
    "permute_copy _pack_padded_sequence"
)
#: Operators that put elements of another argument, of this number, among those of their first.
PUTS = {"index_put": 2, "scatter": 3, "slice_scatter": 1, "select_scatter": 1, "index_copy": 3}
#: Operators that take no more than a shape from their first argument.
FRESH = _names(
    "zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided"
)

Arguments = Mapping[str, Any]
Rule = Callable[[Codes, str, Arguments, Any], Any]
RULES: dict[str, Rule] = {}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of these operators."""

    def keep(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), function))
        return function

    return keep


def unknown_of(item: Any) -> torch.Tensor:
    """A mask of the elements of an operand that depend on the inputs' values."""
    if isinstance(item, Coded):
        return item.unknown
    return torch.zeros(item.shape if isinstance(item, torch.Tensor) else (), dtype=torch.bool)


def equal(item: Any, value: float) -> torch.Tensor:
    """A mask of the elements of an operand that are known to be a number."""
    return ~unknown_of(item) & (torch.as_tensor(values_of(item)) == value)


def described(name: str, arguments: Arguments) -> int:
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
    operand_codes = [codes.of(operand) for operand in operands]
    code = mix(described(name, arguments), *operand_codes)
    codes.pass_doubt(code, unknown, *operand_codes)
    return Coded.of(value, unknown, code)


@rule("mul")
def _mul(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    a, b = arguments["self"], arguments["other"]
    code = mix(label(name), codes.of(a), codes.of(b))
    code = torch.where(equal(a, 1), codes.of(b), torch.where(equal(b, 1), codes.of(a), code))
    # NaN and infinity times zero aren't zero: the value tells.
    zero = (equal(a, 0) | equal(b, 0)) & (value == 0)
    unknown = (unknown_of(a) | unknown_of(b)) & ~zero
    codes.pass_doubt(code, unknown, codes.of(a), codes.of(b))
    return Coded.of(value, unknown, code)


@rule("div")
def _div(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    result = elementwise(codes, name, arguments, value)
    zero = equal(arguments["self"], 0) & (value == 0)
    code = torch.where(equal(arguments["other"], 1), codes.of(arguments["self"]), result.code)
    return Coded.of(value, result.unknown & ~zero, code)


@rule("add sub")
def _add(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    a, b, alpha = arguments["self"], arguments["other"], arguments.get("alpha", 1)
    result = elementwise(codes, name, arguments, value)
    if alpha != 1 or not value.is_floating_point():
        return result
    code, unknown, value = result.code, result.unknown, result.value.clone()
    code = torch.where(equal(b, 0), codes.of(a), code)
    if name == "add":
        code = torch.where(equal(a, 0), codes.of(b), code)
    for other, sign in ((a, 1), (b, 1 if name == "add" else -1)):
        number = sign * torch.as_tensor(values_of(other), dtype=torch.float64)
        biased = ~unknown_of(other) & (number <= MASKED) & unknown
        value = torch.where(biased & value.isfinite(), _BIASED, value)
        unknown = unknown & ~biased
        codes.pass_doubt(code, unknown, codes.of(other))
    return Coded.of(value, unknown, code)


@rule("where masked_fill")
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
    fills = [~unknown_of(item) & (torch.as_tensor(values_of(item)) <= MASKED) for item in (a, b)]
    codes.doubt(code[(open_ & (fills[0] | fills[1]) & unknown).expand(code.shape)])
    codes.pass_doubt(code, unknown.expand(code.shape), codes.of(a), codes.of(b))
    return Coded.of(value, unknown, code)


@rule("logical_and bitwise_and logical_or bitwise_or")
def _logic(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    result = elementwise(codes, name, arguments, value)
    if value.dtype != torch.bool:
        return result
    settles = 0 if name.endswith("and") else 1
    settled = equal(arguments["self"], settles) | equal(arguments["other"], settles)
    return Coded.of(value, result.unknown & ~settled, result.code)


@rule("_to_copy")
def _cast(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source = arguments["self"]
    code = codes.of(source)
    if not value.is_floating_point() and value.dtype != source.dtype:
        code = mix(label(name, str(value.dtype)), code)
    return Coded.of(value, unknown_of(source), code)


def _dims(arguments: Arguments, rank: int) -> list[int]:
    dim = arguments.get("dim")
    if dim is None or dim == []:
        return list(range(rank))
    return [d % rank for d in ([dim] if isinstance(dim, int) else dim)]


def ordered(code: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Codes that tell the places along some dimensions apart."""
    for dim in dims:
        place = torch.arange(code.shape[dim]).reshape([-1] + [1] * (code.dim() - 1 - dim))
        code = mix(11, code, place)
    return code


#: Reductions for which an element of this value, known, is as good as none.
_NEUTRAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **dict.fromkeys(("sum", "linalg_vector_norm", "any"), lambda v: v == 0),
    **dict.fromkeys(("prod", "all"), lambda v: v == 1),
    **dict.fromkeys(("amax", "max", "logsumexp", "argmax"), lambda v: v <= MASKED),
    **dict.fromkeys(("amin", "min", "argmin"), lambda v: v >= -MASKED),
}


@rule(
    "sum mean prod amax amin max min any all var std var_mean std_mean linalg_vector_norm logsumexp "
    "argmax argmin median nanmedian aminmax norm"
)
def _reduce(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source = arguments["self"]
    if isinstance(arguments.get("other"), torch.Tensor):
        return elementwise(codes, name, arguments, value)  # max and min of two tensors
    dims, unknown = _dims(arguments, source.dim()), unknown_of(source)
    keepdim = bool(arguments.get("keepdim"))
    terms, count = mix(1, codes.of(source)), 1
    placed = mix(1, ordered(codes.of(source), dims))
    test = _NEUTRAL.get(name) if arguments.get("ord", 2) > 0 else None
    how = {k: v for k, v in arguments.items() if k not in ("dim", "keepdim")}
    if test is None:
        for dim in dims:
            count *= source.shape[dim]
    else:
        neutral = ~unknown & test(values_of(source))
        terms, placed = terms.masked_fill(neutral, 0), placed.masked_fill(neutral, 0)
    open_ = unknown.any(dims, keepdim) if dims else unknown

    def result(index: int, tensor: torch.Tensor) -> Coded:
        parts = placed if tensor.dtype == torch.int64 and name != "sum" else terms
        code = parts.sum(dims, keepdim) if dims else parts
        return Coded.of(tensor, open_, mix(described(name, how), index, count, code))

    if isinstance(value, torch.Tensor):
        return result(0, value)
    return tuple(result(index, tensor) for index, tensor in enumerate(value))


@rule("_softmax _log_softmax _safe_softmax")
def _softmax(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source, dim = arguments["self"], arguments["dim"]
    unknown, values = unknown_of(source), values_of(source)
    masked = ~unknown & (values <= MASKED)
    code = codes.of(source)
    # A row that is masked as a whole weighs all of it, so one must be sure to stay.
    live = (~masked & ~codes.doubted(code)).any(dim, keepdim=True)
    masked &= live
    row = mix(1, code).masked_fill(masked, 0).sum(dim, keepdim=True)
    open_ = unknown.any(dim, keepdim=True)
    if name != "_log_softmax":
        open_ = open_ & ~masked
        value = value.masked_fill(masked, 0)
    return Coded.of(value, open_, mix(label("softmax", name == "_log_softmax"), row, code))


@rule("cumsum cumprod logcumsumexp cummax cummin")
def _cumulate(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source, dim = arguments["self"], arguments["dim"]
    unknown = unknown_of(source)
    zero = ~unknown & (values_of(source) == 0)
    code = codes.of(source)
    if name == "cumsum":
        terms = mix(1, code).masked_fill(zero, 0)
    else:
        terms = mix(1, ordered(code, [dim % source.dim()]))
    code = mix(label(name), terms.cumsum(dim))
    open_ = unknown.to(torch.int64).cumsum(dim) > 0
    if isinstance(value, torch.Tensor):
        return Coded.of(value, open_, code)
    return tuple(Coded.of(tensor, open_, mix(index, code)) for index, tensor in enumerate(value))


@rule("sort topk")
def _sort(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source = arguments["self"]
    dim = arguments.get("dim", -1) % max(source.dim(), 1)
    descending = arguments.get("descending", arguments.get("largest", name == "topk"))
    unknown, values = unknown_of(source), values_of(source)
    # What is masked comes last, whatever the others are.
    last = ~unknown & ((values <= MASKED) if descending else (values >= -MASKED))
    row = mix(1, ordered(codes.of(source), [dim])).masked_fill(last, 0).sum(dim, keepdim=True)
    enough = (~last).sum(dim, keepdim=True)
    ranks = torch.arange(value[0].shape[dim]).reshape([-1] + [1] * (source.dim() - 1 - dim))
    count = torch.where(ranks < enough, 0, source.shape[dim])
    code = mix(label(name, descending), row, ranks, count)
    return tuple(Coded.of(tensor, None, mix(index, code)) for index, tensor in enumerate(value))


def content(codes: Codes, tensor: Coded) -> int:
    """One code for all of a coded tensor."""
    flat = codes.of(tensor).reshape(-1)
    return label(tuple(tensor.shape), int(ordered(flat, [0]).sum()))


def whole(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    """An operator of which nothing is known: all of its result depends on all that it takes."""
    parts = []
    for item in arguments.values():
        for tensor in item if isinstance(item, (list, tuple)) else [item]:
            if isinstance(tensor, Coded):
                parts.append(content(codes, tensor))
            elif isinstance(tensor, torch.Tensor):
                parts.append(codes.whole(tensor))
    seed = label(described(name, arguments), parts)
    many = value if isinstance(value, (list, tuple)) else (value,)
    results = [
        Coded.of(t, None, mix(seed, index, torch.arange(t.numel()).reshape(t.shape)))
        if isinstance(t, torch.Tensor)
        else t
        for index, t in enumerate(many)
    ]
    return type(value)(results) if isinstance(value, (list, tuple)) else results[0]
