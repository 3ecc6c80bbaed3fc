// Products of int8 weights with rounded activations, summed in int32: the one step of which no
// vector extension exists.
//
// Activations are int8, too, those of blocks with outliers in two parts; on Arm without the dot
// product they are int16.
//
// x86-64 without an instruction for four pairs (VNNI) has one for two, whose sum is 16 bits.
// Weights made unsigned reach 255 there, so activations are rounded such that positive ones that
// meet in a sum come to kMostReach at most, and so do negative ones: 255 times that is below 2^15.
// Widening a sum costs as much as two pairs, so four are added first: the activations of a group of
// four, and of the fourth group after it.
#pragma once

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/gemm/gemm_kernel.h"
#include "kernels/gemm/narrow/byte_pairs.h"
#include "kernels/gemm/narrow/vnni.h"

namespace ec {

using FirstHalf = std::integral_constant<int, 0>;
using SecondHalf = std::integral_constant<int, 1>;

// What all of int8's have.
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

// How far behind each other groups lie that are added in 16 bits, and how much their activations of
// one sign may come to.
constexpr int64_t kSummedApart = 4;
constexpr int32_t kMostReach = 128;
static_assert(255 * kMostReach < 1 << 15);

// A Math has
//   A                elements of a row of activations as prepared
//   kParts           1; or 2, where they are int8
//   kOffset          what add_products adds to each weight
//   kHalves          how many parts of a block may have scales of their own
//   kShared          whether a byte of B holds a weight of each half
//   kSummed          groups that add_products takes, 2 if four pairs are added in 16 bits
//   kLateStart       whether sums start from 0, and what they should start from is added later
//   Acc              partial sums of kColumns columns, kPerVector of them for a vector of columns
//   kSpare           registers needed beside the sums and a row of B
//   start(x)         sums that begin with x for each column
//   B load_b(b, half), V load_a(a): four k of kColumns columns, and of a row for all of them
//   vf32 load_scales(p)  scales of a vector of columns, each of kScaleBytes
//   add_products(acc, a, b)         or (acc, a, b, a2, b2) with a second group
//   vi32 total(acc)  the columns' sums
#if defined(__x86_64__)
struct Int8Math : WholeBlocks {
  using A = int8_t;
  using Acc = vi32;
  static constexpr int kParts = 2;
  static constexpr int32_t kOffset = 128;  // one factor is unsigned: the weight, made so here
  static constexpr int kColumns = kFloatLanes;
  static constexpr int kPerVector = 1;
#if EC_VNNI
  static constexpr int kSpare = 2;
#else
  static constexpr int kSummed = 2;
  static constexpr int kSpare = 4;
#endif

  EC_INLINE static Acc start(int32_t x) { return broadcast<vi32>(x); }
  EC_INLINE static vi32 load_b(const char* b, FirstHalf = {}) {
    return load<vi32>(reinterpret_cast<const int32_t*>(b)) ^ broadcast<vi32>(int32_t(0x80808080));
  }
  EC_INLINE static vi32 load_a(const int8_t* a) { return broadcast_from<vi32>(a); }
#if EC_VNNI
  EC_INLINE static void add_products(Acc& acc, vi32 a, vi32 b) { add_byte_products(acc, b, a); }
#else
  EC_INLINE static void add_products(Acc& acc, vi32 a, vi32 b) {
    acc += add_pairs(multiply_pairs(b, a));
    keep_sums(acc);
  }
  EC_INLINE static void add_products(Acc& acc, vi32 a, vi32 b, vi32 a2, vi32 b2) {
    acc += add_pairs(multiply_pairs(b, a) + multiply_pairs(b2, a2));
    keep_sums(acc);
  }
#endif
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
    asm volatile("" : "+w"(acc.low));
    asm volatile("" : "+w"(acc.high));
  }
  EC_INLINE static vi32 total(const Acc (&acc)[2]) {
    return bits_as<vi32>(
        vpaddq_s32(vpaddq_s32(acc[0].low, acc[0].high), vpaddq_s32(acc[1].low, acc[1].high)));
  }
};
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
