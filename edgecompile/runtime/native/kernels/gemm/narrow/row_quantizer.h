// Rounding rows of activations for products with int8 and int4 weights, in every call.
#pragma once

#include <algorithm>

#include "kernels/gemm/narrow/gemm_rounded_tile.h"

namespace ec {

constexpr int32_t kInfinity = 0x7f800000;
// The largest magnitudes that a block's values are rounded to multiples of, in one part and in two.
constexpr int32_t kCoarse = 127;
constexpr int32_t kFine = 127 * 128;
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

  RoundingStep(float most, int32_t limit) {
    // So far down the factor would overflow; there it stays a power of two whose inverse is exact.
    const bool tiny = most < static_cast<float>(limit) * 0x1p-127f;
    factor = tiny ? 0x1p126f : static_cast<float>(limit) / most;
    scale = tiny ? 0x1p-126f : most / static_cast<float>(limit);
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
        const RoundingStep step(largest, kFine);
        round<1>(x + from, n, step.factor, values, sums);
        put_scale(0, step.scale);
      } else if (largest * largest <= kOutlier * kOutlier * square) {
        const RoundingStep step(largest, kCoarse);
        round<1>(x + from, n, step.factor, values, sums);
        put_scale(0, step.scale);
      } else {
        const RoundingStep step(largest, kFine);
        round<2>(x + from, n, step.factor, values, sums);
        put_scale(0, step.scale * 128.0f);
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

  // n values times `factor` as integers: in one part, or as 128·first + second. What is left of a
  // block becomes zero. Adds up each half of each part.
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
          const vi32 shifted = whole + 64;
          const vi32 low = (shifted & 127) - 64;
          whole = shifted >> 7;
          store(rest + Row::place(i), convert<Vector<A, kL>>(low));
          sum[1] += low;
        }
        store(to + Row::place(i), convert<Vector<A, kL>>(whole));
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
