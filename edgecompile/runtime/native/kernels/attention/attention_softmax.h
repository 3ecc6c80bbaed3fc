// Softmax over rows of scores, a block of keys at a time: to base 2, since the factor log2(e) can
// be a part of the scale that the scores have anyway.
#pragma once

#include <cstdint>

#include "math/simd.h"
#include "math/vecmath.h"

namespace ec {

constexpr float kMinusInfinity = -kInfinityF;

// A query's row over the blocks of keys so far.
struct RowState {
  float top;    // largest score
  float sum;    // of 2^(score - top)
  float scale;  // what earlier sums and results must be multiplied by
};

// Adds `bias` (or null) to s[0:n] and writes -inf behind, up to `padded`, whole vectors. The
// largest of them and `top`; NaN is passed over.
EC_INLINE float mask_scores(float* s, int64_t n, int64_t padded, const float* bias, float top) {
  constexpr int kL = kFloatLanes;
  const int64_t full = n / kL * kL;
  vf32 tops = broadcast(top);
  int64_t j = 0;
  if (bias == nullptr) {
    vf32 others = tops;
    for (; j + 2 * kL <= full; j += 2 * kL) {
      tops = max(load(s + j), tops);
      others = max(load(s + j + kL), others);
    }
    if (j < full) {
      tops = max(load(s + j), tops);
      j += kL;
    }
    tops = max(others, tops);
  } else {
    for (; j < full; j += kL) {
      const vf32 x = load(s + j) + load(bias + j);
      store(s + j, x);
      tops = max(x, tops);
    }
  }
  if (j < n) {
    vf32 x = load(s + j);
    if (bias != nullptr) x += load(bias + j);
    x = select(iota<vi32>() < static_cast<int32_t>(n - j), x, broadcast(kMinusInfinity));
    store(s + j, x);
    tops = max(x, tops);
    j += kL;
  }
  for (; j < padded; j += kL) store(s + j, broadcast(kMinusInfinity));
  return reduce_max(tops);
}

// write(j, w) for s[0:padded]: weights w = 2^(s - top) of kVectors vectors from j on. `row` takes
// them up. A row without any score above -inf has zeros, as torch's; NaN spreads over the row.
template <int kVectors, class Power, class Write>
EC_INLINE void weigh_scores(const float* s, int64_t padded, float top, RowState& row,
                            const Power& power, const Write& write) {
  constexpr int kL = kFloatLanes;
  const float subtract = top == kMinusInfinity ? 0.0f : top;
  vf32 sums[kVectors] = {};
  for (int64_t j = 0; j < padded; j += kVectors * kL) {
    vf32 weights[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      weights[v] = power(load(s + j + v * kL) - subtract);
      sums[v] += weights[v];
    }
    write(j, weights);
  }
  vf32 sum = sums[0];
#pragma GCC unroll 2
  for (int v = 1; v < kVectors; ++v) sum += sums[v];
  // Where no weights came before nothing has to be scaled, and the exponential is saved.
  row.scale = row.top == top    ? 1.0f
              : row.sum == 0.0f ? 0.0f
                                : vexp2_normal(broadcast(row.top - subtract))[0];
  row.sum = row.sum * row.scale + reduce_add(sum);
  row.top = top;
}

}  // namespace ec
