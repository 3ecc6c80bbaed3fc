// Rows of keys or values in int8. Each block of 32 numbers, the last one perhaps of fewer, is a
// scale in bfloat16, little-endian, and the numbers divided by it, -127 to 127.
#pragma once

#include <cstdint>
#include <cstring>

#include "math/simd.h"

namespace ec {

constexpr int64_t kRowBlock = 32;
constexpr int64_t kScaleBytes = 2;
static_assert(kRowBlock % kFloatLanes == 0);

// A byte of such a row: a type of its own, so that no other int8 is taken for one.
enum class RowByte : int8_t {};

// Bytes of a row of `width` numbers, and the numbers of a row of so many bytes; -1: it has none.
inline int64_t row_bytes(int64_t width) {
  return width + (width + kRowBlock - 1) / kRowBlock * kScaleBytes;
}
inline int64_t row_width(int64_t bytes) {
  constexpr int64_t kBlockBytes = kRowBlock + kScaleBytes;
  const int64_t left = bytes % kBlockBytes;
  if (bytes < 0 || (left != 0 && left <= kScaleBytes)) return -1;
  return bytes - (bytes + kBlockBytes - 1) / kBlockBytes * kScaleBytes;
}

using vrow = Vector<int8_t, kFloatLanes>;

// The block of a row's d-th number.
EC_INLINE const int8_t* block_of(const RowByte* row, int64_t d) {
  return reinterpret_cast<const int8_t*>(row) + d / kRowBlock * (kRowBlock + kScaleBytes);
}
EC_INLINE float scale_of(const int8_t* block) {
  uint16_t half;
  std::memcpy(&half, block, sizeof half);
  const uint32_t bits = uint32_t{half} << 16;
  float scale;
  std::memcpy(&scale, &bits, sizeof scale);
  return scale;
}
EC_INLINE vf32 scaled(vrow x, float scale) {
  return convert<vf32>(convert<vi32>(x)) * broadcast(scale);
}

// Writes a row of `width` numbers to row_bytes(width) bytes. A scale is the largest of its block
// divided by 127, to the nearest, ties to even, as are the numbers divided by it. It is 0 where it
// would be denormal, and not finite where one of the numbers isn't, which are all 0 then.
void quantize_row(const float* x, int64_t width, RowByte* row);

// The floats that a row stands for.
void dequantize_row(const RowByte* row, int64_t width, float* x);

}  // namespace ec
