// Arguments of products with int8 and int4 weights.
#pragma once

#include "kernels/gemm/narrow/gemm_narrow_run.h"
#include "kernels/gemm/narrow/gemm_rounded_tile.h"

namespace ec {

// A packed weight and the form of its blocks.
struct RoundedWeight {
  const char* panels;
  int64_t panel_bytes;
  bool one_scale = false;  // for both halves of a block
  Shift shift = Shift::kNone;
};

// Rows of any bytes, sums in single precision with all scales in them.
template <class Math>
struct RoundedSums {
  using A = char;
  static constexpr int64_t kSerialWork = Math::kParts == 2 ? 800'000 : 400'000;
  static constexpr int64_t kMemoryRows = Math::kParts == 2 ? 8 : 4;
  static constexpr int64_t kTaskWork = Math::kParts == 2 ? 1'800'000 : 600'000;
};
template <class Math>
using RoundedProduct = NarrowProduct<RoundedSums<Math>>;

}  // namespace ec
