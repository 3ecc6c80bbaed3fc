// AVX-VNNI in the encoding of AVX-512, in place of the header of this name, for CPUs that have the
// instruction in that one only.
#pragma once

#define EC_VNNI 1

#include "math/simd.h"

namespace ec {

EC_INLINE void add_byte_products(vi32& sums, vi32 without, vi32 with) {
  static_assert(sizeof(vi32) == 32);
  asm volatile("%{evex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(without), "x"(with));
}

}  // namespace ec
