// B in int8 with a scale for each column of every block of inputs; A rounded likewise for each row
// and block, in every call.
#include "kernels/gemm/narrow/gemm_int8_math.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "kernels/gemm/narrow/gemm_rounded_run.h"

namespace ec {

bool int8_rounds_coarsely() { return Int8Math::kParts == 2; }

int64_t packed_elements_int8(int64_t n, int64_t k) {
  return (n + kPanel - 1) / kPanel * ((k + 3) / 4 * kGroupBytes + rounded_blocks(k) * kPanel * 4);
}

void gemm_int8(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const int8_t* b_packed,
               float* c, int64_t ldc, const Epilogue& epilogue) {
  const char* const b = reinterpret_cast<const char*>(b_packed);
  run_rounded<Int8Math>(m, n, k, a, lda, b, packed_elements_int8(1, k), c, ldc, epilogue);
}

}  // namespace ec
