"""The shim's kernels of attention and layer norm, against plain formulas; see test_aoti_kernels.py."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from tests.native.programs.aoti import Handle, ShimError, load_torch_shim
from tests.native.programs.test_aoti_kernels import close, strided
from tests.native.sweep import sweep

SDPA = "cpu__scaled_dot_product_flash_attention_for_cpu"


def attend(q, k, v, mask, causal: bool, scale: float):
    """Reference in float64: results and logsumexp; rows that see nothing give 0 and -inf."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = q @ k.swapaxes(2, 3) * scale
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    with np.errstate(all="ignore"):
        p = np.exp(scores - np.where(np.isfinite(top), top, 0))
        total = p.sum(-1, keepdims=True)
        lse = np.where(total > 0, np.log(total) + top, -np.inf)[..., 0]
        return np.where(total > 0, (p / total) @ v, 0.0), lse


def optional_handle(shim, array):
    return None if array is None else shim.borrow(array)


@sweep("seed", range(40))
def test_layer_norm(shim, seed: int):
    rng = np.random.default_rng(seed)
    width = int(rng.choice([1, 2, 7, 8, 31, 32, 33, 100, 384, 1000]))
    shape = [(3,), (1, 5), (130,), ()][seed % 4] + (width,)
    x = strided(rng, shape)
    # Far from zero: variances that are differences of squares would have no digits left.
    x += np.float32(rng.choice([0, 100]))
    weight = strided(rng, (width,)) if seed & 1 else None
    bias = strided(rng, (width,)) if seed & 2 else None
    handles = [optional_handle(shim, array) for array in (weight, bias)]
    pointers = [None if handle is None else ctypes.byref(handle) for handle in handles]
    given = shim.borrow(x)
    result = shim.make("cpu_ec_layer_norm", given, *pointers, ctypes.c_double(1e-5))
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    wanted = wanted * (1 if weight is None else weight) + (0 if bias is None else bias)
    got = shim.array(result)
    assert got.shape == x.shape and got.flags.c_contiguous
    # A mean of 100 has an error of 100 roundings' size, which the deviation may magnify.
    scale = 1 + np.abs(wide).max() / np.sqrt((centred**2).mean(-1).min() + 1e-5)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * scale * (1 + np.abs(wanted).max()))
    shim.delete(given, result, *[handle for handle in handles if handle is not None])


def test_layer_norm_refuses_what_does_not_fit(shim):
    x, short = shim.empty((2, 8)), shim.empty((7,))
    integers, scalar = shim.empty((2, 8), dtype=4), shim.empty(())
    eps = ctypes.c_double(1e-5)
    with pytest.raises(ShimError, match="weight is no vector of 8 elements"):
        shim.make("cpu_ec_layer_norm", x, ctypes.byref(short), None, eps)
    with pytest.raises(ShimError, match="bias is no vector of 8 elements"):
        shim.make("cpu_ec_layer_norm", x, None, ctypes.byref(short), eps)
    with pytest.raises(ShimError, match="x is int64"):
        shim.make("cpu_ec_layer_norm", integers, None, None, eps)
    with pytest.raises(ShimError, match="x has no dimension"):
        shim.make("cpu_ec_layer_norm", scalar, None, None, eps)
    shim.delete(x, short, integers, scalar)


def test_copies_are_row_major_and_apart(shim):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)[:, :, ::2]
    given = shim.borrow(x)
    result = shim.make("cpu_ec_copy", given)
    got = shim.array(result)
    assert got.flags.c_contiguous and not np.shares_memory(got, x)
    np.testing.assert_array_equal(got, x)
    shim.delete(given, result)


@sweep("seed", range(48))
def test_attention(shim, seed: int):
    rng = np.random.default_rng(seed)
    batch, heads, kv = [(1, 4, 4), (2, 4, 2), (3, 2, 1), (2, 1, 1)][seed % 4]
    lq, lk = (int(n) for n in rng.choice([1, 2, 5, 17, 33, 64], 2))
    dim, dim_v = (int(n) for n in rng.choice([1, 8, 20, 32, 64], 2))
    q = strided(rng, (batch, heads, lq, dim))
    k, v = strided(rng, (batch, kv, lk, dim)), strided(rng, (batch, kv, lk, dim_v))
    kind = seed // 4 % 4
    shape = [(batch, heads, lq, lk), (batch, 1, 1, lk), (lq, lk), (1, heads, lq, 1)][seed % 4]
    mask = None
    if kind == 1:
        mask = rng.random(shape) < 0.7
    elif kind == 2:
        mask = strided(rng, shape)
        mask[rng.random(shape) < 0.3] = -np.inf
    causal = kind == 3
    scale = float(rng.uniform(0.05, 1))
    wanted, lse = attend(q, k, v, mask, causal, scale)
    handles = [shim.borrow(x) for x in (q, k, v)]
    mask_handle = optional_handle(shim, mask)
    pointer = None if mask_handle is None else ctypes.byref(mask_handle)
    result = shim.make(
        "cpu_ec_attention", *handles, pointer, ctypes.c_int32(causal), ctypes.c_double(scale), 0
    )
    close(shim.array(result), wanted, 16)
    strides = shim.strides(result)
    assert strides == (lq * heads * dim_v, dim_v, heads * dim_v, 1)

    out, logsumexp = Handle(), Handle()
    number = ctypes.c_double(scale)
    shim.call(
        SDPA,
        *handles,
        ctypes.c_double(0),
        ctypes.c_int32(causal),
        pointer,
        ctypes.byref(number),
        ctypes.byref(out),
        ctypes.byref(logsumexp),
    )
    close(shim.array(out), wanted, 16)
    np.testing.assert_allclose(shim.array(logsumexp), lse, atol=1e-4)
    assert shim.strides(logsumexp) == (lq * heads, 1, heads)
    shim.delete(*handles, result, out, logsumexp, *([mask_handle] if mask_handle else []))


def test_attention_has_the_query_s_order_in_memory(shim):
    """Generated code takes it for that, whatever runs the attention."""
    torchs, rng = load_torch_shim(), np.random.default_rng(6)
    for order in itertools.permutations(range(3)):
        memory = rng.standard_normal([*((2, 3, 4)[d] for d in order), 8], np.float32)
        dense = memory.transpose(*np.argsort(order), 3)
        for q in (dense, dense[:, :, 1:]):
            found = []
            for library in (shim, torchs):
                handles = [library.borrow(x) for x in (q, dense, dense)]
                out, lse = Handle(), Handle()
                results = ctypes.byref(out), ctypes.byref(lse)
                library.call(SDPA, *handles, ctypes.c_double(0), 0, None, None, *results)
                found.append((library.array(out), library.strides(out)))
                library.delete(*handles, out, lse)
            assert found[0][1] == found[1][1], (order, q.strides)
            close(found[0][0], found[1][0], 16)


def test_attention_scale_defaults_to_the_width(shim):
    rng = np.random.default_rng(5)
    q, k, v = (strided(rng, (1, 2, 7, 16)) for _ in range(3))
    handles = [shim.borrow(x) for x in (q, k, v)]
    out, lse = Handle(), Handle()
    shim.call(
        SDPA, *handles, ctypes.c_double(0), 0, None, None, ctypes.byref(out), ctypes.byref(lse)
    )
    close(shim.array(out), attend(q, k, v, None, False, 0.25)[0], 16)
    shim.delete(*handles, out, lse)


def test_rows_that_attend_to_nothing_are_zero(shim):
    q = np.ones((1, 1, 3, 8), np.float32)
    mask = np.array([[True, False], [False, False], [False, True]])
    handles = [shim.borrow(x) for x in (q, q[:, :, :2], q[:, :, :2])]
    mask_handle = shim.borrow(mask)
    out = shim.make(
        "cpu_ec_attention", *handles, ctypes.byref(mask_handle), 0, ctypes.c_double(1.0), 0
    )
    np.testing.assert_array_equal(shim.array(out)[0, 0, :, 0], [1, 0, 1])
    shim.delete(*handles, mask_handle, out)


def test_attention_refuses_what_it_cannot_do(shim):
    q, k = shim.empty((1, 3, 4, 8)), shim.empty((1, 2, 4, 8))
    mask = shim.empty((4, 4), dtype=4)
    one = ctypes.c_double(1)
    with pytest.raises(ShimError, match="heads 3, 2 and 2"):
        shim.make("cpu_ec_attention", q, k, k, None, 0, one, 0)
    with pytest.raises(ShimError, match="attn_mask is int64"):
        shim.make("cpu_ec_attention", k, k, k, ctypes.byref(mask), 0, one, 0)
    first, second = Handle(), Handle()
    results = ctypes.byref(first), ctypes.byref(second)
    with pytest.raises(ShimError, match=r"dropout of 0\.5 is not supported"):
        shim.call(SDPA, k, k, k, ctypes.c_double(0.5), 0, None, None, *results)
    shim.delete(q, k, mask)
