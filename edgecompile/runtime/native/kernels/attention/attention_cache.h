// Keys and values as they are stored: in single precision, in bfloat16, or in int8 with scales.
// They are read as the floats that they stand for. So a narrow cache gives what one with these
// floats gives, bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/attention/attention.h"
#include "kernels/attention/cache_rows.h"
#include "kernels/gemm/gemm.h"
#include "math/simd.h"

namespace ec {

using vbf16 = Vector<uint16_t, kFloatLanes>;

EC_INLINE vf32 widen(vbf16 x) {
#if defined(__AVX512F__)  // GCC 12 converts the halves and joins them
  return (vf32)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#elif defined(__AVX2__)
  return (vf32)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)x), 16);
#else
  return bits_as<vf32>(convert<vu32>(x) << 16);
#endif
}

// The elements that store n numbers.
template <class Number>
EC_INLINE int64_t elements_of(int64_t n) {
  return std::is_same_v<Number, RowByte> ? row_bytes(n) : n;
}

// A vector of a row's numbers from the d-th on, a multiple of the vector's lanes; with n the first
// n of them alone.
EC_INLINE vf32 load_floats(const float* row, int64_t d) { return load(row + d); }
EC_INLINE vf32 load_floats(const float* row, int64_t d, int64_t n) {
  return load_partial(row + d, n);
}
EC_INLINE vf32 load_floats(const uint16_t* row, int64_t d) { return widen(load<vbf16>(row + d)); }
EC_INLINE vf32 load_floats(const uint16_t* row, int64_t d, int64_t n) {
  return widen(load_partial<vbf16>(row + d, n));
}
EC_INLINE vf32 load_floats(const RowByte* row, int64_t d) {
  const int8_t* const block = block_of(row, d);
  return scaled(load<vrow>(block + kScaleBytes + d % kRowBlock), scale_of(block));
}
EC_INLINE vf32 load_floats(const RowByte* row, int64_t d, int64_t n) {
  const int8_t* const block = block_of(row, d);
  return scaled(load_partial<vrow>(block + kScaleBytes + d % kRowBlock, n), scale_of(block));
}

// Reads n elements ahead of the row kAhead rows on, of which only `left` follow: rows of a cache
// are heads apart, so that nothing but this does.
template <int64_t kAhead, class Number>
EC_INLINE void fetch_ahead(const Number* row, int64_t stride, int64_t left, int64_t n) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Number));
  row += std::min(kAhead, left) * stride;
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(row + i);
}

// Floats for what packs keys and values: copies, or the stored ones where they are floats.
template <class Number>
class Widened {
 public:
  // For `block` keys at a time.
  Widened(const AttentionArgs& args, int64_t block) : given_(args), args_(args), block_(block) {
    args_.k_strides[2] = args.dim;
    args_.v_strides[2] = kPanel;
  }
  int64_t floats() const { return std::max(kPanel * args_.dim, block_ * kPanel); }
  void use(float* memory) { memory_ = memory; }
  // The arguments with the strides of the copies.
  const AttentionArgs& args() const { return args_; }
  // Copies are valid until the next call. `column`: the first of the columns, that of a panel.
  const float* keys(const Number* k, int64_t keys) {
    return copy(k, given_.k_strides[2], keys, 0, args_.dim, args_.k_strides[2]);
  }
  const float* values(const Number* v, int64_t keys, int64_t column, int64_t columns) {
    return copy(v, given_.v_strides[2], keys, column, columns, args_.v_strides[2]);
  }

 private:
  const float* copy(const Number* from, int64_t stride, int64_t rows, int64_t column,
                    int64_t columns, int64_t ld) {
    for (int64_t r = 0; r < rows; ++r, from += stride) {
      float* const to = memory_ + r * ld;
      int64_t c = 0;
      for (; c + kFloatLanes <= columns; c += kFloatLanes) {
        store(to + c, load_floats(from, column + c));
      }
      if (c < columns) {
        store_partial(to + c, load_floats(from, column + c, columns - c), columns - c);
      }
    }
    return memory_;
  }

  const AttentionArgs& given_;
  AttentionArgs args_;
  int64_t block_;
  float* memory_ = nullptr;
};

template <>
class Widened<float> {
 public:
  Widened(const AttentionArgs& args, int64_t) : args_(args) {}
  static int64_t floats() { return 0; }
  void use(float*) {}
  const AttentionArgs& args() const { return args_; }
  const float* keys(const float* k, int64_t) { return k; }
  const float* values(const float* v, int64_t, int64_t column, int64_t) { return v + column; }

 private:
  const AttentionArgs& args_;
};

}  // namespace ec
