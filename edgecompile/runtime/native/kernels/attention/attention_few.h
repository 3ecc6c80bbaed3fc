// The two products of attention for a few queries: keys and values are read where they lie, once
// for all queries.
#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cache.h"
#include "kernels/gemm/gemm.h"

namespace ec {

// Queries below which transposing the keys costs more than dot products with each of them.
constexpr int kFewQueries = 4;

// Sums over the lanes of several vectors at a time, which take a third of the instructions of a
// reduce_add for each, in its order: so they are the same to the last bit.
//
// Each vector holds sums of kOf lanes. Of those of x and y the lower halves are added to the upper
// ones; the shuffles of 4 lanes and fewer stay within 128 bits.
template <int kOf>
EC_INLINE vf32 fold_lanes(vf32 x, vf32 y) {
  constexpr auto from = [](int i, bool upper) {
    constexpr int kHalf = kOf / 2, kUnit = kOf > 4 ? kFloatLanes : 4;
    const int unit = i / kUnit * kUnit, place = i - unit;
    const int sum = place / kHalf % (kUnit / kOf);
    return unit + sum * kOf + place % kHalf + (upper ? kHalf : 0) +
           (place < kUnit / 2 ? 0 : kFloatLanes);
  };
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return __builtin_shuffle(x, y, vi32{from(i, false)...}) +
           __builtin_shuffle(x, y, vi32{from(i, true)...});
  }(std::make_integer_sequence<int, kFloatLanes>{});
}

// Keys whose sums of four lanes fill a vector.
constexpr int kQuarter = kFloatLanes / 4;

EC_INLINE vf32 fold_to_quarters(const vf32 (&x)[kQuarter]) {
  if constexpr (kQuarter == 1) return x[0];
  if constexpr (kQuarter == 2) return fold_lanes<8>(x[0], x[1]);
  if constexpr (kQuarter == 4) {
    return fold_lanes<8>(fold_lanes<16>(x[0], x[1]), fold_lanes<16>(x[2], x[3]));
  }
}

// The sums of kFloatLanes keys in their order.
EC_INLINE vf32 fold_quarters(vf32 x0, vf32 x1, vf32 x2, vf32 x3) {
  const vf32 sums = fold_lanes<2>(fold_lanes<4>(x0, x1), fold_lanes<4>(x2, x3));
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    return __builtin_shuffle(sums, vi32{(i % kQuarter * 4 + i / kQuarter)...});
  }(std::make_integer_sequence<int, kFloatLanes>{});
}

// A row's last numbers. Loading a part of a vector takes as much code as all of the products.
template <class Number>
[[gnu::noinline]] vf32 load_rest(const Number* row, int64_t d, int64_t n) {
  return load_floats(row, d, n);
}

// q·kᵀ of kRows queries with the keys at `k`, four lanes of each: sums that stay in registers.
template <int kRows, class Number>
EC_INLINE void dot_quarter(const AttentionArgs& a, const float* q,
                           const Number* const (&k)[kQuarter], vf32* quarters) {
  constexpr int kL = kFloatLanes;
  vf32 sum0[kRows][kQuarter], sum1[kRows][kQuarter];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int x = 0; x < kQuarter; ++x) sum0[r][x] = sum1[r][x] = vf32{};
  }
  int64_t d = 0;
  for (; d + 2 * kL <= a.dim; d += 2 * kL) {
    vf32 q0[kRows], q1[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      q0[r] = load(q + r * a.q_strides[2] + d);
      q1[r] = load(q + r * a.q_strides[2] + d + kL);
    }
#pragma GCC unroll 4
    for (int x = 0; x < kQuarter; ++x) {
      const vf32 k0 = load_floats(k[x], d), k1 = load_floats(k[x], d + kL);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sum0[r][x] = fma(q0[r], k0, sum0[r][x]);
        sum1[r][x] = fma(q1[r], k1, sum1[r][x]);
      }
    }
  }
  for (; d < a.dim; d += kL) {
    vf32 rest[kRows];
    for (int r = 0; r < kRows; ++r) rest[r] = load_rest(q + r * a.q_strides[2], d, a.dim - d);
#pragma GCC unroll 4
    for (int x = 0; x < kQuarter; ++x) {
      const vf32 key = load_rest(k[x], d, a.dim - d);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum0[r][x] = fma(rest[r], key, sum0[r][x]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int x = 0; x < kQuarter; ++x) sum0[r][x] += sum1[r][x];
    quarters[r] = fold_to_quarters(sum0[r]);
  }
}

// q·kᵀ·scale of kRows queries, by dot products; whole vectors, what lies behind `keys` of any
// value.
template <int kRows, class Number>
void dot_scores(const AttentionArgs& a, const float* q, const Number* k, int64_t keys,
                float* scores, int64_t ld) {
  // Rows whose sums stay in registers.
  constexpr int kAtOnce = kRows == 4 && kQuarter > 1 ? 2 : kRows;
  for (int64_t j = 0; j < keys; j += kFloatLanes) {
    vf32 quarters[4][kRows];
#pragma GCC unroll 1  // more made two thirds of the library, and no run shorter
    for (int part = 0; part < 4; ++part) {
      const Number* at[kQuarter];
#pragma GCC unroll 4
      for (int x = 0; x < kQuarter; ++x) {
        const int64_t key = std::min(j + part * kQuarter + x, keys - 1);
        at[x] = k + key * a.k_strides[2];
        fetch_ahead<16>(at[x], a.k_strides[2], keys - 1 - key, elements_of<Number>(a.dim));
      }
#pragma GCC unroll 1
      for (int r = 0; r < kRows; r += kAtOnce) {
        dot_quarter<kAtOnce>(a, q + r * a.q_strides[2], at, quarters[part] + r);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const vf32 sums =
          fold_quarters(quarters[0][r], quarters[1][r], quarters[2][r], quarters[3][r]);
      store(scores + r * ld + j, sums * a.scale);
    }
  }
}

// Within each four lanes, those of a and b take turns: the two lower ones, or with kUpper the two
// upper ones. kWide: two lanes of a come before two of b.
template <bool kUpper, bool kWide>
EC_INLINE vf32 interleave_lanes(vf32 a, vf32 b) {
  return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    constexpr int kUp = kUpper ? 2 : 0;
    return __builtin_shuffle(a, b,
                             vi32{(kWide ? i / 4 * 4 + kUp + i % 2 + i / 2 % 2 * kFloatLanes
                                         : i / 4 * 4 + kUp + i / 2 % 2 + i % 2 * kFloatLanes)...});
  }(std::make_integer_sequence<int, kFloatLanes>{});
}

// The sums of every fourth lane.
template <class V>
EC_INLINE Vector<float, 4> add_to_four(V x) {
  if constexpr (kLanes<V> == 4) {
    return x;
  } else {
    const Halves<V> h = split(x);
    return add_to_four(h.low + h.high);
  }
}

// The sum of each of four vectors, all by the same steps.
EC_INLINE Vector<float, 4> add_four(const vf32 (&x)[4]) {
  const vf32 ab =
      interleave_lanes<false, false>(x[0], x[1]) + interleave_lanes<true, false>(x[0], x[1]);
  const vf32 cd =
      interleave_lanes<false, false>(x[2], x[3]) + interleave_lanes<true, false>(x[2], x[3]);
  const vf32 all = interleave_lanes<false, true>(ab, cd) + interleave_lanes<true, true>(ab, cd);
  return add_to_four(all);
}

// Keys whose products are added up together, and the floats of them for a query.
constexpr int64_t kTurn = 4, kTurnFloats = kTurn * kFloatLanes;

// q·kᵀ·scale of kRows queries of each head. Keys are read in the order of memory, all heads of a
// row after each other, and values are fetched meanwhile. `dim` has whole vectors. `partials`:
// kTurnFloats for each query.
template <int kRows, class Number>
void dot_heads(const AttentionArgs& a, const float* q, const Number* k, const Number* v,
               int64_t heads, int64_t keys, float* partials, float* scores, int64_t ld) {
  constexpr int kL = kFloatLanes;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Number));
  const int64_t dim = a.dim, ld_q = a.q_strides[2], next_q = a.q_strides[1];
  const int64_t next_k = a.k_strides[1], next_v = a.v_strides[1];
  const int64_t value_size = elements_of<Number>(a.dim_v);
  std::fill_n(partials, heads * kRows * kTurnFloats, 0.0f);
  for (int64_t j = 0; j < keys; ++j) {
    const float* queries = q;
    const Number *key = k + j * a.k_strides[2], *value = v + j * a.v_strides[2];
    float* to = partials + j % kTurn * kL;
    for (int64_t h = 0; h < heads; ++h, queries += next_q, key += next_k, value += next_v) {
      // Into the second cache: the first is too small for all values of a part.
      for (int64_t i = 0; i < value_size; i += kLine) __builtin_prefetch(value + i, 0, 2);
      vf32 sum[kRows] = {};
#pragma GCC unroll 4
      for (int64_t d = 0; d < dim; d += kL) {
        const vf32 x = load_floats(key, d);
        for (int r = 0; r < kRows; ++r) sum[r] = fma(load(queries + r * ld_q + d), x, sum[r]);
      }
      for (int r = 0; r < kRows; ++r, to += kTurnFloats) store(to, sum[r]);
    }
    if (j % kTurn != kTurn - 1 && j != keys - 1) continue;
    for (int64_t r = 0; r < heads * kRows; ++r) {
      vf32 sums[kTurn];
      for (int i = 0; i < kTurn; ++i) sums[i] = load(partials + r * kTurnFloats + i * kL);
      store(scores + r * ld + j / kTurn * kTurn, add_four(sums) * a.scale);
    }
  }
}

// Memory that comes nearer meanwhile: `size` bytes for each key, one after the other.
struct Ahead {
  const char* from = nullptr;
  int64_t size = 0;
};

// sums[kRows, panel] = weights · values of up to a panel's columns, from `column` on. kNear: they
// are in a cache of the CPU.
template <int kRows, bool kNear, class Number>
void weigh_values(const float* weights, int64_t ld, const Number* v, int64_t stride, int64_t keys,
                  int64_t column, int64_t columns, float* sums, Ahead next = {}) {
  // Vectors of columns whose sums, with the values and a weight, stay in 16 registers.
  constexpr int kL = kFloatLanes, kParts = kPanel / kL;
  constexpr int kAtOnce = std::min(kParts, kRows == 1 ? 8 : kRows == 4 ? 2 : 4);
  for (int p = 0; p < kParts; p += kAtOnce, column += kAtOnce * kL, columns -= kAtOnce * kL) {
    vf32 sum[kRows][kAtOnce] = {};
    const auto add = [&](int64_t j, const auto& read) __attribute__((always_inline)) {
      const Number* const row = v + j * stride;
      vf32 values[kAtOnce];
      for (int i = 0; i < kAtOnce; ++i) values[i] = read(row, column + i * kL, columns - i * kL);
      for (int r = 0; r < kRows; ++r) {
        const vf32 weight = broadcast(weights[r * ld + j]);
        for (int i = 0; i < kAtOnce; ++i) sum[r][i] = fma(weight, values[i], sum[r][i]);
      }
    };
    if (columns >= kAtOnce * kL) {
      for (int64_t j = 0; j < keys; ++j) {
        if constexpr (kNear) {
          for (int64_t i = 0; i < next.size; i += 64) {
            __builtin_prefetch(next.from + j * next.size + i, 0, 2);
          }
        } else {
          fetch_ahead<16>(v + j * stride + elements_of<Number>(column), stride, keys - 1 - j,
                          kAtOnce * kL);
        }
        add(j, [](const Number* x, int64_t c, int64_t)
                   __attribute__((always_inline)) { return load_floats(x, c); });
      }
    } else if (columns > 0) {
      for (int64_t j = 0; j < keys; ++j) {
        add(j, [](const Number* x, int64_t c, int64_t left) __attribute__((always_inline)) {
          return left > 0 ? load_floats(x, c, std::min<int64_t>(kL, left)) : vf32{};
        });
      }
    }
    next.size = 0;
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kAtOnce; ++i) store(sums + r * kPanel + (p + i) * kL, sum[r][i]);
    }
  }
}

// Calls `run` with a number of queries, 1 to kFewQueries, as a constant.
template <class Run>
void with_rows(int64_t rows, const Run& run) {
  static_assert(kFewQueries == 4);
  if (rows == 1) return run(std::integral_constant<int, 1>{});
  if (rows == 2) return run(std::integral_constant<int, 2>{});
  if (rows == 3) return run(std::integral_constant<int, 3>{});
  run(std::integral_constant<int, 4>{});
}

}  // namespace ec
