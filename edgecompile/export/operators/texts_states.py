"""States of a fixed size of several texts, each in memory of its own, read and replaced in place.

As :mod:`edgecompile.export.operators.texts_attention` does, these operators take addresses as numbers. At the
address 0 there is no state: one of zeros is read, and none is written. A text that begins, at position 0, finds zeros as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from edgecompile.export.operators.library import define
from edgecompile.export.operators.linear_scan import linear_scan


def _state_at(address: int, place: int, sizes: Sequence[int]) -> Tensor:
    """The state at an address, which writes to it change; one of zeros where there is none."""
    count = torch.Size(sizes).numel()
    if not address:
        return torch.zeros(sizes)
    memory = torch.frombuffer(
        (ctypes.c_char * (4 * count)).from_address(address), dtype=torch.float32
    )
    return (memory if place > 0 else memory.zero_()).view(*sizes)


def texts_window(x: Tensor, states: Tensor, position: Tensor, size: int) -> Tensor:
    """Computes the operator with torch's own ones; see :data:`TEXTS_WINDOW`."""
    result = x.new_empty((x.shape[0], x.shape[1], size + 1))
    for text, place in enumerate(position.tolist()):
        state = _state_at(int(states[text]), place, (x.shape[1], size))
        result[text] = torch.cat([state, x[text]], 1)
        state.copy_(result[text, :, 1:])
    return result


def texts_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor | None,
    states: Tensor,
    position: Tensor,
    values_first: bool,
) -> Tensor:
    """Computes the operator with torch's own ones; see :data:`TEXTS_SCAN`."""
    result = v.new_empty(v.shape)
    sizes = (v.shape[1], q.shape[2], v.shape[2])
    stored = (sizes[0], sizes[2], sizes[1]) if values_first else sizes
    for text, place in enumerate(position.tolist()):
        own = slice(text, text + 1)
        memory = _state_at(int(states[text]), place, stored)
        state = memory.transpose(1, 2) if values_first else memory
        rate = None if beta is None else beta[own]
        y, final = linear_scan(q[own], k[own], v[own], decay[own], rate, state, torch.tensor([0]))
        result[text] = y[0]
        state.copy_(final)
    return result


#: ``x`` float32 [texts, channels, 1]: the next input of a convolution of each text. ``states`` int64 [texts]: the
#: addresses of its last ``size`` inputs, float32 [channels, size]. ``position`` int64 [texts]: the token's place.
#: Gives the last inputs and the new one, [texts, channels, size + 1], and keeps the last ``size`` of them.
TEXTS_WINDOW = define(
    "ec_texts_window(Tensor x, Tensor states, Tensor position, int size) -> Tensor",
    texts_window,
    lambda x, states, position, size: x.new_empty((x.shape[0], x.shape[1], size + 1)),
)
#: One token of each text by :data:`edgecompile.export.operators.linear_scan.LINEAR_SCAN`: ``q`` and ``k``
#: [texts, key heads, keys], ``v`` [texts, heads, values], ``decay`` [texts, heads] or [texts, heads, keys], ``beta``
#: [texts, heads]. ``states`` int64 [texts]: the addresses of the states, float32 [heads, keys, values], with
#: ``values_first`` [heads, values, keys]. ``position`` int64 [texts]. Gives y [texts, heads, values], and replaces the states.
TEXTS_SCAN = define(
    "ec_texts_scan(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor? beta, Tensor states, "
    "Tensor position, bool values_first) -> Tensor",
    texts_scan,
    lambda q, k, v, *_: v.new_empty(v.shape),
)
