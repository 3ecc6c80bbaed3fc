// A vector of floats at an address, whole or its first n lanes alone.
#pragma once

#include <cstdint>

#include "math/simd.h"

namespace ec {

EC_INLINE vf32 at(const float* p, int64_t n) {
  return n == kFloatLanes ? load(p) : load_partial(p, n);
}
EC_INLINE void put(float* p, vf32 v, int64_t n) {
  if (n == kFloatLanes) {
    store(p, v);
  } else {
    store_partial(p, v, n);
  }
}

}  // namespace ec
