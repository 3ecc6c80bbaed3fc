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
#pragma GCC unroll 4
    for (int x = 0; x < kQuarter; ++x) {
      const vf32 rest = load_floats(k[x], d, a.dim - d);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const vf32 query = load_partial(q + r * a.q_strides[2] + d, a.dim - d);
        sum0[r][x] = fma(query, rest, sum0[r][x]);
      }
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
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) {
      const Number* at[kQuarter];
#pragma GCC unroll 4
      for (int x = 0; x < kQuarter; ++x) {
        const int64_t key = std::min(j + part * kQuarter + x, keys - 1);
        at[x] = k + key * a.k_strides[2];
        fetch_ahead<16>(at[x], a.k_strides[2], keys - 1 - key, elements_of<Number>(a.dim));
      }
#pragma GCC unroll 4
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

// sums[kRows, panel] = weights · values of up to a panel's columns, from `column` on.
template <int kRows, class Number>
void weigh_values(const float* weights, int64_t ld, const Number* v, int64_t stride, int64_t keys,
                  int64_t column, int64_t columns, float* sums) {
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
        fetch_ahead<16>(v + j * stride + elements_of<Number>(column), stride, keys - 1 - j,
                        kAtOnce * kL);
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
