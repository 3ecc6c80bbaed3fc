// Single-precision matrix products with a fused epilogue, near the machine's peak for every M.
//
// Matrices are row-major with explicit strides in elements. All functions use the thread pool and
// are safe from any number of threads. Outputs must not overlap inputs, except as said.
#pragma once

#include <cstdint>

namespace ec {

// Columns of one panel of a packed B. A packed B is [ceil(N/32)][K][32] floats with zeros beyond
// column N: the layout on disk too, the same for every instruction set.
constexpr int64_t kPanel = 32;

int64_t packed_elements(int64_t n, int64_t k);

// Packs B (K×N, any strides; a transposed weight is just stride_n = K, stride_k = 1).
void pack_b(const float* b, int64_t stride_k, int64_t stride_n, int64_t k, int64_t n,
            float* packed);

enum class Activation : int32_t {
  kNone = 0,
  kRelu = 1,
  kGeluErf = 2,
  kGeluTanh = 3,
  kSilu = 4,
  kTanh = 5,
  kSigmoid = 6,
  kRelu6 = 7,
  kHardswish = 8,
  kHardsigmoid = 9,
};

// C = act(alpha·A·B + beta·bias) + beta·residual, or with act_last
// act(alpha·A·B + beta·bias + beta·residual).
struct Epilogue {
  const float* bias = nullptr;      // [N], one per column
  const float* residual = nullptr;  // M×N; may be C itself
  int64_t ld_residual = 0;          // 0: one row for all
  Activation act = Activation::kNone;
  float alpha = 1.0f;
  float beta = 1.0f;
  int64_t residual_batch = 0;  // from one matrix of a batch to the next
  bool act_last = false;
};

// Runs the steps after the bias on rows of C, which hold sums with the bias. `residual` is the
// first row's, or null.
void finish_rows(const Epilogue& epilogue, const float* residual, float* c, int64_t ldc,
                 int64_t rows, int64_t columns);

// C[M×N] from A[M×K] with contiguous rows and a packed B. M, N or K may be 0.
void gemm_packed(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                 const float* b_packed, float* c, int64_t ldc, const Epilogue& epilogue);

// Multiplies as gemm_packed does, with any strides of A and B, 0 and negative ones included, for
// each of `batch` matrices; a batch stride of 0 shares the operand.
void gemm_batched(int64_t batch, int64_t m, int64_t n, int64_t k, const float* a, int64_t a_batch,
                  int64_t a_row, int64_t a_col, const float* b, int64_t b_batch, int64_t b_row,
                  int64_t b_col, float* c, int64_t c_batch, int64_t ldc, const Epilogue& epilogue);

// Rows of A that are put together, or found, when they are needed.
struct RowSource {
  // Columns [k, k + depth) of `rows` rows from `row` on, of matrix `batch`: where they lie, *ld
  // apart. What isn't stored so is written to `out`, whose rows are *ld apart as given.
  const float* (*read)(const void* ctx, int64_t batch, int64_t row, int64_t rows, int64_t k,
                       int64_t depth, float* out, int64_t* ld);
  const void* ctx;
};

// A batched product with A from a source and B packed. alpha and beta are 1, and the residual isn't
// C.
struct GatheredProduct {
  int64_t batch, m, n, k;
  RowSource a;
  const float* b;
  int64_t b_batch;
  int64_t b_panel;  // from one panel of B to the next: k·kPanel, or more if B is a part of one
  Epilogue epilogue;
  int64_t bias_batch;
  float* c;
  int64_t c_batch, ldc;
};
void gemm_gathered(const GatheredProduct& product);

// A batched product with one packed B, where a row of A is `parts` runs of `depth` elements that
// lie part_step apart. Sums stay in registers over all of K, which should fit the nearest cache.
// alpha and beta are 1, and the residual isn't C.
struct PartedProduct {
  int64_t batch, m, n, parts, depth;
  const float* a;
  int64_t a_batch, a_row, part_step;
  const float* b;
  Epilogue epilogue;
  float* c;
  int64_t c_batch, ldc;
};
void gemm_parts(const PartedProduct& product);

}  // namespace ec
