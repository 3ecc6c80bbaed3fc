// The two products of attention for a few queries: keys and values are read where they lie, once
// for all queries.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cache.h"
#include "kernels/gemm/gemm.h"

namespace ec {

// Queries below which transposing the keys costs more than dot products with each of them.
constexpr int kFewQueries = 4;

// q·kᵀ·scale of kRows queries, by dot products.
template <int kRows, class Number>
void dot_scores(const AttentionArgs& a, const float* q, const Number* k, int64_t keys,
                float* scores, int64_t ld) {
  constexpr int kL = kFloatLanes;
  for (int64_t j = 0; j < keys; ++j, k += a.k_strides[2]) {
    fetch_ahead<16>(k, a.k_strides[2], keys - 1 - j, elements_of<Number>(a.dim));
    vf32 sum0[kRows] = {}, sum1[kRows] = {};
    int64_t d = 0;
    for (; d + 2 * kL <= a.dim; d += 2 * kL) {
      const vf32 k0 = load_floats(k, d), k1 = load_floats(k, d + kL);
      for (int r = 0; r < kRows; ++r) {
        const float* const query = q + r * a.q_strides[2] + d;
        sum0[r] = fma(load(query), k0, sum0[r]);
        sum1[r] = fma(load(query + kL), k1, sum1[r]);
      }
    }
    for (; d < a.dim; d += kL) {
      const vf32 rest = load_floats(k, d, a.dim - d);
      for (int r = 0; r < kRows; ++r) {
        const float* const query = q + r * a.q_strides[2] + d;
        sum0[r] = fma(load_partial(query, a.dim - d), rest, sum0[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) scores[r * ld + j] = reduce_add(sum0[r] + sum1[r]) * a.scale;
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
