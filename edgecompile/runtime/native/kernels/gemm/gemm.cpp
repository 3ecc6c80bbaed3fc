// Products of single-precision numbers; gemm_walk.h says how the parts fit together.
#include "kernels/gemm/gemm.h"

#include <algorithm>

#include "base/scratch.h"
#include "kernels/gemm/gemm_kernel.h"
#include "kernels/gemm/gemm_pack.h"
#include "kernels/gemm/gemm_split.h"
#include "kernels/gemm/gemm_walk.h"
#include "threads/threads.h"

namespace ec {
namespace {

// K is cut into slices, partial sums going through C. Tiles read B well from the second-level
// cache, so slices may be long; a tile's rows of A (18 KiB at kLongest) should stay in the first.
constexpr int64_t kLongest = 768;
constexpr int64_t kDepth = 512;  // when there is more than one
// Floats of A that one task takes: half of a second-level cache of 512 KiB.
constexpr int64_t kBlockA = 96 * kLongest;
// Prefetching C pays from this many elements on, a second-level cache of 1 MiB, if they are sums of
// so many products.
constexpr int64_t kFarFloats = 256 * 1024, kFarDepth = 64;
// Prefetching pays from this many tiles per panel on; before, the hardware's own keeps up.
constexpr int64_t kPrefetchCalls = 2;

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
  bool residual_in_c;   // the residual overlaps C, so C can't hold partial sums
  int64_t b_panel = 0;  // of a packed B: from one panel to the next
  int64_t bias_batch = 0;
  const RowSource* rows = nullptr;   // gives A in place of `a`
  int64_t parts = 1, part_step = 0;  // see Tile
  bool far = false;                  // this is a line of a C that is far
};

// For copies of slices of A and B.
thread_local Scratch t_scratch;

// Rows [m0, m0 + rows) of one product of the batch.
struct Rows {
  const Product& p;
  int64_t batch, m0, rows;
  const float* a;
  const float* b;
  const float* bias;
  const float* residual;
  float* c;
  bool add_in_tile;  // a tile adds the residual itself
  bool fetch_c;      // C is prefetched, since stores wait for lines from beyond the second cache

  Rows(const Product& p, int64_t batch, int64_t m0, int64_t m1)
      : p(p),
        batch(batch),
        m0(m0),
        rows(m1 - m0),
        a(p.a + batch * p.a_batch + m0 * p.a_row),
        b(p.b + batch * p.b_batch),
        bias(p.epilogue.bias == nullptr ? nullptr : p.epilogue.bias + batch * p.bias_batch),
        residual(p.epilogue.residual == nullptr
                     ? nullptr
                     : p.epilogue.residual + batch * p.epilogue.residual_batch +
                           m0 * p.epilogue.ld_residual),
        c(p.c + batch * p.c_batch + m0 * p.ldc),
        add_in_tile(p.epilogue.act == Activation::kNone && p.epilogue.beta == 1.0f),
        fetch_c((p.far || p.m * p.n >= kFarFloats) && p.k >= kFarDepth) {}
};

// Columns [k0, k0 + depth) of A, *lda apart; copied to `scratch`, whose rows are *lda apart as
// given, if a tile can't read them as they are.
const float* read_a(const Rows& rows, bool copy, int64_t k0, int64_t depth, float* scratch,
                    int64_t* lda) {
  const Product& p = rows.p;
  if (p.rows != nullptr) {
    return p.rows->read(p.rows->ctx, rows.batch, rows.m0, rows.rows, k0, depth, scratch, lda);
  }
  const float* const a = rows.a + k0 * p.a_col;
  if (!copy) {
    *lda = p.a_row;
    return a;
  }
  copy_rows(a, p.a_row, p.a_col, rows.rows, depth, p.epilogue.alpha, scratch, *lda);
  return scratch;
}

// A tile of `count` rows and `valid` columns from row r0 and column n0 on; with the `last` slice of
// K what follows the product.
void run_tile(const Rows& rows, const ChosenTiles<Tile>& chosen, Tile& t, int64_t r0, int64_t count,
              int64_t n0, int64_t valid, bool last) {
  const Product& p = rows.p;
  const Epilogue& e = p.epilogue;
  const bool slim = chosen.run == kTiles.run && valid <= kFloatLanes;
  const int64_t width = slim ? kFloatLanes : chosen.columns[count - 1];
  const auto run = (slim ? kSlimTiles.run : chosen.run)[count - 1];
  float* const c = rows.c + r0 * p.ldc + n0;
  const float* const residual =
      last && rows.residual != nullptr ? rows.residual + r0 * e.ld_residual + n0 : nullptr;
  // Rows lie far apart, so that no CPU foresees them.
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t x = 0; x < valid; x += 16) {
      if (residual != nullptr) __builtin_prefetch(residual + r * e.ld_residual + x);
      if (rows.fetch_c) __builtin_prefetch(c + r * p.ldc + x, 1);
    }
  }
  if (valid == width && !p.residual_in_c) {
    t.c = c;
    t.ldc = p.ldc;
    t.residual = rows.add_in_tile ? residual : nullptr;
    t.ld_residual = e.ld_residual;
    run(t);
    if (last && !rows.add_in_tile) finish_rows(e, residual, c, p.ldc, count, valid);
    return;
  }
  alignas(64) float sums[kTileRows * kPanel];
  t.c = sums;
  t.ldc = kPanel;
  t.residual = nullptr;
  if (t.accumulate) {
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t x = 0; x < width; ++x) {
        sums[r * kPanel + x] = x < valid ? c[r * p.ldc + x] : 0.0f;
      }
    }
  }
  run(t);
  if (last) finish_rows(e, residual, sums, kPanel, count, valid);
  for (int64_t r = 0; r < count; ++r) std::copy_n(sums + r * kPanel, valid, c + r * p.ldc);
}

// C[m0:m1, panels p0:p1] of one product of the batch.
void run_block(const Product& p, int64_t batch, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
  const Rows rows(p, batch, m0, m1);
  const ChosenTiles<Tile> chosen(p.m, kTiles, kFewTiles);
  const TileRows tiles(m1 - m0, chosen.rows);
  const PanelWalk walk(p.n, p0, p1);
  const Epilogue& e = p.epilogue;
  const bool whole = p.residual_in_c || p.parts > 1 || p.k <= kLongest;
  const int64_t slices = whole ? 1 : (p.k + kDepth - 1) / kDepth;
  const int64_t depth = std::max<int64_t>(1, (p.k + slices - 1) / slices);
  const int64_t calls = tiles.tiles * (kPanel / chosen.columns[tiles.highest() - 1]);
  // Rows that lie a multiple of a page apart compete for the same few places of the first cache.
  const bool page_apart = p.a_row % 1024 == 0 && slices > 1 && walk.count() > 1;
  const bool copy_a = p.rows != nullptr || p.a_col != 1 || e.alpha != 1.0f || page_apart;
  const int64_t ld_copy = (depth + 31) / 16 * 16;
  const int64_t a_floats = copy_a ? rows.rows * ld_copy : 0;
  const int64_t b_floats = p.packed ? 0 : depth * kPanel;
  float* const scratch = a_floats + b_floats > 0 ? t_scratch.get(a_floats + b_floats) : nullptr;

  for (int64_t k0 = 0; k0 == 0 || k0 < p.k; k0 += depth) {
    const bool first = k0 == 0, last = k0 + depth >= p.k;
    Tile t{};
    t.k = std::min(depth, p.k - k0);
    t.accumulate = !first;
    t.lda = ld_copy;
    const float* const a = read_a(rows, copy_a, k0, t.k, scratch, &t.lda);
    t.k /= t.parts = p.parts;
    t.part_step = p.part_step;
    // A panel is 8 lines per 4 steps: spread over the tiles that meet the panel before it.
    t.prefetch_lines = prefetch_rate(static_cast<int>((8 + calls - 1) / calls));
    for (int64_t i = 0; i < walk.count(); ++i) {
      const int64_t panel = walk.panel(i);
      const int64_t n0 = panel * kPanel;
      const int64_t columns = std::min(kPanel, p.n - n0);
      const float* b = scratch + a_floats;
      const float* next = nullptr;  // what this thread reads after this panel
      if (p.packed) {
        b = rows.b + panel * p.b_panel + k0 * kPanel;
        const auto [next_panel, next_k] = walk.after(i, k0, depth, last);
        if (next_panel >= 0) next = rows.b + next_panel * p.b_panel + next_k * kPanel;
      } else {
        pack_panel(rows.b + k0 * p.b_row + n0 * p.b_col, p.b_row, p.b_col, t.k, columns, 1.0f,
                   scratch + a_floats);
      }
      t.prefetch = calls >= kPrefetchCalls && p.parts == 1 ? next : nullptr;
      alignas(64) float scaled_bias[kPanel] = {};
      const float* bias = first && rows.bias != nullptr ? rows.bias + n0 : nullptr;
      if (bias != nullptr && (columns < kPanel || e.beta != 1.0f)) {
        for (int64_t j = 0; j < columns; ++j) scaled_bias[j] = e.beta * bias[j];
        bias = scaled_bias;
      }
      tiles.each([&](int64_t r0, int64_t count) {
        const int64_t width = chosen.columns[count - 1];
        t.a = a + r0 * t.lda;
        for (int64_t j = 0; j < columns; j += width) {
          t.b = b + j;
          t.bias = bias != nullptr ? bias + j : nullptr;
          run_tile(rows, chosen, t, r0, count, n0 + j, std::min(width, columns - j), last);
          prefetch_next_part(&t.prefetch, next, t.k / kTileUnroll * t.prefetch_lines * 16,
                             t.k * kPanel);
        }
      });
    }
  }
}

bool overlaps(const float* x, int64_t x_count, const float* y, int64_t y_count) {
  return x < y + y_count && y < x + x_count;
}

void run_grid(int64_t batch, const Product& p, const Grid& grid) {
  const int64_t panels = (p.n + kPanel - 1) / kPanel;
  const auto [chunks, groups] = grid;
  parallel_for(batch * chunks * groups, [&, chunks = chunks, groups = groups](int64_t i) {
    const int64_t group = i % groups, chunk = i / groups % chunks, matrix = i / groups / chunks;
    run_block(p, matrix, p.m * chunk / chunks, p.m * (chunk + 1) / chunks, panels * group / groups,
              panels * (group + 1) / groups);
  });
}

int64_t most_rows(int64_t k) { return kBlockA / std::clamp<int64_t>(k, 64, kLongest); }

// Divides the batch of products into tasks on a grid of row chunks and groups of panels.
void run(int64_t batch, Product& p) {
  if (batch <= 0 || p.m <= 0 || p.n <= 0) return;
  p.residual_in_c =
      p.epilogue.residual != nullptr &&
      overlaps(p.c, (batch - 1) * p.c_batch + (p.m - 1) * p.ldc + p.n, p.epilogue.residual,
               (batch - 1) * p.epilogue.residual_batch + (p.m - 1) * p.epilogue.ld_residual + p.n);
  p.b_panel = p.k * kPanel;
  run_grid(batch, p, divide(batch, p.m, p.n, p.k, {.most_rows = most_rows(p.k)}));
}

}  // namespace

void gemm_gathered(const GatheredProduct& g) {
  if (g.batch <= 0 || g.m <= 0 || g.n <= 0) return;
  Product p{g.m, g.n, g.k,  nullptr, 0,         0,     1,          g.b,  g.b_batch,
            0,   0,   true, g.c,     g.c_batch, g.ldc, g.epilogue, false};
  p.b_panel = g.b_panel;
  p.bias_batch = g.bias_batch;
  p.rows = &g.a;
  run_grid(g.batch, p, divide_gathered(g.batch, g.m, g.n, g.k, most_rows(g.k)));
}

void gemm_parts(const PartedProduct& g) {
  if (g.batch <= 0 || g.m <= 0 || g.n <= 0) return;
  const int64_t k = g.parts * g.depth, panels = (g.n + kPanel - 1) / kPanel;
  Product p{g.m, g.n, k,    g.a, g.a_batch, g.a_row, 1,          g.b,  0,
            0,   0,   true, g.c, g.c_batch, g.ldc,   g.epilogue, false};
  p.b_panel = k * kPanel;
  p.parts = g.parts;
  p.far = g.batch * g.m * g.n >= kFarFloats;
  p.part_step = g.part_step;
  const int64_t work = g.batch * g.m * g.n * k, threads = num_threads();
  const bool alone = threads == 1 || work < GridLimits{}.serial_work;
  const int64_t wanted =
      std::clamp<int64_t>(work / GridLimits{}.task_work, 4 * threads, 16 * threads);
  // Few products are divided by rows as well.
  const int64_t most = std::max<int64_t>(1, g.m / (2 * kTileRows));
  const int64_t chunks = alone ? 1 : std::clamp<int64_t>(wanted / g.batch, 1, most);
  const int64_t pieces = g.batch * chunks, tasks = alone ? 1 : std::min(pieces, wanted);
  parallel_for(tasks, [&](int64_t i) {
    for (int64_t j = pieces * i / tasks; j < pieces * (i + 1) / tasks; ++j) {
      const int64_t chunk = j % chunks;
      run_block(p, j / chunks, g.m * chunk / chunks, g.m * (chunk + 1) / chunks, 0, panels);
    }
  });
}

void gemm_packed(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                 const float* b_packed, float* c, int64_t ldc, const Epilogue& epilogue) {
  Product p{m, n, k, a, 0, lda, 1, b_packed, 0, 0, 0, true, c, 0, ldc, epilogue, false};
  run(1, p);
}

void gemm_batched(int64_t batch, int64_t m, int64_t n, int64_t k, const float* a, int64_t a_batch,
                  int64_t a_row, int64_t a_col, const float* b, int64_t b_batch, int64_t b_row,
                  int64_t b_col, float* c, int64_t c_batch, int64_t ldc, const Epilogue& epilogue) {
  Product p{m,     n,     k,     a, a_batch, a_row, a_col,    b,    b_batch,
            b_row, b_col, false, c, c_batch, ldc,   epilogue, false};
  run(batch, p);
}

}  // namespace ec
