// Products with a narrow B over tasks, panels, slices of K and register tiles; the epilogue.
#pragma once

#include <algorithm>

#include "base/scratch.h"
#include "kernels/gemm/gemm_split.h"
#include "kernels/gemm/gemm_walk.h"
#include "kernels/gemm/narrow/gemm_narrow_tile.h"
#include "math/vecmath.h"
#include "threads/threads.h"

namespace ec {

// A tile's rows of A should stay in the nearest cache (18 KiB for 6), so longer rows are cut into
// slices; a task's, half of a second-level cache of 512 KiB.
constexpr int64_t kNarrowRowBytes = 3072;
constexpr int64_t kNarrowBlockBytes = 96 * kNarrowRowBytes;
// Prepared copies of A are made for so many bytes at a time (but a few tiles at least), in
// multiples of so many rows.
constexpr int64_t kPreparedBytes = int64_t{4} << 20;
constexpr int64_t kPreparedRows = 16;

template <class Math>
struct NarrowProduct {
  int64_t m, n, k;
  const typename Math::A* a;
  int64_t lda;
  const char* b;
  int64_t panel_bytes;
  float* c;
  int64_t ldc;
  Epilogue epilogue;
};

// Values that a panel's columns start from.
struct NarrowColumns {
  int64_t count;
  alignas(64) float bias[kPanel];

  template <class Math>
  NarrowColumns(const NarrowProduct<Math>& p, int64_t panel) : bias{} {
    const int64_t n0 = panel * kPanel;
    const Epilogue& e = p.epilogue;
    count = std::min(kPanel, p.n - n0);
    if (e.bias == nullptr) return;
    for (int64_t j = 0; j < count; ++j) bias[j] = e.beta * e.bias[n0 + j];
  }
};

// sums [rows][32] become rows of C, from row r0 and column n0 on.
template <class Math>
void finish_narrow(const NarrowProduct<Math>& p, int64_t r0, int64_t rows, int64_t n0,
                   const NarrowColumns& columns, float* sums) {
  constexpr int kL = kFloatLanes;
  const Epilogue& e = p.epilogue;
  const vf32 factor = broadcast(e.alpha);
  const auto scaled = [&](int64_t r, int64_t j) __attribute__((always_inline)) {
    return fma(load(sums + r * kPanel + j), factor, load(columns.bias + j));
  };
  const auto residual_of = [&](int64_t r) __attribute__((always_inline)) {
    return e.residual == nullptr ? nullptr : e.residual + (r0 + r) * e.ld_residual + n0;
  };
  const auto write = [&](float* to, const float* residual, int64_t j, vf32 x)
                         __attribute__((always_inline)) {
                           if (residual != nullptr)
                             x = fma(broadcast(e.beta), load(residual + j), x);
                           store(to + j, x);
                         };
  const auto write_panel = [&](auto act) __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r) {
      const float* const residual = residual_of(r);
      float* const to = p.c + (r0 + r) * p.ldc + n0;
      for (int64_t j = 0; j < kPanel; j += kL) write(to, residual, j, act(scaled(r, j)));
    }
  };
  const bool act_after_sum = e.act_last && e.residual != nullptr;
  if (columns.count == kPanel && (!act_after_sum || e.act == Activation::kNone)) {
    switch (e.act) {
      case Activation::kNone:
        return write_panel([](vf32 x) { return x; });
      case Activation::kGeluErf:
        return write_panel([](vf32 x) { return vgelu_erf_coarse(x); });
      case Activation::kGeluTanh:
        return write_panel([](vf32 x) { return vgelu_tanh_coarse(x); });
      default:
        break;
    }
  }
  // The results take the place of the sums.
  float* const results = sums;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns.count; j += kL) {
      store(results + r * kPanel + j, scaled(r, j));
    }
  }
  finish_rows(e, residual_of(0), results, kPanel, rows, columns.count);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(results + r * kPanel, columns.count, p.c + (r0 + r) * p.ldc + n0);
  }
}

// C[m0:m1, panels p0:p1].
template <class Math>
void run_narrow_block(const NarrowProduct<Math>& p, int64_t m0, int64_t m1, int64_t p0,
                      int64_t p1) {
  constexpr int64_t kMostGroups =
      kNarrowRowBytes / static_cast<int64_t>(Math::kDepth * sizeof(typename Math::A));
  static thread_local Scratch t_sums;
  const ChosenTiles<NarrowTile<Math>> chosen(p.m, kNarrowTiles<Math>, kFewNarrowTiles<Math>);
  const TileRows tiles(m1 - m0, chosen.rows);
  const PanelWalk walk(p.n, p0, p1);
  const int64_t groups = (p.k + Math::kDepth - 1) / Math::kDepth;
  const int64_t slices = std::max<int64_t>(1, (groups + kMostGroups - 1) / kMostGroups);
  const int64_t depth = std::max<int64_t>(1, (groups + slices - 1) / slices);
  const int64_t calls = tiles.tiles * (kPanel / chosen.columns[tiles.highest() - 1]);

  alignas(64) float tile_sums[kTileRows * kPanel];
  float* const all_sums = slices == 1 ? nullptr : t_sums.get(walk.count() * tiles.rows * kPanel);

  for (int64_t g0 = 0; g0 == 0 || g0 < groups; g0 += depth) {
    const bool last = g0 + depth >= groups;
    NarrowTile<Math> t{};
    t.groups = std::min(depth, groups - g0);
    t.half = last && Math::kParts > 1 && p.k % Math::kDepth != 0;
    if (t.half) --t.groups;
    t.lda = p.lda;
    t.ld_sums = kPanel;
    t.accumulate = g0 > 0;
    // 4 groups of a panel are 8 lines: spread over the tiles that meet the panel before it.
    t.prefetch_lines = static_cast<int>((2 * kNarrowUnroll + calls - 1) / calls);
    for (int64_t i = 0; i < walk.count(); ++i) {
      const int64_t panel = walk.panel(i);
      const char* const b = p.b + panel * p.panel_bytes + g0 * kGroupBytes;
      const auto [next_panel, next_group] = walk.after(i, g0, depth, last);
      // What this thread reads after this panel.
      const char* const next =
          next_panel < 0 ? nullptr : p.b + next_panel * p.panel_bytes + next_group * kGroupBytes;
      t.prefetch = calls >= 2 ? next : nullptr;  // a single tile's reading is prefetched by itself
      const NarrowColumns columns(p, panel);
      tiles.each([&](int64_t r0, int64_t count) {
        const int width = chosen.columns[count - 1];
        t.a = p.a + (m0 + r0) * p.lda + g0 * Math::kDepth;
        float* const sums = slices == 1 ? tile_sums : all_sums + (i * tiles.rows + r0) * kPanel;
        for (int64_t j = 0; j < columns.count; j += width) {
          t.b = b + j * 4;
          t.sums = sums + j;
          chosen.run[count - 1](t);
          prefetch_next_part(&t.prefetch, next, t.groups / kNarrowUnroll * t.prefetch_lines * 64,
                             t.groups * kGroupBytes);
        }
        if (last) finish_narrow(p, m0 + r0, count, panel * kPanel, columns, sums);
      });
    }
  }
}

// Calls block(p, m0, m1, p0, p1) for tasks that make up C; m0 is a multiple of `unit`.
template <class Math, class Block>
void divide_narrow(const NarrowProduct<Math>& p, const GridLimits& limits, const Block& block,
                   int64_t unit = 1) {
  if (p.m <= 0 || p.n <= 0) return;
  const int64_t panels = (p.n + kPanel - 1) / kPanel;
  const auto [chunks, groups] = divide(1, p.m, p.n, p.k, limits);
  const int64_t units = (p.m + unit - 1) / unit;
  parallel_for(chunks * groups, [&, chunks = chunks, groups = groups](int64_t i) {
    const int64_t group = i % groups, chunk = i / groups;
    block(p, units * chunk / chunks * unit, std::min(p.m, units * (chunk + 1) / chunks * unit),
          panels * group / groups, panels * (group + 1) / groups);
  });
}

template <class Math>
void run_narrow(const NarrowProduct<Math>& p) {
  constexpr int64_t kSize = sizeof(typename Math::A);
  const int64_t panels = (p.n + kPanel - 1) / kPanel;
  const int64_t row_bytes = std::clamp<int64_t>(p.k * kSize, 256, kNarrowRowBytes);
  GridLimits limits{.most_rows = kNarrowBlockBytes / row_bytes,
                    .serial_work = Math::kSerialWork,
                    .memory_rows = Math::kMemoryRows,
                    .task_work = Math::kTaskWork};
  // Sums of slices are kept for a group of panels.
  if (p.k * kSize > kNarrowRowBytes) limits.least_groups = (panels + 31) / 32;
  divide_narrow(p, limits, run_narrow_block<Math>);
}

// run(p) with rows of A that prepare(r0, rows, to, ld) writes, [M][ld] elements of which
// `row_bytes` are wanted. Each row is prepared once; r0 is a multiple of `unit`, a divisor of
// kPreparedRows. Behind the last one there is memory for `spare` rows more.
template <class Math, class Prepare, class Run>
void run_prepared(NarrowProduct<Math> p, int64_t row_bytes, int64_t spare, const Prepare& prepare,
                  const Run& run, int64_t unit = 1) {
  if (p.m <= 0 || p.n <= 0) return;
  static thread_local Scratch t_prepared;
  using A = typename Math::A;
  constexpr int64_t kSize = sizeof(A);
  // Odd multiples of a line: rows a page apart would compete for the same places of the cache.
  const int64_t ld = ((row_bytes + 63) / 64 | 1) * (64 / kSize);
  const int64_t most = std::max<int64_t>(4 * kTileRows, kPreparedBytes / (ld * kSize)) /
                       kPreparedRows * kPreparedRows;
  const int64_t m = p.m;
  const int64_t size = std::min(m, most);
  A* const to = reinterpret_cast<A*>(t_prepared.get((size + spare) * ld * kSize / 4));
  p.a = to;
  p.lda = ld;
  const float* const residual = p.epilogue.residual;
  float* const c = p.c;
  for (int64_t m0 = 0; m0 < m; m0 += most) {
    p.m = std::min(most, m - m0);
    const int64_t units = (p.m + unit - 1) / unit;
    const int64_t parts = p.m * p.k < 16'384 ? 1 : std::min<int64_t>(units, 2 * num_threads());
    parallel_for(parts, [&](int64_t i) {
      const int64_t r0 = units * i / parts * unit;
      const int64_t r1 = std::min(p.m, units * (i + 1) / parts * unit);
      prepare(m0 + r0, r1 - r0, to + r0 * ld, ld);
    });
    p.c = c + m0 * p.ldc;
    if (residual != nullptr) p.epilogue.residual = residual + m0 * p.epilogue.ld_residual;
    run(p);
  }
}

// The same with run_narrow, whose rows have zeros beyond K up to a whole group.
template <class Math, class Prepare>
void run_prepared(const NarrowProduct<Math>& p, const Prepare& prepare) {
  run_prepared(p, (p.k + 3) * static_cast<int64_t>(sizeof(typename Math::A)), 0, prepare,
               run_narrow<Math>);
}

}  // namespace ec
