// bfloat16 in vectors: rounding to it, and products of pairs (vdpbf16ps, Arm's bfdot).
#pragma once

#include <algorithm>

#include "kernels/gemm/narrow/gemm_narrow_tile.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#if !defined(__AMX_BF16__)  // tiles multiply more of them at once
#define EC_BF16_PAIRS 1
#include <cpuid.h>
#endif
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define EC_BF16_DOTS 1  // in products with weights; attention's are written for AVX-512
#include <arm_neon.h>
#endif

namespace ec {

#if defined(__AVX512BF16__)
// To the nearest, ties to even; a NaN stays one, and denormal numbers become zeros, as they would
// in the product.
inline void round_to_bf16(const float* x, int64_t n, uint16_t* to) {
  constexpr int kL = kFloatLanes;
  int64_t i = 0;
  for (; i + 2 * kL <= n; i += 2 * kL) {
    const __m512bh pair = _mm512_cvtne2ps_pbh((__m512)load(x + i + kL), (__m512)load(x + i));
    std::memcpy(to + i, &pair, sizeof pair);
  }
  for (; i < n; i += kL) {
    const __m256bh some = _mm512_cvtneps_pbh((__m512)load_partial(x + i, n - i));
    std::memcpy(to + i, &some, 2 * std::min<int64_t>(kL, n - i));
  }
}
#elif EC_BF16_DOTS
// To the nearest, ties to even; a NaN stays one. The product takes denormal numbers for zeros.
inline void round_to_bf16(const float* x, int64_t n, uint16_t* to) {
  constexpr int kL = kFloatLanes;
  int64_t i = 0;
  for (; i + 2 * kL <= n; i += 2 * kL) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32(bits_as<float32x4_t>(load(x + i)));
    const bfloat16x8_t both = vcvtq_high_bf16_f32(low, bits_as<float32x4_t>(load(x + i + kL)));
    std::memcpy(to + i, &both, sizeof both);
  }
  for (; i < n; i += kL) {
    const bfloat16x4_t some = vcvt_bf16_f32(bits_as<float32x4_t>(load_partial(x + i, n - i)));
    std::memcpy(to + i, &some, static_cast<size_t>(2 * std::min<int64_t>(kL, n - i)));
  }
}
#endif

#if EC_BF16_PAIRS || EC_BF16_DOTS
// Two products are added to a sum at once. A, too, is bfloat16.
struct Bf16Pairs {
  using A = uint16_t;
  static constexpr int kDepth = 2;
  static constexpr int kParts = 1;
  static constexpr int64_t kSerialWork = 400'000;
  static constexpr int64_t kMemoryRows = 8;
  static constexpr int64_t kTaskWork = 1'200'000;

  EC_INLINE static vu32 load_b(const char* b, int) {
    return load<vu32>(reinterpret_cast<const uint32_t*>(b));
  }
#if EC_BF16_DOTS  // multiplication takes a lane
  EC_INLINE static float load_a(const uint16_t* a, int) {
    float pair;
    std::memcpy(&pair, a, sizeof pair);
    return pair;
  }
  EC_INLINE static vf32 multiply_add(vf32 acc, float a, vu32 b) {
    asm volatile("bfdot %0.4s, %2.8h, %1.2h[0]" : "+w"(acc) : "w"(a), "w"(b));
    return acc;
  }
#else
  EC_INLINE static vu32 load_a(const uint16_t* a, int) { return broadcast_from<vu32>(a); }
  EC_INLINE static vf32 multiply_add(vf32 acc, vu32 a, vu32 b) {
    asm volatile("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
  }
#endif
  EC_INLINE static void keep(vf32&) {}  // the instruction is opaque as it is
};

// A row of A. The partner of an odd last element is zero in B, but might be a NaN here.
inline void round_to_pairs(const float* x, int64_t n, uint16_t* to) {
  round_to_bf16(x, n, to);
  if (n % 2 != 0) to[n] = 0;
}

// AMD's CPUs start such an instruction as often as a multiply-add. On Intel's with tiles it was 1.7
// times slower than expanding.
inline bool pairs_pay() {
#if EC_BF16_DOTS
  return true;
#else
  static const bool answer = [] {
    unsigned most, b = 0, c, d;
    return __get_cpuid(0, &most, &b, &c, &d) != 0 && b == signature_AMD_ebx;
  }();
  return answer;
#endif
}
#endif

}  // namespace ec
