"""Lets transformers' models scan their tokens by our own operator.

transformers' versions pad a run to whole chunks, which fixes its length in an exported program, and take
tokens behind the last one for part of the text. Models have these functions under common names, each in
the module of its class.

For single tokens transformers has other functions, which round otherwise. Where runs of several tokens have to
give what single ones do, to the last bit, all of them scan by our operator.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
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
    dt = dt if dt_bias is None else dt + dt_bias
    dt = softplus(dt) if dt_softplus else dt
    dt = dt.clamp(*dt_limit)
    y, final = _cache.get().scan(
        C,
        B,
        hidden_states * dt[..., None],
        torch.exp(A * dt),
        None,
        _first(initial_states, hidden_states, hidden_states.shape[3], B.shape[3]),
        values_first=True,
    )
    y = y if D is None else y + D[:, None] * hidden_states
    y = y if z is None else y * silu(z)
    return (y, final) if return_final_states else y


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
    dt = dt if delta_bias is None else dt + delta_bias[:, None]
    dt = (softplus(dt) if delta_softplus else dt).transpose(1, 2)
    x = hidden_states.transpose(1, 2)
    cache = _cache.get()
    y, final = cache.scan(
        C.transpose(1, 2)[:, :, None],
        B.transpose(1, 2)[:, :, None],
        (x * dt)[..., None],
        torch.exp(A * dt[..., None]),
        None,
        cache.asked[..., None],
    )
    y = y[..., 0] if D is None else y[..., 0] + D * x
    y = y.transpose(1, 2)
    y = y if z is None else y * silu(z)
    return (y, final[..., 0]) if return_last_state else y


def _scan_mamba2_steps(*arguments: Any, **named: Any) -> Any:
    """As single tokens: those know no limits of ``dt``."""
    return _scan_mamba2(*arguments, **{**named, "dt_limit": _UNLIMITED})


def _step_mamba2(
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
    """transformers' ``mamba2_selective_state_update``: ``mamba2_chunk_scan`` of one token.

    What a head has one value of comes for each of its numbers. The state is changed in place.
    """
    y, final = _scan_mamba2(
        hidden_states[:, None],
        dt[:, None, :, 0],
        A[:, 0, 0],
        B[:, None],
        C[:, None],
        1,
        None if D is None else D[:, 0],
        None if z is None else z[:, None],
        None if dt_bias is None else dt_bias[:, 0],
        state,
        dt_softplus,
        return_final_states=True,
        **rest,
    )
    state.copy_(final)
    return y[:, 0]  # type: ignore[no-any-return]


def _step_mamba(
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
    """transformers' ``mamba_selective_state_update``: ``mamba_selective_scan`` of one token, in place."""
    y, final = _scan_mamba(
        hidden_states[:, :, None],
        dt[:, :, None],
        A,
        B[:, :, None],
        C[:, :, None],
        D,
        None if z is None else z[:, :, None],
        dt_bias,
        dt_softplus,
        True,
        **rest,
    )
    state.copy_(final)
    return y[:, :, 0]  # type: ignore[no-any-return]


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
    "mamba2_selective_state_update": _step_mamba2,
    "mamba_selective_scan": _scan_mamba,
    "mamba_selective_state_update": _step_mamba,
    "recurrent_kimi_delta_attention": _scan_delta_steps,
    "torch_chunk_gated_delta_rule": _scan_delta_steps,
    "torch_recurrent_gated_delta_rule": _scan_delta_steps,
}
