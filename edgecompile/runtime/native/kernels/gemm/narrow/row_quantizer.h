// Rounding rows of activations for products with int8 and int4 weights, in every call.
#pragma once

#include <algorithm>

#include "kernels/gemm/narrow/gemm_rounded_tile.h"

namespace ec {

constexpr int32_t kInfinity = 0x7f800000;
// The largest whole numbers that a block's values are rounded to, or sums of four as Int8PairsMath
// says. Each of the four may be rounded up by a half, so such a limit is at least two below
// kMostReach. It is a multiple of four: four equal values would end on a tie otherwise, and all of
// a block on one side. Of two parts the second has kSecondBits, from -32 to 31 for such sums.
template <class Math>
constexpr int32_t kCoarse = Math::kSummed == 2 ? 124 : 127;
template <class Math>
constexpr int kSecondBits = Math::kSummed == 2 ? 6 : 7;
template <class Math>
constexpr int32_t kFine = kCoarse<Math> << kSecondBits<Math>;
// A block is an outlier's if its largest value is over so many times the row's root mean square.
constexpr float kOutlier = 12.0f;

// The nearest whole numbers of magnitudes below 2^22, ties to even.
EC_INLINE vi32 round_to_int(vf32 x) {
  keep_in_register(x);  // a product is rounded first, so that every CPU gets the same numbers
  constexpr float kShift = 0x1.8p23f;
  const vf32 shift = opaque_constant(broadcast(kShift));
  return bits_as<vi32>(x + shift) - bits_as<vi32>(shift);
}

inline float as_float(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// By how much values of magnitudes up to `most` are multiplied to be at most `limit`, and what the
// results are multiples of.
struct RoundingStep {
  float factor, scale;

  RoundingStep(float most, float limit) {
    // A smaller block's factor would overflow. It stays a power of two whose inverse is exact.
    const bool tiny = most < limit * 0x1p-127f;
    factor = tiny ? 0x1p126f : limit / most;
    scale = tiny ? 0x1p-126f : most / limit;
  }
};

// Prepares rows of activations, kTogether of them in one another as RoundedRow says.
template <class Math, int kTogether = 1>
class RowQuantizer {
 public:
  using A = typename Math::A;

  explicit RowQuantizer(int64_t k) : k_(k), row_(k) {}

  int64_t row_bytes() const { return (row_.bytes() + kTogether - 1) / kTogether; }

  // Prepares the index-th row at `to`; `most` has room for an integer for each block.
  void operator()(const float* x, char* to, int32_t* most, int64_t index = 0) const {
    const float square = measure(x, most);
    const bool finite = square >= 0;
    uint64_t* const wanted = row_.wanted(to, index);
    if constexpr (Math::kParts > 1) std::fill_n(wanted, row_.words(), 0);
    for (int64_t block = 0; block < row_.blocks; ++block) {
      char* const record = to + block * Row::kRecord;
      A* const values = values_of(record, index);
      const auto put_scale = [&](int64_t part, float scale) {
        Row::put(record + part * row_.part(), index, 0, scale);
      };
      const int64_t from = block * kRoundedBlock, n = std::min(kRoundedBlock, k_ - from);
      const float largest = as_float(most[block]);
      int32_t sums[2][Math::kHalves] = {};
      if (Math::kParts > 1) put_scale(1, 0.0f);
      if (!finite || most[block] == 0) {
        clear(values);
        put_scale(0, finite ? 0.0f : __builtin_nanf(""));
      } else if (Math::kParts == 1) {
        const RoundingStep step = step_for(x + from, n, largest, kFine<Math>);
        round<1>(x + from, n, step.factor, values, sums);
        put_scale(0, step.scale);
      } else if (largest * largest <= kOutlier * kOutlier * square) {
        const RoundingStep step = step_for(x + from, n, largest, kCoarse<Math>);
        round<1>(x + from, n, step.factor, values, sums);
        put_scale(0, step.scale);
      } else {
        const RoundingStep step = step_for(x + from, n, largest, kFine<Math>);
        round<2>(x + from, n, step.factor, values, sums);
        put_scale(0, step.scale * (1 << kSecondBits<Math>));
        put_scale(1, step.scale);
        wanted[block / 64] |= uint64_t{1} << (block % 64);
      }
      if constexpr (Math::kOffset != 0) {
        for (int part = 0; part < Math::kParts; ++part) {
          for (int half = 0; half < Math::kHalves; ++half) {
            Row::put(record + part * row_.part(), index, 1 + half,
                     -Math::kOffset * sums[part][half]);
          }
        }
      }
    }
  }

  // Makes the index-th row add zeros to its own sums.
  void blank(char* to, int64_t index) const {
    std::fill_n(row_.wanted(to, index), row_.words(), 0);
    for (int64_t record = 0; record < Math::kParts * row_.blocks; ++record, to += Row::kRecord) {
      clear(values_of(to, index));
      for (int64_t slot = 0; slot <= Row::kStarts; ++slot) Row::put(to, index, slot, 0.0f);
    }
  }

 private:
  using Row = RoundedRow<Math, kTogether>;

  static A* values_of(char* record, int64_t index) {
    return reinterpret_cast<A*>(record) + index * Row::kRun;
  }
  static void clear(A* values) {
    for (int64_t i = 0; i < kRoundedBlock; i += Row::kRun) {
      std::fill_n(values + Row::place(i), Row::kRun, A{0});
    }
  }

  // The bits of each block's largest magnitude, and the mean square; -1 if not all are finite. As
  // integers, infinity's bits exceed every number's and a NaN's exceed infinity's.
  float measure(const float* x, int32_t* most) const {
    constexpr int kL = kFloatLanes;
    vf32 squares{};
    int32_t of_all = 0;
    for (int64_t from = 0; from < k_; from += kRoundedBlock) {
      const int64_t n = std::min(kRoundedBlock, k_ - from);
      vi32 largest{};
      const auto take = [&](vf32 v) __attribute__((always_inline)) {
        squares = fma(v, v, squares);
        largest = max(largest, bits_as<vi32>(abs(v)));
      };
      int64_t i = 0;
      for (; i + kL <= n; i += kL) take(load(x + from + i));
      if (i < n) take(load_partial(x + from + i, n - i));
      *most = reduce_max(largest);
      of_all = std::max(of_all, *most++);
    }
    return of_all >= kInfinity ? -1.0f : reduce_add(squares) / static_cast<float>(k_);
  }

  static auto narrowed(vi32 x) {
#if defined(__SSSE3__)
    if constexpr (sizeof(A) == 1)
      return to_bytes(x);
    else
#endif
      return convert<Vector<A, kFloatLanes>>(x);
  }

  // How a block of n values is rounded to whole numbers within a limit.
  static RoundingStep step_for([[maybe_unused]] const float* x, [[maybe_unused]] int64_t n,
                               float largest, int32_t limit) {
    if constexpr (Math::kSummed == 1) return {largest, static_cast<float>(limit)};
#if EC_BYTE_PAIRS
    // A quarter of each, as a sum of four may be infinite.
    return {quarter_reach(x, n), static_cast<float>(limit) * 0.25f};
#endif
  }

#if EC_BYTE_PAIRS
  // A quarter of the largest sum of magnitudes of one sign among four values that meet in 16 bits.
  static float quarter_reach(const float* x, int64_t n) {
    constexpr int kL = kFloatLanes;
    constexpr int64_t kApart = 4 * kSummedApart;
    const vf32 quarter = broadcast(0.25f);
    const auto at = [&](int64_t i) __attribute__((always_inline)) {
      return quarter * (i + kL <= n ? load(x + i) : i < n ? load_partial(x + i, n - i) : vf32{});
    };
    vf32 most{};
    for (int64_t from = 0; from < n; from += 2 * kApart) {
#pragma GCC unroll 4
      for (int64_t i = from; i < from + kApart; i += kL) {
        const vf32 one = at(i), other = at(i + kApart);
        const vf32 up = max(one, vf32{}) + max(other, vf32{});
        const vf32 down = min(one, vf32{}) + min(other, vf32{});
        most = max(most, up + swap_neighbours(up));
        most = max(most, -(down + swap_neighbours(down)));
      }
    }
    return as_float(reduce_max(bits_as<vi32>(most)));
  }
  static vf32 swap_neighbours(vf32 x) {
    return [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
      return __builtin_shuffle(x, vi32{(i ^ 1)...});
    }(std::make_integer_sequence<int, kFloatLanes>{});
  }
#endif

  // n values times `factor` as integers: in one part, or as 2^kSecondBits·first + second. What is
  // left of a block becomes zero. Adds up each half of each part.
  template <int Parts>
  void round(const float* x, int64_t n, float factor, A* to,
             int32_t (&sums)[2][Math::kHalves]) const {
    constexpr int kL = kFloatLanes;
    [[maybe_unused]] A* const rest = to + row_.part() / static_cast<int64_t>(sizeof(A));
    for (int half = 0; half < Math::kHalves; ++half) {
      const int64_t begin = half * kHalfInputs<Math>, end = begin + kHalfInputs<Math>;
      vi32 sum[2] = {};
      const auto put = [&](vf32 v, int64_t i) __attribute__((always_inline)) {
        vi32 whole = round_to_int(v * factor);
        if constexpr (Parts == 2) {
          constexpr int kBits = kSecondBits<Math>, kHalf = 1 << (kBits - 1);
          const vi32 shifted = whole + kHalf;
          const vi32 low = (shifted & ((1 << kBits) - 1)) - kHalf;
          whole = shifted >> kBits;
          store(rest + Row::place(i), narrowed(low));
          sum[1] += low;
        }
        store(to + Row::place(i), narrowed(whole));
        sum[0] += whole;
      };
      const int64_t filled = std::min(n, end);
      int64_t i = begin;
      for (; i + kL <= filled; i += kL) put(load(x + i), i);
      if (i < filled) put(load_partial(x + i, filled - i), i), i += kL;
      for (; i < end; i += kL) put(vf32{}, i);
      if constexpr (Math::kOffset != 0) {
        for (int part = 0; part < Parts; ++part) sums[part][half] = reduce_add(sum[part]);
      }
    }
  }

  int64_t k_;
  Row row_;
};

}  // namespace ec
