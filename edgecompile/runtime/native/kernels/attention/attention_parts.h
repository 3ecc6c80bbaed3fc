// Results of few queries over parts of the keys, and the merge of them: so one head's keys can be
// read by several threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention_softmax.h"
#include "math/simd.h"
#include "math/vecmath.h"

namespace ec {

// Parts whose results are kept at once. Longer contexts are read in several rounds, so that the
// memory doesn't grow with them.
inline int64_t parts_at_once(int64_t heads, int64_t queries, int64_t dim_v, int64_t parts) {
  constexpr int64_t kFloats = int64_t{1} << 18, kLeast = 16;
  return std::min(parts, std::max(kLeast, kFloats / (heads * queries * dim_v)));
}

// For each head and part: a RowState of each query, and its sums [queries][ld] that aren't divided.
class Partials {
 public:
  static int64_t floats(int64_t heads, int64_t queries, int64_t dim_v, int64_t parts) {
    return heads * (parts * (row_floats(queries) + queries * whole(dim_v)) + row_floats(queries));
  }

  // `memory` of floats(...) floats, 64-byte aligned.
  Partials(float* memory, int64_t heads, int64_t queries, int64_t dim_v, int64_t parts)
      : queries_(queries),
        dim_v_(dim_v),
        parts_(parts),
        sums_(memory),
        rows_(sums_ + heads * parts * queries * ld()),
        totals_(rows_ + heads * parts * row_floats(queries)) {}

  int64_t ld() const { return whole(dim_v_); }
  float* sums(int64_t head, int64_t part) const {
    return sums_ + (head * parts_ + part) * queries_ * ld();
  }
  RowState* rows(int64_t head, int64_t part) const {
    return reinterpret_cast<RowState*>(rows_ + (head * parts_ + part) * row_floats(queries_));
  }

  // Adds parts [0, parts) of a head to its results `out` [queries][ld_out], in their order.
  // `first`: there are no results yet; `last`: none follow.
  void merge(int64_t head, int64_t parts, bool first, bool last, float* out, int64_t ld_out) const {
    RowState* const totals = reinterpret_cast<RowState*>(totals_ + head * row_floats(queries_));
    for (int64_t r = 0; r < queries_; ++r, out += ld_out) {
      RowState& total = totals[r];
      if (first) total = RowState{kMinusInfinity, 0.0f, 0.0f};
      for (int64_t p = 0; p < parts; ++p) {
        const RowState& part = rows(head, p)[r];
        const float top = std::max(total.top, part.top);
        const float old_scale = scale_to(total, top), scale = scale_to(part, top);
        total.sum = total.sum * old_scale + part.sum * scale;
        total.top = top;
        add(out, old_scale, sums(head, p) + r * ld(), scale, first && p == 0);
      }
      if (last) add(out, total.sum == 0.0f ? 1.0f : 1.0f / total.sum, nullptr, 0.0f, false);
    }
  }

 private:
  static int64_t whole(int64_t n) { return (n + 15) / 16 * 16; }
  static int64_t row_floats(int64_t queries) {
    static_assert(sizeof(RowState) == 3 * sizeof(float));
    return whole(3 * queries);
  }

  // What weights relative to a row's own largest score must be multiplied by. That of a row whose
  // keys are all masked is 0, and a NaN in its sum stays one.
  static float scale_to(const RowState& row, float top) {
    if (row.top == top) return 1.0f;
    return row.top == kMinusInfinity ? 0.0f : vexp2_normal(broadcast(row.top - top))[0];
  }

  // out = out·old_scale + sums·scale of a row; without `sums` the first term alone, and of the
  // first part the second one.
  void add(float* out, float old_scale, const float* sums, float scale, bool first) const {
    for (int64_t j = 0; j < dim_v_; j += kFloatLanes) {
      const int64_t n = std::min<int64_t>(kFloatLanes, dim_v_ - j);
      const vf32 old = first ? vf32{} : load_partial(out + j, n);
      vf32 sum = first ? load(sums + j) * scale : old * old_scale;
      if (sums != nullptr && !first) sum = fma(load(sums + j), broadcast(scale), sum);
      store_partial(out + j, sum, n);
    }
  }

  const int64_t queries_, dim_v_, parts_;
  float* const sums_;
  float* const rows_;
  float* const totals_;
};

}  // namespace ec
