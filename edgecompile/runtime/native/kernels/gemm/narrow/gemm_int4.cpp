// B in int4 with a scale for each column of every 32 or 64 inputs; A rounded as for int8.
#include "kernels/gemm/narrow/gemm_int4_math.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "kernels/gemm/narrow/gemm_rounded_run.h"

namespace ec {

RowSteps int4_row_steps() { return row_steps<Int4Math>(); }

int64_t packed_elements_int4(int64_t n, int64_t k) {
  return (n + kPanel - 1) / kPanel * rounded_blocks(k) * kInt4Halves;
}

bool is_int4_panel(int64_t k, int64_t bytes) {
  const int64_t blocks = rounded_blocks(k);
  for (const int64_t block :
       {kInt4Halves, kInt4Whole, kInt4HalvesZeros, kInt4WholeZeros, kInt4HalvesMinimums}) {
    if (bytes == blocks * block) return true;
  }
  return false;
}

void gemm_int4(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
               const uint8_t* b_packed, int64_t panel_bytes, float* c, int64_t ldc,
               const Epilogue& epilogue) {
  RoundedWeight b{reinterpret_cast<const char*>(b_packed), panel_bytes};
  const int64_t block = k > 0 ? panel_bytes / rounded_blocks(k) : kInt4Halves;
  b.one_scale = block == kInt4Whole || block == kInt4WholeZeros;
  if (block == kInt4HalvesZeros || block == kInt4WholeZeros) {
    b.shift = Shift::kZeros;
  } else if (block == kInt4HalvesMinimums) {
    b.shift = Shift::kMinimums;
  }
  run_rounded<Int4Math>(m, n, k, a, lda, b, c, ldc, epilogue);
}

}  // namespace ec
