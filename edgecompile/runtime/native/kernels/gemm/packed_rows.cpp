#include "kernels/gemm/packed_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/gemm/gemm.h"
#include "kernels/gemm/narrow/gemm_narrow.h"

namespace ec {

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

void packed_row_int8(const int8_t* packed, int64_t k, int64_t n, float* out) {
  constexpr int64_t kGroup = 4;
  const int8_t* block = packed + n / kPanel * packed_elements_int8(kPanel, k);
  for (int64_t i = 0; i < k; i += kRoundedBlock, out += kRoundedBlock) {
    const int64_t values = std::min(kRoundedBlock, k - i);
    const int64_t groups = (values + kGroup - 1) / kGroup;
    const int8_t* const scales = block + groups * kPanel * kGroup;
    const int8_t* const column = block + n % kPanel * kGroup;
    float scale;
    std::memcpy(&scale, scales + n % kPanel * sizeof scale, sizeof scale);
    for (int64_t j = 0; j < values; ++j) {
      out[j] = static_cast<float>(column[j / kGroup * kPanel * kGroup + j % kGroup]) * scale;
    }
    block = scales + kPanel * sizeof scale;
  }
}

}  // namespace ec
