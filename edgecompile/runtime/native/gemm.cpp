#include "gemm.h"

#include <algorithm>

#include "gemm_kernel.h"
#include "gemm_pack.h"
#include "scratch.h"
#include "threads.h"

namespace ec {
namespace {

// A slice of K for which a panel of B (kDepth·128 bytes) and the rows of A that meet it stay in the
// nearest caches, while partial sums go through C.
constexpr int64_t kDepth = 384;
// Rows of A that one task takes: kRows·kDepth·4 bytes stay in the second-level cache.
constexpr int64_t kRows = 144;
// Multiply-adds below which fork and join cost more than they save.
constexpr int64_t kSerialWork = 200'000;

struct Product {
  int64_t m, n, k;
  const float* a;
  int64_t a_batch, a_row, a_col;
  const float* b;
  int64_t b_batch, b_row, b_col;
  bool packed;  // B is in panels; b_row and b_col mean nothing
  float* c;
  int64_t c_batch, ldc;
  Epilogue epilogue;
  bool residual_in_c;  // the residual overlaps C, so C can't hold partial sums
};

// For copies of slices of A and B.
thread_local Scratch t_scratch;

// The rest of the epilogue, for a block of C that holds sums with the bias.
void finish_block(const Epilogue& e, float* c, int64_t ldc, const float* residual, int64_t rows,
                  int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, c += ldc) {
    activate(e.act, c, columns);
    if (residual == nullptr) continue;
    const float* from = residual + r * e.ld_residual;
    for (int64_t j = 0; j < columns; ++j) c[j] += e.beta * from[j];
  }
}

// C[m0:m1, panels p0:p1] of one product of the batch.
void run_block(const Product& p, int64_t batch, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
  const Epilogue& e = p.epilogue;
  const int64_t slices = p.residual_in_c || p.k <= kDepth ? 1 : (p.k + kDepth - 1) / kDepth;
  const int64_t depth = std::max<int64_t>(1, (p.k + slices - 1) / slices);
  const int64_t rows = m1 - m0;
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;

  const bool copy_a = p.a_col != 1 || e.alpha != 1.0f;
  const int64_t ld_copy = (depth + 31) / 16 * 16;
  const int64_t a_floats = copy_a ? rows * ld_copy : 0;
  const int64_t b_floats = p.packed ? 0 : depth * kPanel;
  float* const scratch = a_floats + b_floats > 0 ? t_scratch.get(a_floats + b_floats) : nullptr;

  const float* const a_base = p.a + batch * p.a_batch + m0 * p.a_row;
  const float* const b_base = p.b + batch * p.b_batch;
  float* const c_base = p.c + batch * p.c_batch + m0 * p.ldc;
  const float* const residual_base =
      e.residual == nullptr ? nullptr
                            : e.residual + batch * e.residual_batch + m0 * e.ld_residual;
  const bool add_in_tile = e.act == Activation::kNone && e.beta == 1.0f;

  for (int64_t k0 = 0; k0 == 0 || k0 < p.k; k0 += depth) {
    Tile t{};
    t.k = std::min(depth, p.k - k0);
    const bool first = k0 == 0, last = k0 + depth >= p.k;
    const float* a = a_base + k0 * p.a_col;
    int64_t lda = p.a_row;
    if (copy_a) {
      copy_rows(a, p.a_row, p.a_col, rows, t.k, e.alpha, scratch, ld_copy);
      a = scratch;
      lda = ld_copy;
    }
    t.lda = lda;
    for (int64_t panel = p0; panel < p1; ++panel) {
      const int64_t n0 = panel * kPanel;
      const int64_t columns = std::min(kPanel, p.n - n0);
      const float* b;
      if (p.packed) {
        b = b_base + (panel * p.k + k0) * kPanel;
        t.prefetch = panel + 1 < p1 ? b + p.k * kPanel : nullptr;
      } else {
        pack_panel(b_base + k0 * p.b_row + n0 * p.b_col, p.b_row, p.b_col, t.k, columns,
                   1.0f, scratch + a_floats);
        b = scratch + a_floats;
      }
      t.ldb = kPanel;
      alignas(64) float bias[kPanel] = {};
      const float* bias_from = nullptr;
      if (e.bias != nullptr) {
        bias_from = e.bias + n0;
        if (columns < kPanel || e.beta != 1.0f) {
          for (int64_t j = 0; j < columns; ++j) bias[j] = e.beta * e.bias[n0 + j];
          bias_from = bias;
        }
      }
      int64_t done = 0;
      for (int64_t i = 0; i < tiles; ++i) {
        const int64_t r0 = done;
        done = rows * (i + 1) / tiles;
        const int64_t count = done - r0;
        const int width = kTiles.columns[count - 1];
        t.a = a + r0 * lda;
        for (int64_t j = 0; j < columns; j += width) {
          float* const c = c_base + r0 * p.ldc + n0 + j;
          const float* const residual =
              last && residual_base != nullptr ? residual_base + r0 * e.ld_residual + n0 + j
                                               : nullptr;
          const int64_t valid = std::min<int64_t>(width, columns - j);
          t.b = b + j;
          t.bias = first && bias_from != nullptr ? bias_from + j : nullptr;
          t.accumulate = !first;
          if (valid == width && !p.residual_in_c) {
            t.c = c;
            t.ldc = p.ldc;
            t.residual = add_in_tile ? residual : nullptr;
            t.ld_residual = e.ld_residual;
            kTiles.run[count - 1](t);
            if (last && !add_in_tile) finish_block(e, c, p.ldc, residual, count, valid);
          } else {
            alignas(64) float sums[kTileRows * kPanel];
            t.c = sums;
            t.ldc = kPanel;
            t.residual = nullptr;
            if (!first) {
              for (int64_t r = 0; r < count; ++r) {
                for (int64_t x = 0; x < width; ++x) {
                  sums[r * kPanel + x] = x < valid ? c[r * p.ldc + x] : 0.0f;
                }
              }
            }
            kTiles.run[count - 1](t);
            if (last) finish_block(e, sums, kPanel, residual, count, valid);
            for (int64_t r = 0; r < count; ++r) {
              std::copy_n(sums + r * kPanel, valid, c + r * p.ldc);
            }
          }
          if (t.prefetch != nullptr) {  // the next 1/8 of the next panel
            t.prefetch += t.k * 4;
            if (t.prefetch >= b + p.k * kPanel + t.k * kPanel) t.prefetch = nullptr;
          }
        }
      }
    }
  }
}

bool overlaps(const float* x, int64_t x_count, const float* y, int64_t y_count) {
  return x < y + y_count && y < x + x_count;
}

// Divides the batch of products into tasks on a grid of row chunks and groups of panels.
void run(int64_t batch, Product& p) {
  if (batch <= 0 || p.m <= 0 || p.n <= 0) return;
  p.residual_in_c =
      p.epilogue.residual != nullptr &&
      overlaps(p.c, (batch - 1) * p.c_batch + (p.m - 1) * p.ldc + p.n, p.epilogue.residual,
               (batch - 1) * p.epilogue.residual_batch + (p.m - 1) * p.epilogue.ld_residual + p.n);
  const int64_t panels = (p.n + kPanel - 1) / kPanel;
  int64_t chunks = (p.m + kRows - 1) / kRows;
  int64_t groups = 1;
  const int64_t threads = num_threads();
  if (threads > 1 && batch * p.m * p.n * std::max<int64_t>(p.k, 1) >= kSerialWork) {
    const int64_t wanted = threads * 4;
    groups = std::clamp<int64_t>(wanted / (batch * chunks), 1, panels);
    if (batch * chunks * groups < threads) {
      chunks = std::min((p.m + kTileRows - 1) / kTileRows, wanted / (batch * groups));
    }
  }
  parallel_for(batch * chunks * groups, [&](int64_t i) {
    const int64_t group = i % groups, chunk = i / groups % chunks, matrix = i / groups / chunks;
    run_block(p, matrix, p.m * chunk / chunks, p.m * (chunk + 1) / chunks,
              panels * group / groups, panels * (group + 1) / groups);
  });
}

}  // namespace

void gemm_packed(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                 const float* b_packed, float* c, int64_t ldc, const Epilogue& epilogue) {
  Product p{m, n, k, a, 0, lda, 1, b_packed, 0, 0, 0, true, c, 0, ldc, epilogue, false};
  run(1, p);
}

void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
          const float* b, int64_t b_row, int64_t b_col, float* c, int64_t ldc,
          const Epilogue& epilogue) {
  gemm_batched(1, m, n, k, a, 0, a_row, a_col, b, 0, b_row, b_col, c, 0, ldc, epilogue);
}

void gemm_batched(int64_t batch, int64_t m, int64_t n, int64_t k, const float* a, int64_t a_batch,
                  int64_t a_row, int64_t a_col, const float* b, int64_t b_batch, int64_t b_row,
                  int64_t b_col, float* c, int64_t c_batch, int64_t ldc,
                  const Epilogue& epilogue) {
  Product p{m,     n,     k, a,       a_batch, a_row,    a_col, b, b_batch,
            b_row, b_col, false, c, c_batch, ldc, epilogue, false};
  run(batch, p);
}

}  // namespace ec
