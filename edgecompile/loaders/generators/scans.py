"""Lets transformers' models scan their tokens by our own operator.

transformers' versions pad a run to whole chunks, which fixes its length in an exported program, and take
tokens behind the last one for part of the text. Models have these functions under common names, each in
the module of its class.

For single tokens transformers has other functions, which round otherwise. Where runs of several tokens have to
give what single ones do, to the last bit, all of them scan by our operator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from edgecompile.export.operators.copy import COPY
from edgecompile.loaders.generators.cache import WrittenCache

# Arguments with a meaning: sequences that are packed in one run.
_UNSUPPORTED = ("cu_seqlens", "seq_idx")
# transformers' constant in the norm of queries and keys.
_EPSILON = 1e-6
_UNLIMITED = (0.0, float("inf"))

_cache: ContextVar[WrittenCache] = ContextVar("edgecompile_scanned_cache")


@contextmanager
def scanning(model: nn.Module, cache: WrittenCache, *, as_steps: bool = False) -> Iterator[None]:
    """Lets the parts of ``model`` scan by our operator meanwhile, up to the last real token of a run.

    With ``as_steps`` single tokens do so, too, and several tokens are computed as single ones are.
    """
    scans = _STEPS if as_steps else _SCANS
    names = {type(part).__module__ for part in model.modules()}
    found = [
        (module, name, getattr(module, name))
        for module in (sys.modules[name] for name in sorted(names))
        for name in scans
        if hasattr(module, name)
    ]
    token = _cache.set(cache)
    for module, name, _ in found:
        setattr(module, name, scans[name])
    try:
        yield
    finally:
        for module, name, own in found:
            setattr(module, name, own)
        _cache.reset(token)


def _scan_mamba2(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = _UNLIMITED,
    return_final_states: bool = False,
    **rest: Any,
) -> Any:
    """transformers' ``mamba2_chunk_scan``; states are [1, heads, width, state size]."""
    _refuse(rest)
    dt = _rates(dt, dt_bias, dt_softplus).clamp(*dt_limit)
    state = _first(initial_states, hidden_states, hidden_states.shape[3], B.shape[3])
    y, final = _mamba2(hidden_states, dt, A, B, C, D, z, state)
    return (y, final) if return_final_states else y


def _mamba2(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, state: Tensor
) -> tuple[Tensor, Tensor]:
    rows, scan = x * dt[..., None], _cache.get().scan
    y, final = scan(C, B, rows, torch.exp(A * dt), None, state, values_first=True)
    y = y if D is None else y + D[:, None] * x
    return y if z is None else y * silu(z), final


def _scan_delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' ``torch_chunk_gated_delta_rule``, and ``chunk_kimi_delta_attention``.

    ``g`` has a decay for each head, or for each key of it. States are [1, heads, key width, value width].
    """
    _refuse(rest)
    if use_qk_l2norm_in_kernel:
        query, key = _normalised(query), _normalised(key)
    y, final = _cache.get().scan(
        query * query.shape[3] ** -0.5,
        key,
        value,
        torch.exp(g),
        beta,
        _first(initial_state, value, key.shape[3], value.shape[3]),
    )
    return y, final if output_final_state else None


def _scan_delta_steps(query: Tensor, key: Tensor, *arguments: Any, **named: Any) -> Any:
    """As single tokens: the sums of their norms are taken in the same order."""
    return _scan_delta(COPY(query), COPY(key), *arguments, **named)


def _scan_mamba(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **rest: Any,
) -> Any:
    """transformers' ``mamba_selective_scan``; states are [1, channels, state size].

    Each channel is a head with one value. transformers begins every scan with zeros; this one goes on
    from the state that the layer has asked its cache for.
    """
    _refuse(rest)
    bias = None if delta_bias is None else delta_bias[:, None]
    dt = _rates(dt, bias, delta_softplus)
    y, final = _mamba(hidden_states, dt, A, B, C, D, z, _cache.get().asked)
    return (y, final) if return_last_state else y


def _mamba(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Any, z: Any, state: Tensor
) -> tuple[Tensor, Tensor]:
    x, dt, B, C = (tensor.transpose(1, 2) for tensor in (x, dt, B, C))
    rows, decay = (x * dt)[..., None], torch.exp(A * dt[..., None])
    y, final = _cache.get().scan(C[:, :, None], B[:, :, None], rows, decay, None, state[..., None])
    y = y[..., 0] if D is None else y[..., 0] + D * x
    y = y.transpose(1, 2)
    return y if z is None else y * silu(z), final[..., 0]


def _rates(dt: Tensor, bias: Tensor | None, soft: bool) -> Tensor:
    dt = dt if bias is None else dt + bias
    return softplus(dt) if soft else dt


def _scan_mamba2_steps(hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
    """As single tokens: those know no limits of ``dt``. The sums of the norm behind it are taken in the same order."""
    return _scan_mamba2(COPY(hidden_states), *arguments, **{**named, "dt_limit": _UNLIMITED})


def _mamba2_step(x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return _mamba2(COPY(x), *arguments)


def _one_token(scan: Callable[..., Any], dim: int, *, heads: bool) -> Callable[..., Tensor]:
    """transformers' update of a state by one token, in place: a scan of that token, which stands at ``dim``.

    With ``heads``, a head's number comes once for each of its values.
    """

    def step(
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **rest: Any,
    ) -> Tensor:
        _refuse(rest)
        if heads:
            dt, A = dt[..., 0], A[:, 0, 0]
            D, dt_bias = (None if item is None else item[:, 0] for item in (D, dt_bias))
        dt = _rates(dt, dt_bias, dt_softplus)
        x, dt, B, C = (tensor.unsqueeze(dim) for tensor in (hidden_states, dt, B, C))
        y, final = scan(x, dt, A, B, C, D, None if z is None else z.unsqueeze(dim), state)
        state.copy_(final)
        return y.select(dim, 0)  # type: ignore[no-any-return]

    return step


def _first(state: Tensor | None, values: Tensor, *sizes: int) -> Tensor:
    return values.new_zeros(1, values.shape[2], *sizes) if state is None else state


def _normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(3, keepdim=True) + _EPSILON)


def _refuse(rest: dict[str, Any]) -> None:
    # transformers passes further arguments, which its own versions take no notice of.
    unknown = [name for name in _UNSUPPORTED if rest.get(name) is not None]
    if unknown:
        raise NotImplementedError("a scan with " + ", ".join(unknown))


_SCANS = {
    "chunk_kimi_delta_attention": _scan_delta,
    "mamba2_chunk_scan": _scan_mamba2,
    "mamba_selective_scan": _scan_mamba,
    "torch_chunk_gated_delta_rule": _scan_delta,
}
_STEPS = {
    "chunk_kimi_delta_attention": _scan_delta_steps,
    "mamba2_chunk_scan": _scan_mamba2_steps,
    "mamba2_selective_state_update": _one_token(_mamba2_step, 1, heads=True),
    "mamba_selective_scan": _scan_mamba,
    "mamba_selective_state_update": _one_token(_mamba, 2, heads=False),
    "recurrent_kimi_delta_attention": _scan_delta_steps,
    "torch_chunk_gated_delta_rule": _scan_delta_steps,
    "torch_recurrent_gated_delta_rule": _scan_delta_steps,
}
