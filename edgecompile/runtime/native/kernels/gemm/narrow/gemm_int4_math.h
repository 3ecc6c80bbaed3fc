// Products of int4 weights with rounded activations, in the arithmetic of gemm_int8_math.h. A byte
// holds two weights, 0 to 15: zero is 8, which activations times 8 are subtracted for.
#pragma once

#include "kernels/gemm/narrow/gemm_int8_math.h"

namespace ec {

// Numbers of half precision; x86-64-v2 alone has no instruction for it.
EC_INLINE vf32 load_halves(const char* p) {
#if defined(__AVX512F__)
  return (vf32)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return (vf32)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  const uint16x4_t halves = vld1_u16(reinterpret_cast<const uint16_t*>(p));
  return bits_as<vf32>(vcvt_f32_f16(vreinterpret_f16_u16(halves)));
#else
  using Short = Vector<uint16_t, kFloatLanes>;
  const vi32 word = convert<vi32>(load<Short>(reinterpret_cast<const uint16_t*>(p)));
  const vi32 magnitude = word & 0x7fff;
  // Denormal ones as integers: the CPU may be set to take denormal floats for zeros.
  const vf32 denormal = convert<vf32>(magnitude) * broadcast(0x1p-24f);
  const vf32 normal = bits_as<vf32>((magnitude << 13) + (112 << 23));
  const vf32 finite = select(magnitude < 0x400, denormal, normal);
  const vi32 not_finite = (magnitude >= 0x7c00) & 0x7f800000;
  return bits_as<vf32>(bits_as<vi32>(finite) | not_finite | (word & 0x8000) << 16);
#endif
}

// Members that all forms of int4 share.
struct HalvedBlocks : Int8Math {
  static constexpr int kHalves = 2;
  static constexpr bool kShared = true;
  static constexpr int32_t kOffset = 8;
  static constexpr int kScaleBytes = 2;
  EC_INLINE static vf32 load_scales(const char* p) { return load_halves(p); }
  // The low or the high four bits of bytes.
  template <int Half>
  EC_INLINE static vi32 nibbles(vi32 bytes, std::integral_constant<int, Half>) {
    return (Half == 0 ? bytes : bytes >> 4) & 0x0f0f0f0f;
  }
};

#if EC_VNNI
struct Int4Math : HalvedBlocks {
  template <class Half>
  EC_INLINE static vi32 load_b(const char* b, Half half) {
    return nibbles(load<vi32>(reinterpret_cast<const int32_t*>(b)), half);
  }
};
#elif defined(__ARM_FEATURE_DOTPROD)
struct Int4Math : HalvedBlocks {
  template <class Half>
  EC_INLINE static int8x16_t load_b(const char* b, Half half) {
    const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const uint8_t*>(b));
    return vreinterpretq_s8_u8(half.value == 0 ? vandq_u8(bytes, vdupq_n_u8(15))
                                               : vshrq_n_u8(bytes, 4));
  }
};
#elif defined(__SSSE3__)
// Unsigned weights times int8, neighbours added in int16, where a half's sums stay below 2^15:
// 8 groups of two products of 15 and 127.
struct Int4Math : HalvedBlocks {
  using A = int8_t;
  using Acc = Shorts;
  static constexpr int kParts = 2;
  static constexpr bool kLateStart = true;
  static constexpr int kColumns = kFloatLanes;
  static constexpr int kPerVector = 1;

  EC_INLINE static Acc start(int32_t) { return Acc{}; }
  template <class Half>
  EC_INLINE static vi32 load_b(const char* b, Half half) {
    return nibbles(load<vi32>(reinterpret_cast<const int32_t*>(b)), half);
  }
  EC_INLINE static vi32 load_a(const int8_t* a) { return broadcast_from<vi32>(a); }
  EC_INLINE static void add_products(Acc& acc, vi32 a, vi32 b) {
    acc += multiply_pairs(b, a);
    keep_in_register(acc);  // the compiler would add up all at the end
  }
  EC_INLINE static vi32 total(const Acc (&acc)[1]) { return add_pairs(acc[0]); }
};
#else
struct Int4Math : HalvedBlocks {
  static constexpr bool kLateStart = true;

  template <class Half>
  EC_INLINE static V load_b(const char* b, Half half) {
    using Bytes = Vector<uint8_t, kVectorBytes / 2>;
    const Bytes bytes = load<Bytes>(reinterpret_cast<const uint8_t*>(b));
    return convert<V>(half.value == 0 ? bytes & 15 : bytes >> 4);
  }
};
#endif

}  // namespace ec
