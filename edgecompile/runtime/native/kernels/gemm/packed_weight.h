// Packed weights as tensors: the dtype says which layout (gemm.h, gemm_narrow.h) and which product.
#pragma once

#include "kernels/gemm/gemm.h"
#include "tensors/tensor.h"

namespace ec {

// Elements of one [n, k] weight that is packed with this tensor's dtype. Throws Error for a dtype
// that no product reads.
int64_t packed_count(const Tensor& packed, int64_t n, int64_t k);

// C[m×n] from A[m×k] with contiguous rows, and the weight `offset` elements into `packed`.
void gemm_weight(const Tensor& packed, int64_t offset, int64_t m, int64_t n, int64_t k,
                 const float* a, int64_t lda, float* c, int64_t ldc, const Epilogue& epilogue);

}  // namespace ec
