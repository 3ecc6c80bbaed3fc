"""The rules of layers and look-ups: matrix products, convolutions, embeddings, norms, indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from edgecompile.export.padding.codes import Coded, Codes, label, mix, values_of
from edgecompile.export.padding.rules import (
    Arguments,
    content,
    described,
    equal,
    ordered,
    rule,
    unknown_of,
    whole,
)

__all__: list[str] = []

#: Weights of more elements count as one.
_MOST_ELEMENTS = 1 << 16


def _row(codes: Codes, item: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """One code for all that lies along some dimensions, in order."""
    return ordered(codes.of(item), dims).sum(list(dims), keepdim=True)


@rule("mm bmm addmm baddbmm mv dot addmv")
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
    some = [~equal(item, 0) for item in (a, b)]
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
        left, right = (
            mix(k, codes.of(t)) * s for k, t, s in zip((21, 22), (a, b), some, strict=True)
        )
        code = left @ right
        zero = (some[0].float() @ some[1].float()) == 0
    unknown = torch.ones_like(value, dtype=torch.bool) & ~zero
    extra = arguments.get("self") if "add" in name else None
    rest = label(name, arguments.get("alpha", 1), arguments.get("beta", 1))
    if extra is not None:
        code, unknown = mix(rest, code, codes.of(extra)), unknown | True
    return Coded.of(value, unknown, mix(5, code))


@rule("convolution")
def _convolve(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source, weight, groups = arguments["input"], arguments["weight"], arguments["groups"]
    if arguments["transposed"] or isinstance(weight, Coded) or source.dim() != weight.dim():
        return whole(codes, name, arguments, value)
    n, c, *sizes = source.shape
    code = mix(1, codes.of(source)).masked_fill(equal(source, 0), 0)
    code = code.reshape(n, groups, c // groups, *sizes)
    place = torch.arange(c // groups).reshape(-1, *([1] * len(sizes)))
    column = torch.where(code == 0, 0, mix(2, code, place)).sum(2)
    pads = [side for pad in reversed(arguments["padding"]) for side in (pad, pad)]
    column = torch.nn.functional.pad(column, pads)
    sums = torch.zeros(n, groups, *value.shape[2:], dtype=torch.int64)
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
        sums += torch.where(part == 0, 0, mix(3, part, label(tap)))
    out = weight.shape[0]
    sums = sums.repeat_interleave(out // groups, 1)
    channel = torch.arange(out).reshape(-1, *([1] * len(sizes)))
    vector = arguments.get("bias")
    bias = 0 if vector is None else codes.whole(vector)
    unknown = torch.ones_like(value, dtype=torch.bool) & ((sums != 0) | (vector is not None))
    return Coded.of(value, unknown, mix(codes.whole(weight), sums, channel, bias))


@rule("gather")
def _gather(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source, index = arguments["self"], arguments["index"]
    if source.dim() != index.dim():
        return whole(codes, name, arguments, value)
    dim = arguments["dim"] % source.dim()
    row = _row(codes, source, [dim])
    # From a row that holds its own places one gets the index, which gather takes from 0 on: so a
    # decoder's path stays where it is at padded positions.
    places = torch.arange(source.shape[dim]).reshape(-1, *(1,) * (source.dim() - 1 - dim))
    stays = (~unknown_of(source) & (values_of(source) == places)).all(dim, keepdim=True)
    for other, size in enumerate(index.shape):
        if other != dim:
            row, stays = row.narrow(other, 0, size), stays.narrow(other, 0, size)
    own = codes.of(index)
    return Coded.of(value, None, torch.where(stays, own, mix(label(name), own, row)))


@rule("scatter")
def _scatter(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    target, index = arguments["self"], arguments["index"]
    source, dim = arguments.get("src", arguments.get("value")), arguments["dim"] % target.dim()
    others = [size for d, size in enumerate(target.shape) if d != dim]
    parts = [target, index, source] if isinstance(source, torch.Tensor) else [target, index]
    if any(p.dim() != target.dim() for p in parts) or any(
        others != [size for d, size in enumerate(p.shape) if d != dim] for p in parts
    ):
        return whole(codes, name, arguments, value)
    row = mix(described(name, arguments), *(_row(codes, part, [dim]) for part in parts))
    code = ordered(row.expand(value.shape), [dim])
    return Coded.of(value, None, code)


@rule("index")
def _index(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source, places = arguments["self"], arguments["indices"]
    if any(place is None or place.dtype in (torch.bool, torch.uint8) for place in places):
        return whole(codes, name, arguments, value)
    table = codes.whole(source) if _is_plain(source) else content(codes, source)
    row = mix(label(name), table, *map(codes.of, places))
    row = row.reshape([*row.shape, *([1] * (value.dim() - row.dim()))]).expand(value.shape)
    code = ordered(row, range(value.dim() - source.dim() + len(places), value.dim()))
    return Coded.of(value, None, code)


@rule("embedding")
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
    hashes = [(k, codes.whole(v)) for k, v in plain.items()]
    return label(hashes, described("", arguments))


@rule("native_layer_norm _fused_rms_norm")
def _layer_norm(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source = arguments["input"]
    if _varies(arguments):
        return whole(codes, name, arguments, value)
    first = source.dim() - len(arguments["normalized_shape"])
    dims = list(range(first, source.dim()))
    row = mix(_weights(codes, arguments), _row(codes, source, dims))
    code = ordered(row.expand(source.shape), dims)
    return tuple(map(Coded.of, value, (None, None, None), (code, mix(0, row), mix(1, row))))


@rule("native_group_norm")
def _group_norm(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source, groups = arguments["input"], arguments["group"]
    if _varies(arguments):
        return whole(codes, name, arguments, value)
    grouped = codes.of(source).reshape(source.shape[0], groups, -1)
    row = mix(_weights(codes, arguments), ordered(grouped, [2]).sum(2))
    code = ordered(row[:, :, None].expand(grouped.shape), [1, 2]).reshape(source.shape)
    return tuple(map(Coded.of, value, (None, None, None), (code, mix(0, row), mix(1, row))))


@rule("native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit")
def _batch_norm(codes: Codes, name: str, arguments: Arguments, value: Any) -> Any:
    source = arguments["input"]
    if arguments.get("training") or _varies(arguments):
        return whole(codes, name, arguments, value)
    code = mix(_weights(codes, arguments), ordered(codes.of(source), [1]))
    return (Coded.of(value[0], None, code), *(Coded.of(part) for part in value[1:]))


@rule("view_as_complex")
def _to_complex(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source = arguments["self"]
    code = codes.of(source)
    return Coded.of(value, unknown_of(source).any(-1), mix(1, code[..., 0], code[..., 1]))


@rule("view_as_real")
def _to_real(codes: Codes, name: str, arguments: Arguments, value: torch.Tensor) -> Any:
    source = arguments["self"]
    code = mix(label(name), codes.of(source)[..., None], torch.arange(2))
    return Coded.of(value, unknown_of(source)[..., None], code)
