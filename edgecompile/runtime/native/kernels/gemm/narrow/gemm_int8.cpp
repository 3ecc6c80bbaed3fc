// B in int8 with a scale for each column of every block of inputs; A rounded likewise for each row
// and block, in every call.
#include "kernels/gemm/narrow/gemm_int8_math.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "kernels/gemm/narrow/gemm_rounded_run.h"

namespace ec {

RowSteps int8_row_steps([[maybe_unused]] bool pairs) {
#if EC_BYTE_PAIRS
  if (pairs) return row_steps<Int8PairsMath>();
#endif
  return row_steps<Int8Math>();
}

int64_t packed_elements_int8(int64_t n, int64_t k) {
  return (n + kPanel - 1) / kPanel * ((k + 3) / 4 * kGroupBytes + rounded_blocks(k) * kPanel * 4);
}

int64_t packed_elements_int8_halves(int64_t n, int64_t k) {
  return (n + kPanel - 1) / kPanel * rounded_blocks(k) * kBlockBytes<Int8HalvesMath>;
}

bool is_int8_panel(int64_t k, int64_t bytes) {
  return bytes == packed_elements_int8(1, k) || bytes == packed_elements_int8_halves(1, k);
}

void gemm_int8(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const int8_t* b_packed,
               int64_t panel_bytes, float* c, int64_t ldc, const Epilogue& epilogue,
               [[maybe_unused]] bool pairs) {
  const RoundedWeight b{reinterpret_cast<const char*>(b_packed), panel_bytes};
  if (panel_bytes == packed_elements_int8(1, k)) {
#if EC_BYTE_PAIRS
    if (pairs) return run_rounded<Int8PairsMath>(m, n, k, a, lda, b, c, ldc, epilogue);
#endif
    run_rounded<Int8Math>(m, n, k, a, lda, b, c, ldc, epilogue);
  } else {
    run_rounded<Int8HalvesMath>(m, n, k, a, lda, b, c, ldc, epilogue);
  }
}

}  // namespace ec
