// Products of int8 weights with rounded activations, summed in int32: the one step of which no
// vector extension exists.
//
// Where the CPU multiplies four pairs of int8 in one instruction (VNNI, Arm's dot product),
// activations are int8, too, those of blocks with outliers in two parts. Elsewhere they are int16,
// unless the caller lets x86-64 add pairs in 16 bits (Int8PairsMath).
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/gemm/gemm_kernel.h"
#include "kernels/gemm/narrow/byte_pairs.h"
#include "kernels/gemm/narrow/vnni.h"

namespace ec {

using FirstHalf = std::integral_constant<int, 0>;
using SecondHalf = std::integral_constant<int, 1>;

// The members that every Math for int8 weights has.
struct WholeBlocks {
  static constexpr int kHalves = 1;
  static constexpr bool kShared = false;
  static constexpr bool kLateStart = false;
  static constexpr int kScaleBytes = 4;
  static constexpr int kSummed = 1;
  EC_INLINE static vf32 load_scales(const char* p) {
    return load(reinterpret_cast<const float*>(p));
  }
};

// A Math has
//   A                the type of prepared activations
//   kParts           1; or 2, where they are int8
//   kOffset          what add_products adds to each weight
//   kHalves          the number of parts of a block with scales of their own
//   kShared          whether a byte of B holds two weights, one of each half
//   kSummed          groups that add_products takes, 2 if four pairs are added in 16 bits
//   kLateStart       whether sums start from 0, and their start value is added later
//   Acc              partial sums of kColumns columns, kPerVector of them for a vector of columns
//   kSpare           registers needed beside the sums and a row of B
//   start(x)         sums that begin with x for each column
//   B load_b(b, half)    four values of k of kColumns columns
//   V load_a(a)          four values of k of a row, for all columns
//   vf32 load_scales(p)  scales of a vector of columns, each of kScaleBytes
//   add_products(acc, a, b)         or (acc, a, b, a2, b2) with a second group
//   vi32 total(acc)  the columns' sums
#if EC_VNNI
struct Int8Math : WholeBlocks {
  using A = int8_t;
  using Acc = vi32;
  static constexpr int kParts = 2;
  static constexpr int32_t kOffset = 128;  // one factor is unsigned: the weight, made so here
  static constexpr int kColumns = kFloatLanes;
  static constexpr int kPerVector = 1;
  static constexpr int kSpare = 2;

  EC_INLINE static Acc start(int32_t x) { return broadcast<vi32>(x); }
  EC_INLINE static vi32 load_b(const char* b, FirstHalf = {}) {
    return load<vi32>(reinterpret_cast<const int32_t*>(b)) ^ broadcast<vi32>(int32_t(0x80808080));
  }
  EC_INLINE static vi32 load_a(const int8_t* a) { return broadcast_from<vi32>(a); }
  EC_INLINE static void add_products(Acc& acc, vi32 a, vi32 b) { add_byte_products(acc, b, a); }
  EC_INLINE static vi32 total(const Acc (&acc)[1]) { return acc[0]; }
};
#elif defined(__ARM_FEATURE_DOTPROD)
struct Int8Math : WholeBlocks {
  using A = int8_t;
  using Acc = int32x4_t;
  static constexpr int kParts = 2;
  static constexpr int32_t kOffset = 0;
  static constexpr int kColumns = 4;
  static constexpr int kPerVector = 1;
  static constexpr int kSpare = 1;

  EC_INLINE static Acc start(int32_t x) { return vdupq_n_s32(x); }
  EC_INLINE static int8x16_t load_b(const char* b, FirstHalf = {}) {
    return vld1q_s8(reinterpret_cast<const int8_t*>(b));
  }
  // Four k in the first lane, which multiplication can take.
  EC_INLINE static float load_a(const int8_t* a) {
    float four;
    std::memcpy(&four, a, sizeof four);
    return four;
  }
  EC_INLINE static void add_products(Acc& acc, float a, int8x16_t b) {
    asm volatile("sdot %0.4s, %2.16b, %1.4b[0]" : "+w"(acc) : "w"(a), "w"(b));
  }
  EC_INLINE static vi32 total(const Acc (&acc)[1]) { return bits_as<vi32>(acc[0]); }
};
#elif defined(__aarch64__)
// Four sums for each column, in two registers for every two columns.
struct Int8Math : WholeBlocks {
  using A = int16_t;
  struct Acc {
    int32x4_t low, high;
  };
  using V = Vector<int16_t, 8>;
  static constexpr int kParts = 1;
  static constexpr int32_t kOffset = 0;
  static constexpr int kColumns = 2;
  static constexpr int kPerVector = 2;
  static constexpr int kSpare = 2;

  EC_INLINE static Acc start(int32_t) { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  EC_INLINE static V load_b(const char* b, FirstHalf = {}) {
    return convert<V>(load<Vector<int8_t, 8>>(reinterpret_cast<const int8_t*>(b)));
  }
  EC_INLINE static V load_a(const int16_t* a) { return bits_as<V>(broadcast_from<vi64>(a)); }
  EC_INLINE static void add_products(Acc& acc, V a, V b) {
    const int16x8_t x = bits_as<int16x8_t>(a), y = bits_as<int16x8_t>(b);
    acc = {vmlal_s16(acc.low, vget_low_s16(x), vget_low_s16(y)), vmlal_high_s16(acc.high, x, y)};
    keep_in_register(acc.low);
    keep_in_register(acc.high);
  }
  EC_INLINE static vi32 total(const Acc (&acc)[2]) {
    return bits_as<vi32>(
        vpaddq_s32(vpaddq_s32(acc[0].low, acc[0].high), vpaddq_s32(acc[1].low, acc[1].high)));
  }
};
#else
// Two sums beside each other for each column.
struct Int8Math : WholeBlocks {
  using A = int16_t;
  using Acc = vi32;
  using V = Vector<int16_t, kVectorBytes / 2>;
  static constexpr int kParts = 1;
  static constexpr int32_t kOffset = 0;
  static constexpr int kColumns = kVectorBytes / 8;
  static constexpr int kPerVector = 2;
  static constexpr int kSpare = 2;

  EC_INLINE static Acc start(int32_t) { return vi32{}; }
  EC_INLINE static V load_b(const char* b, FirstHalf = {}) {
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
  EC_INLINE static V load_a(const int16_t* a) { return bits_as<V>(broadcast_from<vi64>(a)); }
  EC_INLINE static void add_products(Acc& acc, V a, V b) {
#if defined(__AVX512BW__)
    acc += bits_as<Acc>(_mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif defined(__AVX2__)
    acc += bits_as<Acc>(_mm256_madd_epi16((__m256i)a, (__m256i)b));
#else
    acc += bits_as<Acc>(_mm_madd_epi16((__m128i)a, (__m128i)b));
#endif
    keep_in_register(acc);  // the compiler would add up all at the end
  }
  // Sums of neighbours, within 128 bits first: crossing them is slow. Then every other pair of
  // columns comes from the one register, the others from the other.
  EC_INLINE static vi32 total(const Acc (&acc)[2]) {
    constexpr int n = kFloatLanes;
    const vi32 x = acc[0], y = acc[1];
    const vi32 sums = [&]<int... i>(std::integer_sequence<int, i...>)
                          __attribute__((always_inline)) {
                            return __builtin_shuffle(x, y, vi32{from_pairs(i)...}) +
                                   __builtin_shuffle(x, y, vi32{from_pairs(i) + 1 ...});
                          }(std::make_integer_sequence<int, n>{});
    if constexpr (n == 4) return sums;
    return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
      return __builtin_shuffle(sums, vi32{(i % (n / 2) / 2 * 4 + i / (n / 2) * 2 + i % 2)...});
    }(std::make_integer_sequence<int, n>{});
  }
  // Lane of the i-th sum's first half; lanes of y count after those of x.
  static constexpr int from_pairs(int i) {
    return i / 4 * 4 + i % 2 * 2 + (i % 4 < 2 ? 0 : kFloatLanes);
  }
};

#if defined(__SSSE3__)
#define EC_BYTE_PAIRS 1
// How far behind each other groups lie that are added in 16 bits, and how much their activations of
// one sign may come to.
constexpr int64_t kSummedApart = 4;
constexpr int32_t kMostReach = 128;

// The instruction for two pairs adds its products in 16 bits and saturates. Widening costs as much
// as two pairs, so the sums of two instructions are added first: those of a group of four
// activations, and of the fourth group after it. Nothing saturates: weights are from -128 to 127,
// made unsigned 0 to 255. Activations are rounded such that among the four that meet in a sum the
// positive ones come to kMostReach at most, and so do the negative ones. Every partial sum is then
// between -255·kMostReach and 255·kMostReach.
static_assert(255 * kMostReach < 1 << 15);
struct Int8PairsMath : WholeBlocks {
  using A = int8_t;
  using Acc = vi32;
  static constexpr int kParts = 2;
  static constexpr int32_t kOffset = 128;
  static constexpr int kColumns = kFloatLanes;
  static constexpr int kPerVector = 1;
  static constexpr int kSummed = 2;
  static constexpr int kSpare = 4;

  EC_INLINE static Acc start(int32_t x) { return broadcast<vi32>(x); }
  EC_INLINE static vi32 load_b(const char* b, FirstHalf = {}) {
    return load<vi32>(reinterpret_cast<const int32_t*>(b)) ^ broadcast<vi32>(int32_t(0x80808080));
  }
  EC_INLINE static vi32 load_a(const int8_t* a) { return broadcast_from<vi32>(a); }
  EC_INLINE static void add_products(Acc& acc, vi32 a, vi32 b) {
    acc += add_pairs(multiply_pairs(b, a));
    keep_in_register(acc);  // the compiler would add up all at the end
  }
  EC_INLINE static void add_products(Acc& acc, vi32 a, vi32 b, vi32 a2, vi32 b2) {
    acc += add_pairs(multiply_pairs(b, a) + multiply_pairs(b2, a2));
    keep_in_register(acc);  // the compiler would add up all at the end
  }
  EC_INLINE static vi32 total(const Acc (&acc)[1]) { return acc[0]; }
};
#endif
#endif

// A scale for each half of a block, one behind the other.
struct Int8HalvesMath : Int8Math {
  static constexpr int kHalves = 2;

  template <class Half>
  EC_INLINE static auto load_b(const char* b, Half) {
    return Int8Math::load_b(b);
  }
};

}  // namespace ec
