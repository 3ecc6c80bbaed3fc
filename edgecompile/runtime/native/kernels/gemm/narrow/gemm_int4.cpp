// B in int4 with a scale for each column of every 32 inputs; A rounded as for int8.
#include "kernels/gemm/narrow/gemm_int4_math.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "kernels/gemm/narrow/gemm_rounded_run.h"

namespace ec {

bool int4_rounds_coarsely() { return Int4Math::kParts == 2; }

int64_t packed_elements_int4(int64_t n, int64_t k) {
  return (n + kPanel - 1) / kPanel * rounded_blocks(k) * kBlockBytes<Int4Math>;
}

void gemm_int4(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
               const uint8_t* b_packed, float* c, int64_t ldc, const Epilogue& epilogue) {
  const char* const b = reinterpret_cast<const char*>(b_packed);
  run_rounded<Int4Math>(m, n, k, a, lda, b, packed_elements_int4(1, k), c, ldc, epilogue);
}

}  // namespace ec
