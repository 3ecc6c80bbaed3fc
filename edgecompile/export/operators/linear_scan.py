"""The recurrence of state space models and of linear attention, as one operator over all tokens.

A head's state is a matrix. Each token lets it decay, adds the outer product of a key and a value, and
reads it by a query. With the delta rule the state's own answer to the key is taken off the value first.
transformers' versions fix the number of chunks when they are exported, and take padding for tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edgecompile.export.operators.library import define


def linear_scan(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None, state: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes the operator with torch's own ones; see :data:`LINEAR_SCAN`."""
    groups = v.shape[1] // q.shape[1]
    if groups > 1:
        q, k = q.repeat_interleave(groups, 1), k.repeat_interleave(groups, 1)
    decay = decay[:, :, None, None] if decay.dim() == 2 else decay[..., None]
    y, state = torch.zeros_like(v, memory_format=torch.contiguous_format), state.clone()
    for t in range(min(int(last) + 1, v.shape[0])):
        state = state * decay[t]
        value = v[t]
        if beta is not None:
            value = (value - (k[t, :, None] @ state)[:, 0]) * beta[t, :, None]
        state = state + k[t, :, :, None] * value[:, None]
        y[t] = (q[t, :, None] @ state)[:, 0]
    return y, state.contiguous()


#: ``q`` and ``k`` [length, key heads, keys], ``v`` [length, heads, values], ``decay``
#: [length, heads] or [length, heads, keys], ``beta`` [length, heads], ``state`` [heads, keys, values], ``last`` int64 [1]: the number of the last token
#: that counts. Head h reads key head ``h // (heads // key heads)``. For each token up to ``last``:
#: ``S = decay * S``; without ``beta``, ``S += outer(k, v)``, with
#: it ``S += outer(k, beta * (v - k S))``; then ``y = q S``. Gives y [length, heads, values], zeros behind
#: ``last``, and the state behind ``last``.
LINEAR_SCAN = define(
    "ec_linear_scan(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor? beta, Tensor state, "
    "Tensor last) -> (Tensor, Tensor)",
    linear_scan,
    lambda q, k, v, decay, beta, state, last: (v.new_empty(v.shape), state.new_empty(state.shape)),
)
