// x86-64's instruction for four pairs of int8, on the registers of the build's width: that of
// AVX-512 (VNNI), or of CPUs without AVX-512 (AVX-VNNI), which has an encoding of its own.
#pragma once

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define EC_VNNI 1

#include "math/simd.h"

namespace ec {

// To each sum, four products of bytes without and with a sign.
EC_INLINE void add_byte_products(vi32& sums, vi32 without, vi32 with) {
#if defined(__AVX512VNNI__)
  asm volatile("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(without), "v"(with));
#else
  asm volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(without), "x"(with));
#endif
}

}  // namespace ec

#endif
