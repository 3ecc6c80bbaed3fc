// Each head by itself, a column of vectors of its state at a time.
#include "kernels/linear_scan.h"

#include "kernels/vectors.h"
#include "math/simd.h"
#include "threads/threads.h"

namespace ec {
namespace {

// One token of one head, for `n` neighbouring values: a column of vectors of its state.
EC_INLINE void step(int64_t keys, int64_t stride, int64_t n, const float* q, const float* k,
                    const float* decay, int64_t next_decay, const float* beta, vf32 value,
                    float* state, float* y) {
  const auto decayed = [&](int64_t i) {
    return at(state + i * stride, n) * broadcast<vf32>(decay[i * next_decay]);
  };
  if (beta != nullptr) {
    vf32 answer{};
    for (int64_t i = 0; i < keys; ++i) {
      answer = fma(broadcast<vf32>(k[i]), decayed(i), answer);
    }
    value = (value - answer) * broadcast<vf32>(*beta);
  }
  vf32 sum{};
  for (int64_t i = 0; i < keys; ++i) {
    const vf32 next = fma(broadcast<vf32>(k[i]), value, decayed(i));
    put(state + i * stride, next, n);
    sum = fma(broadcast<vf32>(q[i]), next, sum);
  }
  put(y, sum, n);
}

}  // namespace

void linear_scan(const LinearScan& s) {
  const int64_t group = s.heads / s.key_heads;
  parallel_for(s.heads, [&](int64_t head) {
    float* const state = s.state + head * s.keys * s.values;
    for (int64_t t = 0; t < s.tokens; ++t) {
      const int64_t row = t * s.heads + head;
      const int64_t key_row = (t * s.key_heads + head / group) * s.keys;
      const float* const beta = s.beta == nullptr ? nullptr : s.beta + row;
      for (int64_t i = 0; i < s.values; i += kFloatLanes) {
        const int64_t n = s.values - i < kFloatLanes ? s.values - i : int64_t{kFloatLanes};
        const int64_t value = row * s.values + i;
        step(s.keys, s.values, n, s.q + key_row, s.k + key_row, s.decay + row * s.decays,
             s.decays > 1 ? 1 : 0, beta, at(s.v + value, n), state + i, s.y + value);
      }
    }
  });
}

}  // namespace ec
