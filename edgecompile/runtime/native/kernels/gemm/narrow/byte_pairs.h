// x86-64's instructions for bytes, on the registers of the build's width: products of two pairs of
// int8, sums of two int16, and what makes int8 of int32.
#pragma once

#if defined(__SSSE3__)

#include <immintrin.h>

#include "math/simd.h"

namespace ec {

using Shorts = Vector<int16_t, kVectorBytes / 2>;

// Sums of two products of bytes without and with a sign, which have to stay within 16 bits.
EC_INLINE Shorts multiply_pairs(vi32 without, vi32 with) {
#if defined(__AVX512BW__)
  return bits_as<Shorts>(_mm512_maddubs_epi16((__m512i)without, (__m512i)with));
#elif defined(__AVX2__)
  return bits_as<Shorts>(_mm256_maddubs_epi16((__m256i)without, (__m256i)with));
#else
  return bits_as<Shorts>(_mm_maddubs_epi16((__m128i)without, (__m128i)with));
#endif
}

// Sums of neighbours.
EC_INLINE vi32 add_pairs(Shorts x) {
  const Shorts ones = Shorts{} + 1;
#if defined(__AVX512BW__)
  return bits_as<vi32>(_mm512_madd_epi16((__m512i)x, (__m512i)ones));
#elif defined(__AVX2__)
  return bits_as<vi32>(_mm256_madd_epi16((__m256i)x, (__m256i)ones));
#else
  return bits_as<vi32>(_mm_madd_epi16((__m128i)x, (__m128i)ones));
#endif
}

// Whole numbers that are int8 as such; GCC 12 takes lane after lane where AVX-512 is missing.
EC_INLINE auto to_bytes(vi32 x) {
#if defined(__AVX512F__)
  return convert<Vector<int8_t, kFloatLanes>>(x);
#else
  const __m128i places = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  Vector<int8_t, kFloatLanes> bytes;
#if defined(__AVX2__)
  const __m256i each = _mm256_shuffle_epi8((__m256i)x, _mm256_broadcastsi128_si256(places));
  const __m128i low = _mm256_castsi256_si128(each), high = _mm256_extracti128_si256(each, 1);
  _mm_storeu_si64(&bytes, _mm_unpacklo_epi32(low, high));
#else
  // GCC 10 lacks _mm_storeu_si32.
  const int four = _mm_cvtsi128_si32(_mm_shuffle_epi8((__m128i)x, places));
  std::memcpy(&bytes, &four, sizeof bytes);
#endif
  return bytes;
#endif
}

}  // namespace ec

#endif
