// Products of int16 and int8 summed in int32: the one step of which no vector extension exists.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "gemm_kernel.h"

namespace ec {

struct Int8Math {
  using A = int16_t;
  using Sum = int32_t;
  static constexpr int kDepth = 4;
  static constexpr int kParts = 1;
  static constexpr bool kScales = true;
  static constexpr int64_t kSerialWork = 400'000;
  static constexpr int64_t kMemoryRows = 4;

  using V = Vector<int16_t, kVectorBytes / 2>;
  static constexpr int kColumns = kVectorBytes / 8;

  EC_INLINE static V load_b(const char* b, int) {
#if defined(__AVX512BW__)  // GCC 12 converts by halves
    return bits_as<V>(
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(b))));
#elif defined(__AVX2__)
    return bits_as<V>(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b))));
#elif defined(__SSE4_1__)
    return bits_as<V>(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(b))));
#else
    return convert<V>(load<Vector<int8_t, kVectorBytes / 2>>(reinterpret_cast<const int8_t*>(b)));
#endif
  }
  EC_INLINE static V load_a(const int16_t* a, int) {
    int64_t four;
    std::memcpy(&four, a, sizeof four);
    return bits_as<V>(broadcast<vi64>(four));
  }

#if defined(__aarch64__)
  // Four sums for each column, a register for each.
  struct Acc {
    int32x4_t low, high;
  };
  static constexpr int kRegisters = 2;
  static constexpr int kSpare = 2;
  static constexpr int kPerStore = 2;
  static constexpr bool kLongLatency = true;

  EC_INLINE static Acc multiply_add(Acc acc, V a, V b) {
    const int16x8_t x = bits_as<int16x8_t>(a), y = bits_as<int16x8_t>(b);
    return {vmlal_s16(acc.low, vget_low_s16(x), vget_low_s16(y)), vmlal_high_s16(acc.high, x, y)};
  }
  EC_INLINE static Acc add(Acc x, Acc y) {
    return {vaddq_s32(x.low, y.low), vaddq_s32(x.high, y.high)};
  }
  EC_INLINE static void keep(Acc& v) {
    asm volatile("" : "+w"(v.low));
    asm volatile("" : "+w"(v.high));
  }
  EC_INLINE static vi32 fold(const Acc& x, const Acc& y) {
    return bits_as<vi32>(vpaddq_s32(vpaddq_s32(x.low, x.high), vpaddq_s32(y.low, y.high)));
  }
#else
  // Two sums beside each other for each column.
  using Acc = vi32;
  static constexpr int kRegisters = 1;
  static constexpr int kSpare = 2;
  static constexpr int kPerStore = 2;

  EC_INLINE static Acc multiply_add(Acc acc, V a, V b) {
#if defined(__AVX512VNNI__)
    return bits_as<Acc>(_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b));
#elif defined(__AVX512BW__)
    return add(acc, bits_as<Acc>(_mm512_madd_epi16((__m512i)a, (__m512i)b)));
#elif defined(__AVXVNNI__)
    return bits_as<Acc>(_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)a, (__m256i)b));
#elif defined(__AVX2__)
    return add(acc, bits_as<Acc>(_mm256_madd_epi16((__m256i)a, (__m256i)b)));
#elif defined(__SSE2__)
    return add(acc, bits_as<Acc>(_mm_madd_epi16((__m128i)a, (__m128i)b)));
#endif
  }
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512BW__))
  static constexpr bool kLongLatency = true;
#else
  static constexpr bool kLongLatency = false;  // of the addition
#endif
  EC_INLINE static Acc add(Acc x, Acc y) { return bits_as<Acc>((vu32)x + (vu32)y); }  // may wrap
  EC_INLINE static void keep(Acc& v) {
#if defined(__AVX512F__)
    asm volatile("" : "+v"(v));
#else
    asm volatile("" : "+x"(v));
#endif
  }
  // Sums of neighbours, within 128 bits first: crossing them is dear. Then x and y have every
  // other pair of columns.
  EC_INLINE static vi32 fold(Acc x, Acc y) {
    constexpr int n = kFloatLanes;
    const vi32 sums = [&]<int... i>(std::integer_sequence<int, i...>)
                          __attribute__((always_inline)) {
                            return add(__builtin_shuffle(x, y, vi32{from_pairs(i)...}),
                                       __builtin_shuffle(x, y, vi32{from_pairs(i) + 1 ...}));
                          }(std::make_integer_sequence<int, n>{});
    if constexpr (n == 4) return sums;
    return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
      return __builtin_shuffle(sums, vi32{(i % (n / 2) / 2 * 4 + i / (n / 2) * 2 + i % 2)...});
    }(std::make_integer_sequence<int, n>{});
  }
  // Where the i-th sum's first half comes from, lanes of y counted after those of x.
  static constexpr int from_pairs(int i) {
    return i / 4 * 4 + i % 2 * 2 + (i % 4 < 2 ? 0 : kFloatLanes);
  }
#endif

  EC_INLINE static void store_sums(const Acc (&acc)[2], int32_t* out, bool accumulate) {
    const vi32 sums = fold(acc[0], acc[1]);
    store(out, accumulate ? bits_as<vi32>((vu32)sums + (vu32)load<vi32>(out)) : sums);
  }
};

}  // namespace ec
