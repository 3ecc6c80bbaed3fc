// Products with a B in fewer bits: bfloat16, or int8 with a scale for each column. A, C and the
// epilogue are single precision as in gemm.h, and so are strides, threads and what may overlap.
//
// The layouts are those of the disk, the same for every instruction set: panels of 32 columns,
// [ceil(N/32)], in which groups of 4 bytes of each column lie beside each other.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace ec {

// [panels][ceil(K/2)][32 columns][2 k], the upper halves of floats; zeros beyond N and K. In
// elements of 16 bits.
int64_t packed_elements_bf16(int64_t n, int64_t k);

// For each panel [ceil(K/4)][32 columns][4 k] int8 with zeros beyond N and K, then 32 float
// scales, B[k, c] = scale[c]·q[k, c], then 32 int32 sums of each column's q (for kernels whose
// activations are unsigned). In bytes.
int64_t packed_elements_int8(int64_t n, int64_t k);

// Whether rows of A are rounded to bfloat16, too: on AMX tiles and by vdpbf16ps.
bool bf16_rounds_a();

// C[M×N] from A[M×K] with contiguous rows. A stays single precision, unless bf16_rounds_a(): then
// denormal numbers count as zero, too. Sums are single precision.
void gemm_bf16(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
               const uint16_t* b_packed, float* c, int64_t ldc, const Epilogue& epilogue);

// Each row of A is rounded to whole multiples of its largest magnitude divided by
// int8_row_limit(K), so that the sums are exact and the weights' own rounding is nearly all of the
// error. A row with a NaN or an infinity gives NaN.
void gemm_int8(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const int8_t* b_packed,
               float* c, int64_t ldc, const Epilogue& epilogue);

// 2^A - 1 for the largest A <= 13 with K·127·2^A < 2^31, so that int32 sums can't overflow.
int32_t int8_row_limit(int64_t k);

}  // namespace ec
