// Products with a B in fewer bits: bfloat16, or int8 or int4 with scales. A, C and the
// epilogue are single precision as in gemm.h, and so are strides, threads and what may overlap.
//
// The layouts are those of the disk, the same for every instruction set: panels of 32 columns,
// [ceil(N/32)], in which groups of 4 bytes of each column lie beside each other.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm.h"

namespace ec {

// [panels][ceil(K/2)][32 columns][2 k], the upper halves of floats; zeros beyond N and K. In
// elements of 16 bits.
int64_t packed_elements_bf16(int64_t n, int64_t k);

// Inputs of a row that share a scale; of weights, 32 do in int4.
constexpr int64_t kRoundedBlock = 64;

// For each panel and block of kRoundedBlock k, [16][32 columns][4 k] int8 with zeros beyond N and
// K, fewer groups of 4 in the last block if K ends there, then 32 float scales: B[k, c] =
// scale[block][c]·q[k, c]. In bytes.
int64_t packed_elements_int8(int64_t n, int64_t k);
// A scale for every 32 k instead: blocks are always whole, and end with [2][32] float scales.
int64_t packed_elements_int8_halves(int64_t n, int64_t k);

// For each panel and block, always whole, [8][32 columns][4 k] bytes: the first 32 k in the low
// four bits, the others in the high ones, each of 0 to 15, and 8 beyond N and K. Then [2][32]
// scales in half precision: B[k, c] = scale[block][half][c]·(q[k, c] - 8). In bytes.
int64_t packed_elements_int4(int64_t n, int64_t k);

// Bytes of a block of int4, which tell its form.
enum Int4Block : int64_t {
  kInt4Halves = 1024 + 2 * 64,
  kInt4Whole = 1024 + 64,  // one scale for all 64 k
  // With zeros behind the scales, shaped as these, of 0 to 16 in a byte: scale·(q - zero).
  kInt4HalvesZeros = kInt4Halves + 2 * 32,
  kInt4WholeZeros = kInt4Whole + 32,
  // With minimums behind the scales, shaped as these, in half precision: scale·q + minimum.
  kInt4HalvesMinimums = kInt4Halves + 2 * 64,
};

// Whether panels of a weight in int8, or int4, with K inputs may have so many bytes.
bool is_int8_panel(int64_t k, int64_t bytes);
bool is_int4_panel(int64_t k, int64_t bytes);

// Whether rows of A are rounded to bfloat16, too: on AMX tiles, by vdpbf16ps and by bfdot.
bool bf16_rounds_a();

// C[M×N] from A[M×K] with contiguous rows. A stays single precision, unless bf16_rounds_a(): then
// denormal numbers count as zero, too. Sums are single precision.
void gemm_bf16(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
               const uint16_t* b_packed, float* c, int64_t ldc, const Epilogue& epilogue);

// How blocks of a row of A without outliers are rounded; in `pairs` as gemm_int8 says.
enum class RowSteps { kFine, kCoarse, kSums };
RowSteps int8_row_steps(bool pairs);
RowSteps int4_row_steps();

// Each block of a row of A is rounded to whole multiples of its largest magnitude divided by 127
// (kCoarse); or by 127·128, where the CPU has no instruction for four pairs of int8 (kFine), and
// where the block's largest value is over 12 times the row's root mean square, as far as the
// squares stay in the range of single precision. Sums within a block are exact. A row with a NaN or
// an infinity gives NaN.
//
// With `pairs` x86-64 without that instruction may use the one for two pairs (kSums), where a scale
// is that of 64 k: the largest sum of four activations as Int8PairsMath says takes the place of the
// largest magnitude, 124 that of 127, and 64 that of 128.
void gemm_int8(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const int8_t* b_packed,
               int64_t panel_bytes, float* c, int64_t ldc, const Epilogue& epilogue,
               bool pairs = false);

// Multiplies as int8 without `pairs` does. On x86-64 without an instruction for four pairs, one for
// two serves: int4 is narrow enough for its 16-bit sums.
void gemm_int4(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
               const uint8_t* b_packed, int64_t panel_bytes, float* c, int64_t ldc,
               const Epilogue& epilogue);

}  // namespace ec
