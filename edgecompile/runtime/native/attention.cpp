#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "threads.h"

namespace ec {

void attention(const AttentionArgs& a) {
  const int64_t group = a.heads_q / a.heads_kv;
  parallel_for(a.batch * a.heads_q * a.len_q, [&](int64_t i) {
    const int64_t row = i % a.len_q, h = i / a.len_q % a.heads_q, b = i / a.len_q / a.heads_q;
    const float* q = a.q + b * a.q_strides[0] + h * a.q_strides[1] + row * a.q_strides[2];
    const float* k = a.k + b * a.k_strides[0] + h / group * a.k_strides[1];
    const float* v = a.v + b * a.v_strides[0] + h / group * a.v_strides[1];
    float* out = a.out + b * a.out_strides[0] + h * a.out_strides[1] + row * a.out_strides[2];
    const int64_t mask = b * a.mask_strides[0] + h * a.mask_strides[1] + row * a.mask_strides[2];
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<float> s(static_cast<size_t>(a.len_k));
    float top = -inf, sum = 0;
    const int64_t keys = a.causal ? std::min(row + 1, a.len_k) : a.len_k;
    for (int64_t j = 0; j < keys; ++j) {
      float x = 0;
      for (int64_t d = 0; d < a.dim; ++d) x += q[d] * k[j * a.k_strides[2] + d];
      x *= a.scale;
      const int64_t at = mask + j * a.mask_strides[3];
      if (a.mask_kind == 1) x += static_cast<const uint8_t*>(a.mask)[at] ? 0 : -inf;
      if (a.mask_kind == 2) x += static_cast<const float*>(a.mask)[at];
      s[static_cast<size_t>(j)] = x;
      top = std::max(top, x);
    }
    std::fill_n(out, a.dim_v, 0.0f);
    if (top == -inf) return;
    for (int64_t j = 0; j < keys; ++j) {
      const float p = std::exp(s[static_cast<size_t>(j)] - top);
      sum += p;
      for (int64_t d = 0; d < a.dim_v; ++d) out[d] += p * v[j * a.v_strides[2] + d];
    }
    for (int64_t d = 0; d < a.dim_v; ++d) out[d] /= sum;
  });
}

}  // namespace ec
