#include "kernels/attention/cache_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ec {
namespace {

uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

}  // namespace

void quantize_row(const float* x, int64_t width, RowByte* row) {
  auto* to = reinterpret_cast<int8_t*>(row);
  for (int64_t d = 0; d < width; d += kRowBlock, x += kRowBlock) {
    const int64_t n = std::min(kRowBlock, width - d);
    // The bits are compared as whole numbers, so NaN is larger than all others.
    uint32_t top = 0;
    for (int64_t i = 0; i < n; ++i) top = std::max(top, bits_of(x[i]) & 0x7fffffffu);
    float largest;
    std::memcpy(&largest, &top, sizeof largest);
    uint32_t bits = bits_of(largest / 127.0f);
    bits = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    if (top >= 0x7f800000u) bits = 0x7fc0u;
    if (bits < 0x80u) bits = 0;
    const bool divides = bits != 0 && top < 0x7f800000u;
    const auto half = static_cast<uint16_t>(bits);
    std::memcpy(to, &half, sizeof half);
    const float scale = scale_of(to);
    to += kScaleBytes;
    for (int64_t i = 0; i < n; ++i) {
      // Added and taken away, this rounds to a whole number: floats of its size have no other.
      constexpr float kWhole = 12582912.0f;
      const float value = std::clamp(divides ? x[i] / scale : 0.0f, -127.0f, 127.0f);
      to[i] = static_cast<int8_t>(value + kWhole - kWhole);
    }
    to += n;
  }
}

void dequantize_row(const RowByte* row, int64_t width, float* x) {
  for (int64_t d = 0; d < width; d += kRowBlock) {
    const int8_t* const block = block_of(row, d);
    const float scale = scale_of(block);
    for (int64_t i = 0; i < std::min(kRowBlock, width - d); ++i) {
      x[d + i] = static_cast<float>(block[kScaleBytes + i]) * scale;
    }
  }
}

}  // namespace ec
