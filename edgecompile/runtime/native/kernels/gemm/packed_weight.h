// Packed weights as tensors: the dtype says which layout (gemm.h, gemm_narrow.h) and which product.
#pragma once

#include "kernels/gemm/gemm.h"
#include "tensors/tensor.h"

namespace ec {

// Elements of one of `count` [n, k] weights that this tensor holds one behind the other, if their
// number is that of one of the forms of its dtype; else that of its first form. Throws Error for a
// dtype that no product reads.
int64_t packed_count(const Tensor& packed, int64_t n, int64_t k, int64_t count = 1);

// C[m×n] from A[m×k] with contiguous rows, and the index-th weight in `packed`, each of `each`
// elements; `pairs` as gemm_int8 says.
void gemm_weight(const Tensor& packed, int64_t each, int64_t index, int64_t m, int64_t n, int64_t k,
                 const float* a, int64_t lda, float* c, int64_t ldc, const Epilogue& epilogue,
                 bool pairs = false);

// A byte for each column of a product; those with 0 aren't wanted.
struct ColumnMask {
  const uint8_t* wanted;
  int64_t columns;
};

// Runs gemm_weight with the only weight in `packed`, for panels with a wanted column. Columns of
// other panels become minus infinity, unless so few are left out that all are computed: where the
// panels to compute, and two for each gap in front of some, come to 7/8 of all. A computed column
// has the bits that gemm_weight gives it. Throws Error where the mask has another number of
// columns.
void gemm_masked(const Tensor& packed, const ColumnMask& mask, int64_t m, int64_t n, int64_t k,
                 const float* a, int64_t lda, float* c, int64_t ldc, const Epilogue& epilogue);

}  // namespace ec
