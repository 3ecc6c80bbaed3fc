#include "kernels/gemm/packed_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/narrow/gemm_narrow.h"

namespace ec {
namespace {

constexpr int64_t kGroup = 4;
constexpr int64_t kHalfBlock = kRoundedBlock / 2;

// The byte of a block's j-th value of a column.
int64_t place(int64_t n, int64_t j) {
  return (j / kGroup * kPanel + n % kPanel) * kGroup + j % kGroup;
}

// A number in half precision. Denormal ones are read as integers: the CPU may be set to take
// denormal floats for zeros.
float half_at(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  const uint32_t magnitude = half & 0x7fff;
  float value = static_cast<float>(magnitude) * 0x1p-24f;
  if (magnitude >= 0x400) {
    const uint32_t finite = (magnitude << 13) + (112 << 23);
    const uint32_t bits = finite | (magnitude >= 0x7c00 ? 0x7f800000 : 0);
    std::memcpy(&value, &bits, sizeof value);
  }
  return half >> 15 != 0 ? -value : value;
}

}  // namespace

void packed_row(const float* packed, int64_t k, int64_t n, float* out) {
  const float* const panel = packed + n / kPanel * k * kPanel + n % kPanel;
  for (int64_t i = 0; i < k; ++i) out[i] = panel[i * kPanel];
}

void packed_row_bf16(const uint16_t* packed, int64_t k, int64_t n, float* out) {
  const int64_t pairs = (k + 1) / 2;
  const uint16_t* const panel = packed + (n / kPanel * pairs * kPanel + n % kPanel) * 2;
  for (int64_t i = 0; i < k; ++i) {
    const uint32_t bits = uint32_t{panel[i / 2 * kPanel * 2 + i % 2]} << 16;
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

void packed_row_int8(const int8_t* packed, int64_t panel_bytes, int64_t k, int64_t n, float* out) {
  const bool halves = panel_bytes != packed_elements_int8(1, k);
  const int8_t* block = packed + n / kPanel * panel_bytes;
  for (int64_t i = 0; i < k; i += kRoundedBlock, out += kRoundedBlock) {
    const int64_t values = std::min(kRoundedBlock, k - i);
    const int64_t groups = ((halves ? kRoundedBlock : values) + kGroup - 1) / kGroup;
    const int8_t* const scales = block + groups * kPanel * kGroup;
    float scale[2];
    for (int64_t half = 0; half < 1 + halves; ++half) {
      std::memcpy(scale + half, scales + (half * kPanel + n % kPanel) * 4, 4);
    }
    for (int64_t j = 0; j < values; ++j) {
      out[j] = static_cast<float>(block[place(n, j)]) * scale[halves ? j / kHalfBlock : 0];
    }
    block = scales + (1 + halves) * kPanel * 4;
  }
}

void packed_row_int4(const uint8_t* packed, int64_t panel_bytes, int64_t k, int64_t n, float* out) {
  const int64_t blocks = (k + kRoundedBlock - 1) / kRoundedBlock;
  const int64_t block_bytes = blocks == 0 ? 0 : panel_bytes / blocks;
  const bool whole = block_bytes == kInt4Whole || block_bytes == kInt4WholeZeros;
  const int64_t scales = whole ? kPanel : 2 * kPanel;  // how many a block has
  const int64_t at_scales = kRoundedBlock * kPanel / 2, behind = at_scales + 2 * scales;
  const uint8_t* block = packed + n / kPanel * panel_bytes;
  for (int64_t i = 0; i < k; i += kHalfBlock, out += kHalfBlock) {
    const bool second = i % kRoundedBlock != 0;
    const int64_t at = n % kPanel + (second && !whole ? kPanel : 0);
    const float scale = half_at(block + at_scales + 2 * at);
    float zero = 8.0f, minimum = 0.0f;
    if (block_bytes == kInt4HalvesMinimums) {
      zero = 0.0f, minimum = half_at(block + behind + 2 * at);
    } else if (block_bytes > behind) {
      zero = block[behind + at];
    }
    for (int64_t j = 0; j < std::min(kHalfBlock, k - i); ++j) {
      const uint8_t byte = block[place(n, j)];
      const auto value = static_cast<float>(second ? byte >> 4 : byte & 15);
      out[j] = (value - zero) * scale + minimum;
    }
    if (second) block += block_bytes;
  }
}

}  // namespace ec
