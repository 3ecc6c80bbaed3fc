// Keys and values as they are stored: in single precision, or in bfloat16, which is read as the
// floats that it stands for. So a cache in bfloat16 gives what one with these floats gives, bit for
// bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "math/simd.h"

namespace ec {

using vbf16 = Vector<uint16_t, kFloatLanes>;

EC_INLINE vf32 widen(vbf16 x) { return bits_as<vf32>(convert<vu32>(x) << 16); }

EC_INLINE vf32 load_floats(const float* p) { return load(p); }
EC_INLINE vf32 load_floats(const float* p, int64_t n) { return load_partial(p, n); }
EC_INLINE vf32 load_floats(const uint16_t* p) { return widen(load<vbf16>(p)); }
EC_INLINE vf32 load_floats(const uint16_t* p, int64_t n) {
  return widen(load_partial<vbf16>(p, n));
}

// Reads n numbers ahead of the row kAhead rows on, of which only `left` follow: rows of a cache are
// heads apart, so that nothing but this does.
template <int64_t kAhead, class Number>
EC_INLINE void fetch_ahead(const Number* row, int64_t stride, int64_t left, int64_t n) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Number));
  row += std::min(kAhead, left) * stride;
  for (int64_t i = 0; i < n; i += kLine) __builtin_prefetch(row + i);
}

// Floats for what packs keys and values: the stored ones where they are floats, else copies.
template <class Number>
class Widened {
 public:
  Widened(const AttentionArgs& args, int64_t) : args_(args) {}
  static int64_t floats() { return 0; }
  void use(float*) {}
  const AttentionArgs& args() const { return args_; }
  const float* keys(const Number* k, int64_t) { return k; }
  const float* values(const Number* v, int64_t, int64_t) { return v; }

 private:
  const AttentionArgs& args_;
};

template <>
class Widened<uint16_t> {
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
  // Copies are valid until the next call.
  const float* keys(const uint16_t* k, int64_t keys) {
    return copy(k, given_.k_strides[2], keys, args_.dim, args_.k_strides[2]);
  }
  const float* values(const uint16_t* v, int64_t keys, int64_t columns) {
    return copy(v, given_.v_strides[2], keys, columns, args_.v_strides[2]);
  }

 private:
  const float* copy(const uint16_t* from, int64_t stride, int64_t rows, int64_t columns,
                    int64_t ld) {
    for (int64_t r = 0; r < rows; ++r, from += stride) {
      float* const to = memory_ + r * ld;
      int64_t c = 0;
      for (; c + kFloatLanes <= columns; c += kFloatLanes) store(to + c, load_floats(from + c));
      if (c < columns) store_partial(to + c, load_floats(from + c, columns - c), columns - c);
    }
    return memory_;
  }

  const AttentionArgs& given_;
  AttentionArgs args_;
  int64_t block_;
  float* memory_ = nullptr;
};

}  // namespace ec
