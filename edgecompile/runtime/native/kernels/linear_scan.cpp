// Each head is computed by itself: some columns of its state at a time, over all tokens, so that
// they stay in the nearest cache.
#include "kernels/linear_scan.h"

#include <algorithm>

#include "kernels/vectors.h"
#include "math/simd.h"
#include "threads/threads.h"

namespace ec {
namespace {

// Sums of several columns don't wait for each other; none depends on their number.
constexpr int kColumns = 4;
// The floats of a block: as many as the nearest cache holds.
constexpr int64_t kBlock = 8192;

// Rows of columns in memory.
struct Rows {
  float* data;
  int64_t stride;
};

// One token of one head: the state is read in `from`, and is in `to` behind it. `block` may be
// either of them.
template <int kCount>
EC_INLINE void step(const LinearScan& s, const float* q, const float* k, const float* decay,
                    const float* beta, const float* v, Rows from, Rows block, Rows to, int64_t n,
                    float* y) {
  constexpr int kL = kFloatLanes;
  const int64_t next_decay = s.decays > 1 ? 1 : 0;
  vf32 value[kCount], sum[kCount] = {};
  for (int c = 0; c < kCount; ++c) value[c] = at(v + c * kL, n);
  if (beta != nullptr) {
    vf32 answer[kCount] = {};
    for (int64_t i = 0; i < s.keys; ++i) {
      const vf32 kept = broadcast<vf32>(decay[i * next_decay]), key = broadcast<vf32>(k[i]);
      for (int c = 0; c < kCount; ++c) {
        const vf32 decayed = at(from.data + i * from.stride + c * kL, n) * kept;
        put(block.data + i * block.stride + c * kL, decayed, n);
        answer[c] = fma(key, decayed, answer[c]);
      }
    }
    for (int c = 0; c < kCount; ++c) value[c] = (value[c] - answer[c]) * broadcast<vf32>(*beta);
  }
  for (int64_t i = 0; i < s.keys; ++i) {
    const vf32 key = broadcast<vf32>(k[i]), query = broadcast<vf32>(q[i]);
    const vf32 kept = broadcast<vf32>(decay[i * next_decay]);
    for (int c = 0; c < kCount; ++c) {
      vf32 decayed;
      if (beta != nullptr) {
        decayed = at(block.data + i * block.stride + c * kL, n);
      } else {
        decayed = at(from.data + i * from.stride + c * kL, n) * kept;
        // Rounded here, so that fma takes the same one of two products in every copy of this loop.
        keep_in_register(decayed);
      }
      const vf32 next = fma(key, value[c], decayed);
      put(to.data + i * to.stride + c * kL, next, n);
      sum[c] = fma(query, next, sum[c]);
    }
  }
  for (int c = 0; c < kCount; ++c) put(y + c * kL, sum[c], n);
}

// All tokens of some columns of a head, from the value `first` on; `n` lanes of each count.
template <int kCount>
void scan_columns(const LinearScan& s, int64_t head, int64_t first, int64_t n) {
  alignas(64) float memory[kBlock];
  const int64_t key_head = head / (s.heads / s.key_heads), width = kCount * kFloatLanes;
  const Rows state{s.state + head * s.keys * s.values + first, s.values};
  const Rows block = s.keys * width <= kBlock ? Rows{memory, width} : state;
  for (int64_t t = 0; t < s.tokens; ++t) {
    const int64_t row = t * s.heads + head, key_row = (t * s.key_heads + key_head) * s.keys;
    step<kCount>(s, s.q + key_row, s.k + key_row, s.decay + row * s.decays,
                 s.beta == nullptr ? nullptr : s.beta + row, s.v + row * s.values + first,
                 t == 0 ? state : block, block, t + 1 == s.tokens ? state : block, n,
                 s.y + row * s.values + first);
  }
}

}  // namespace

void linear_scan(const LinearScan& s) {
  parallel_for(s.heads, [&](int64_t head) {
    int64_t i = 0;
    for (; i + kColumns * kFloatLanes <= s.values; i += kColumns * kFloatLanes) {
      scan_columns<kColumns>(s, head, i, kFloatLanes);
    }
    for (; i < s.values; i += kFloatLanes) {
      scan_columns<1>(s, head, i, std::min<int64_t>(s.values - i, kFloatLanes));
    }
  });
}

}  // namespace ec
