"""Attention against numpy in float64 and against torch's eager kernel where rows are masked."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.native.guarded import guarded
from tests.native.kernels.narrow import bf16_bits, bf16_values

F = np.float32
I64 = ctypes.c_int64
INF = math.inf


class CArgs(ctypes.Structure):
    _fields_ = (
        ("q", ctypes.c_void_p), ("k", ctypes.c_void_p), ("v", ctypes.c_void_p),
        ("out", ctypes.c_void_p), ("batch", I64), ("heads_q", I64), ("heads_kv", I64),
        ("len_q", I64), ("len_k", I64), ("dim", I64), ("dim_v", I64), ("q_strides", I64 * 3),
        ("k_strides", I64 * 3), ("v_strides", I64 * 3), ("out_strides", I64 * 3),
        ("mask", ctypes.c_void_p), ("mask_kind", ctypes.c_int), ("mask_strides", I64 * 4),
        ("causal", ctypes.c_bool), ("scale", ctypes.c_float), ("offset", I64), ("window", I64),
        ("softcap", ctypes.c_float), ("narrow", ctypes.c_bool), ("stored", ctypes.c_int32),
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    q: np.ndarray  # [B, H, L, D], last axis contiguous
    k: np.ndarray  # as q, or uint16 that are bfloat16, or int8 with scales
    v: np.ndarray
    mask: np.ndarray | None = None  # bool or float32, broadcast to [B, H, Lq, Lk]
    causal: bool = False
    offset: int = 0
    window: int = 0
    softcap: float = 0.0
    narrow: bool = False

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.q.shape[-1])


def run(lib: ctypes.CDLL, case: Case, out: np.ndarray) -> None:
    q, k, v = case.q, case.k, case.v
    args = CArgs(
        q=q.ctypes.data, k=k.ctypes.data, v=v.ctypes.data, out=out.ctypes.data,
        batch=q.shape[0], heads_q=q.shape[1], heads_kv=k.shape[1], len_q=q.shape[2],
        len_k=k.shape[2], dim=q.shape[3], dim_v=out.shape[3], causal=case.causal, scale=case.scale,
        offset=case.offset, window=case.window, softcap=case.softcap, narrow=case.narrow,
        stored={"uint16": 1, "int8": 2}.get(k.dtype.name, 0),
    )  # fmt: skip
    for name, x in (("q", q), ("k", k), ("v", v), ("out", out)):
        assert x.size == 0 or x.shape[3] == 1 or x.strides[3] == x.itemsize
        setattr(args, f"{name}_strides", (I64 * 3)(*(s // x.itemsize for s in x.strides[:3])))
    if case.mask is not None:
        shape = (*q.shape[:3], k.shape[2])
        mask = np.broadcast_to(case.mask, shape)
        args.mask = mask.ctypes.data
        args.mask_kind = 1 if mask.dtype == bool else 2
        args.mask_strides = (I64 * 4)(*(s // mask.itemsize for s in mask.strides))
    lib.t_attention(ctypes.byref(args))


def expected(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The exact result (rows without keys are 0), and a bound on the error in float32."""
    group = case.q.shape[1] // case.k.shape[1]
    q = case.q.astype(np.float64)
    k = np.repeat(case.k, group, axis=1).astype(np.float64)
    v = np.repeat(case.v, group, axis=1).astype(np.float64)
    s = q @ k.swapaxes(-1, -2) * case.scale
    score_error = np.max(np.abs(q) @ np.abs(k.swapaxes(-1, -2)), axis=-1, initial=0) * case.scale
    if case.softcap:
        s = case.softcap * np.tanh(s / case.softcap)
    if case.mask is not None:
        s = s + (np.where(case.mask, 0, -INF) if case.mask.dtype == bool else case.mask)
    if case.causal:
        rows = case.offset + np.arange(s.shape[-2])[:, None]
        keys = np.arange(s.shape[-1])
        seen = (keys <= rows) & ((case.window == 0) | (keys > rows - case.window))
        s = np.where(seen, s, -INF)
    top = np.max(s, axis=-1, keepdims=True, initial=-INF)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    terms = np.max(np.abs(s), axis=-1, initial=0, where=np.isfinite(s))
    relative = 2.0**-24 * (2 * score_error + 2 * terms + 6 * math.sqrt(s.shape[-1]) + 16)
    return p @ v, relative[..., None] * (p @ np.abs(v)) + 1e-30


PAIR_QUERIES = 8
#: Causal queries without a mask that run one by one, so that each has the bits of a step of its own.
FEW_ROWS = 8


def rounds(lib: ctypes.CDLL, case: Case) -> bool:
    """Whether this build on this CPU rounds the operands of such a case to bfloat16."""
    lib.t_attention_rounds.restype = ctypes.c_bool
    queries = case.q.shape[2]
    if case.causal and case.mask is None and queries <= FEW_ROWS:
        return False  # each is a run of its own
    return case.narrow and queries >= PAIR_QUERIES and bool(lib.t_attention_rounds())


def expected_of_rounded(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """As ``expected`` for operands in bfloat16; the weights are rounded as well, by 2^-9 of each."""
    scale = F(case.scale) * F(math.log2(math.e))  # scores are to base 2
    q = bf16_values(bf16_bits(case.q * scale)).astype(np.float64) / float(scale)
    k, v = (bf16_values(bf16_bits(x)) for x in (case.k, case.v))
    rounded = replace(case, q=q, k=k, v=v)
    want, bound = expected(rounded)
    return want, bound + 2.0**-8 * expected(replace(rounded, v=np.abs(v)))[0]


def output(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """[B, H, L, D] full of NaN with the strides of [B, L, H, D + gap], and the memory under it."""
    b, h, length, d = shape
    gap = int(rng.choice([0, 0, 7]))
    memory = guarded(np.full((b, length, h, d + gap), np.nan, F))
    return memory.transpose(0, 2, 1, 3)[..., :d], memory


def check(lib: ctypes.CDLL, case: Case, rng: np.random.Generator, what: str) -> None:
    out, memory = output(rng, (*case.q.shape[:3], case.v.shape[3]))
    run(lib, case, out)
    want, bound = (expected_of_rounded if rounds(lib, case) else expected)(case)
    wrong = ~(np.abs(out - want) <= bound)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        pytest.fail(
            f"{what}: {wrong.sum()} wrong, at {at} got {out[at]} want {want[at]} ± {bound[at]}"
        )
    out[...] = np.nan
    assert np.isnan(memory).all(), f"{what}: wrote outside its output"


def random_tensor(rng: np.random.Generator, b: int, h: int, length: int, d: int) -> np.ndarray:
    """[B, H, L, D] as views of [B, L, H·D], of a fused [B, L, 3·H·D], or plain; often large."""
    x = rng.standard_normal((b, length, h * d), dtype=F) * F(rng.choice([1, 1, 4]))
    kind = rng.integers(0, 3)
    if kind == 0:
        x = guarded(x)
    elif kind == 1:
        x = guarded(np.concatenate([np.full_like(x, np.nan), x], axis=2))[..., h * d :]
    else:
        return guarded(np.ascontiguousarray(x.reshape(b, length, h, d).transpose(0, 2, 1, 3)))
    return x.reshape(b, length, h, d).transpose(0, 2, 1, 3)


def random_mask(
    rng: np.random.Generator, b: int, h: int, len_q: int, len_k: int
) -> np.ndarray | None:
    kind = rng.integers(0, 5)
    if kind == 0:
        return None
    shape = (*(n if rng.random() < 0.5 else 1 for n in (b, h, len_q)), len_k)
    keep = rng.random(shape) < rng.choice([0.05, 0.7, 0.95])
    if kind == 1:  # padding: the first keys only
        keep = np.broadcast_to(np.arange(len_k) < rng.integers(0, len_k + 1), shape)
    if rng.random() < 0.5:
        return guarded(keep)
    low = rng.choice([-INF, -10000.0, np.finfo(F).min])
    noise = rng.standard_normal(shape, dtype=F)
    return guarded(np.where(keep, noise, F(low)).astype(F))


@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_masks_and_strides(kernels: ctypes.CDLL, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(60):
        b, h_kv, group = (int(rng.choice(n)) for n in ([1, 1, 3], [1, 2, 5], [1, 1, 3]))
        lengths = [1, 2, 4, 5, 7, 16, 31, 32, 33, 49, 64, 100]
        len_k = int(rng.choice(lengths))
        len_q = len_k if rng.random() < 0.6 else int(rng.choice(lengths))
        d = int(rng.choice([32, 32, 64, 128, 8, 1, 17, 33]))
        d_v = d if rng.random() < 0.7 else int(rng.choice([1, 16, 40, 65]))
        kernels.t_set_num_threads(int(rng.integers(1, 4)))
        case = Case(
            random_tensor(rng, b, h_kv * group, len_q, d),
            random_tensor(rng, b, h_kv, len_k, d),
            random_tensor(rng, b, h_kv, len_k, d_v),
            random_mask(rng, b, h_kv * group, len_q, len_k),
            bool(rng.random() < 0.25),
        )
        check(kernels, case, rng, f"seed {seed}.{i}: {case.q.shape} {case.k.shape} {d_v}")


@pytest.mark.parametrize("length", [128, 257, 512, 1100])
@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_take_several_blocks(
    kernels: ctypes.CDLL, length: int, causal: bool
) -> None:
    rng = np.random.default_rng(length)
    for d, masked in [(32, False), (64, True), (128, False)]:
        q, k, v = (random_tensor(rng, 1, 2, length, d) for _ in range(3))
        mask = None
        if masked:
            keep = np.arange(length) < length * 2 // 3
            mask = guarded(keep.reshape(1, 1, 1, length))
        check(kernels, Case(q, k, v, mask, causal), rng, f"{length} {d} {causal}")


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_masks_with_a_row_for_each_query(kernels: ctypes.CDLL, narrow: bool, causal: bool) -> None:
    """All rows alike, as where a model writes out a broadcast; or but for one, which must count."""
    rng = np.random.default_rng(8)
    b, h = 2, 4
    for len_q, len_k, h_kv in ((50, 50, 4), (41, 70, 2), (30, 700, 1)):
        per_head = bool(rng.random() < 0.5)
        keep = rng.random((b, h if per_head else 1, 1, len_k)) < 0.7
        keep[0, 0, 0, :] = True  # nothing is masked, of one batch entry's head
        noise = rng.standard_normal(keep.shape, dtype=F)
        rows = [keep, *(np.where(keep, noise, F(low)) for low in (-INF, np.finfo(F).min))]
        for row in rows:
            alike = np.repeat(row, len_q, axis=2)
            other = alike.copy()
            other[-1, -1, -1, ::2] = False if row.dtype == bool else -INF
            for mask in (alike, other, np.zeros_like(alike)):
                q = random_tensor(rng, b, h, len_q, 32)
                k, v = (random_tensor(rng, b, h_kv, len_k, 32) for _ in range(2))
                case = Case(q, k, v, guarded(mask), causal, offset=len_k - len_q, narrow=narrow)
                check(kernels, case, rng, f"{q.shape} {k.shape} {row.dtype} {mask is other}")


def test_one_query_over_a_cache(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(3)
    for len_k in (1, 5, 33, 700):
        case = Case(
            random_tensor(rng, 1, 6, 1, 64),
            random_tensor(rng, 1, 2, len_k, 64),
            random_tensor(rng, 1, 2, len_k, 64),
        )
        check(kernels, case, rng, f"cache of {len_k}")


@pytest.mark.parametrize("seed", range(4))
def test_queries_placed_in_a_longer_cache(kernels: ctypes.CDLL, seed: int) -> None:
    """Windows, caps, shared heads; what no query sees holds NaN, so that reading it would show."""
    rng = np.random.default_rng(seed)
    for i in range(40):
        h_kv, group = int(rng.choice([1, 2, 5])), int(rng.choice([1, 1, 3, 7]))
        d, d_v = int(rng.choice([64, 32, 17])), int(rng.choice([64, 40]))
        len_q = int(rng.choice([1, 1, 3, 5, 40, 70]))
        len_k = len_q + int(rng.integers(1, 900))
        offset = int(rng.integers(0, len_k - len_q + 1))
        window = int(rng.choice([0, 0, 1, 9, 300]))
        keys = random_tensor(rng, 1, h_kv, len_k, d), random_tensor(rng, 1, h_kv, len_k, d_v)
        for x in keys:
            x[:, :, offset + len_q :] = np.nan
            if window:
                x[:, :, : max(0, offset + 1 - window)] = np.nan
        kernels.t_set_num_threads(int(rng.integers(1, 4)))
        softcap = float(rng.choice([0, 0, 5]))
        q = random_tensor(rng, 1, h_kv * group, len_q, d)
        out, memory = output(rng, (1, h_kv * group, len_q, d_v))
        run(kernels, Case(q, *keys, None, True, offset, window, softcap), out)
        k, v = (np.nan_to_num(x) for x in keys)
        want, bound = expected(Case(q, k, v, None, True, offset, window, softcap))
        what = f"{seed}.{i}: {q.shape} {keys[0].shape} at {offset}, window {window}, cap {softcap}"
        assert (np.abs(out - want) <= bound).all(), what
        out[...] = np.nan
        assert np.isnan(memory).all(), f"{what}: wrote outside its output"


@pytest.mark.parametrize("seed", range(4))
def test_operands_that_may_be_rounded(kernels: ctypes.CDLL, seed: int) -> None:
    """From some length on, where the CPU multiplies pairs of bfloat16; elsewhere nothing changes."""
    rng = np.random.default_rng(seed)
    lengths = [5, PAIR_QUERIES - 1, PAIR_QUERIES, PAIR_QUERIES + 1, 40, 97, 300]
    for i in range(25):
        b, h_kv, group = (int(rng.choice(n)) for n in ([1, 2], [1, 2, 5], [1, 1, 3]))
        len_q, len_k = int(rng.choice(lengths)), int(rng.choice([1, 31, 64, 65, 128, 333, 1100]))
        d, d_v = int(rng.choice([1, 7, 32, 33, 64, 300])), int(rng.choice([1, 16, 32, 45, 64]))
        kernels.t_set_num_threads(int(rng.integers(1, 4)))
        q = random_tensor(rng, b, h_kv * group, len_q, d)
        k, v = random_tensor(rng, b, h_kv, len_k, d), random_tensor(rng, b, h_kv, len_k, d_v)
        mask = random_mask(rng, b, h_kv * group, len_q, len_k)
        case = Case(q, k, v, mask, bool(rng.random() < 0.3), narrow=True)
        check(kernels, case, rng, f"{seed}.{i}: {q.shape} {k.shape} {v.shape}")


@pytest.mark.parametrize("length", [33, 80, 97])
@pytest.mark.parametrize("spoilt", ["k", "v"])
def test_keys_that_no_query_of_a_tile_sees_are_not_read(
    kernels: ctypes.CDLL, length: int, spoilt: str
) -> None:
    """Tiles have up to 12 queries, those of pairs take two keys at once: an odd last one has none
    beside it."""
    kernels.t_set_num_threads(1)  # else shorter tiles, and what they see wrongly isn't told apart
    rng = np.random.default_rng(5)
    x = {name: random_tensor(rng, 1, 1, length, 32) for name in "qkv"}
    for key in range(12, length):
        one = {**x, spoilt: x[spoilt].copy()}
        one[spoilt][0, 0, key] = np.nan
        out = np.empty((1, 1, length, 32), F)
        run(kernels, Case(**one, causal=True, narrow=True), out)
        assert np.isfinite(out[0, 0, : key - 11]).all(), key
        assert np.isnan(out[0, 0, key:]).all(), key
        if spoilt == "k":  # whoever doesn't see the key has no score of it
            assert np.isfinite(out[0, 0, :key]).all(), key


def test_what_an_earlier_call_left_is_not_read(kernels: ctypes.CDLL) -> None:
    """An odd number of keys: beside the last weight of a row stands what the memory held before."""
    kernels.t_set_num_threads(1)
    rng = np.random.default_rng(9)
    for first in range(64, 200, 8):
        q, k, v = (random_tensor(rng, 1, 1, first, 32) for _ in range(3))
        keep = guarded(np.broadcast_to(np.arange(first) < 40, (1, 1, 1, first)))
        run(kernels, Case(q, k, v, keep, narrow=True), np.empty((1, 1, first, 32), F))
        for length in (33, 65, 97, 129):
            q, k, v = (random_tensor(rng, 1, 1, length, 32) for _ in range(3))
            check(kernels, Case(q, k, v, causal=True, narrow=True), rng, f"{length} after {first}")


@pytest.mark.parametrize("group", [8, 32])
def test_one_query_of_many_heads_that_share_keys(kernels: ctypes.CDLL, group: int) -> None:
    rng = np.random.default_rng(group)
    for len_k in (1, 33, 400):
        q = random_tensor(rng, 1, 2 * group, 1, 64)
        k, v = (random_tensor(rng, 1, 2, len_k, 64) for _ in range(2))
        check(kernels, Case(q, k, v, narrow=True), rng, f"{group} {len_k}")


def test_scores_of_any_size_do_not_overflow(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(4)
    q, k, v = (random_tensor(rng, 1, 2, 40, 32) for _ in range(3))
    out = np.empty((1, 2, 40, 32), F)
    run(kernels, Case(q * F(1e4), k * F(1e4), v), out)
    assert np.isfinite(out).all()
    assert (np.abs(out) <= np.abs(v).max()).all()


def test_no_keys_at_all_gives_zeros(kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(5)
    empty = np.zeros((1, 2, 0, 32), F)
    for len_q in (1, 10):
        out = np.full((1, 2, len_q, 32), np.nan, F)
        run(kernels, Case(random_tensor(rng, 1, 2, len_q, 32), empty, empty), out)
        assert (out == 0).all()


def test_masked_rows_and_nan_as_torch_eager(kernels: ctypes.CDLL) -> None:
    """Rows without a key give 0, a NaN spreads even from a masked key: what torch's kernel does."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    b, h, length, d = 2, 3, 70, 32
    for len_q in (2, length):
        q = rng.standard_normal((b, h, len_q, d), dtype=F)
        k, v = (rng.standard_normal((b, h, length, d), dtype=F) for _ in range(2))
        keep = rng.random((b, 1, len_q, length)) < 0.5
        keep[:, :, 1] = False
        infinite = np.where(keep, F(0), F(-INF)).astype(F)
        lowest = np.where(keep, F(0), np.finfo(F).min).astype(F)
        poisoned_k, poisoned_v, infinite_k = k.copy(), v.copy(), k.copy()
        poisoned_k[0, 0, 3, 2] = np.nan
        poisoned_v[0, 1, 5, 7] = np.nan
        infinite_k[1, 2, 9] = np.inf
        for mask in (keep, infinite, lowest):
            for key, value in ((k, v), (poisoned_k, v), (k, poisoned_v), (infinite_k, v)):
                want = torch.nn.functional.scaled_dot_product_attention(
                    *(torch.from_numpy(x) for x in (q, key, value)),
                    attn_mask=torch.from_numpy(mask),
                ).numpy()
                out = np.empty_like(want)
                run(kernels, Case(q, key, value, mask), out)
                np.testing.assert_allclose(out, want, rtol=1e-4, atol=2e-5, equal_nan=True)


@pytest.mark.parametrize("len_q", [1, 30, 64, 90])
def test_causal_with_other_numbers_of_keys_as_torch(kernels: ctypes.CDLL, len_q: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(len_q)
    q = rng.standard_normal((1, 2, len_q, 32), dtype=F)
    k, v = (rng.standard_normal((1, 2, 64, 32), dtype=F) for _ in range(2))
    want = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x) for x in (q, k, v)), is_causal=True
    ).numpy()
    out = np.empty_like(want)
    run(kernels, Case(q, k, v, causal=True), out)
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=2e-5)
