// Products with a narrow B on the tile registers of AMX: rows of A as tiles want them, blocks of
// tiles, tasks. A "Math" has, beside what finish_narrow needs,
//   A, kDepth            elements of a row of A; as many as a group has
//   multiply<C, A, B>()  the instruction
//   add_halves(to, from, n) sums of some steps and of the others
#pragma once

#include "kernels/gemm/narrow/amx_tiles.h"
#include "kernels/gemm/narrow/gemm_narrow_run.h"

namespace ec {

// The rows of a task: half of a second-level cache of 2 MiB.
constexpr int64_t kAmxBlockBytes = int64_t{1} << 20;

// A row of A: 64 bytes for each step. The last step repeats groups of the one before
// (see amx_step), for which there are zeros.
template <class Math>
struct AmxRow {
  int64_t groups, steps;
  int64_t before;  // elements before the zeros
  int64_t zeros;

  explicit AmxRow(int64_t k) {
    constexpr int64_t kElements = kAmxGroups * Math::kDepth;
    groups = (k + Math::kDepth - 1) / Math::kDepth;
    steps = amx_steps(groups);
    before = steps > 1 ? (steps - 1) * kElements : 0;
    zeros = steps > 1 ? steps * kElements - groups * Math::kDepth : 0;
  }
  int64_t bytes() const { return steps * kAmxBytes; }

  // put(from, part, n) writes elements [from, from + n) of a row to `part`; what is left of the row
  // becomes zero.
  template <class Put>
  void write(int64_t k, typename Math::A* to, const Put& put) const {
    put(0, to, before);
    put(before, to + before + zeros, k - before);
    std::fill_n(to + before, zeros, typename Math::A{0});
    std::fill_n(to + zeros + k, groups * Math::kDepth - k, typename Math::A{0});
  }
};

// C[m0:m1, panels p0:p1].
template <class Math>
void run_amx_block(const NarrowProduct<Math>& p, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
  const AmxRow<Math> row(p.k);
  const int64_t rows = m1 - m0;
  // Tiles of one height, so that there is one shape; the last may compute rows that nobody wants.
  const int64_t tiles = (rows + kAmxRows - 1) / kAmxRows;
  const int64_t height = (rows + tiles - 1) / tiles;
  const int64_t block_rows = 2 * height;
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  const PanelWalk walk(p.n, p0, p1);
  const int64_t all_steps = blocks * std::max<int64_t>(row.steps, 1);
  const int64_t lines = (p.panel_bytes / 64 + all_steps - 1) / all_steps;

  alignas(64) float sums[2 * kAmxRows * kPanel];
  AmxBlock t{};
  t.groups = row.groups;
  t.rows = height;
  t.lda = p.lda * static_cast<int64_t>(sizeof(typename Math::A));
  t.sums = sums;
  const AmxShapes shapes(height, std::clamp<int64_t>(row.groups, 1, kAmxGroups));
  for (int64_t i = 0; i < walk.count(); ++i) {
    const int64_t panel = walk.panel(i), next = walk.after(i).panel;
    t.b = p.b + panel * p.panel_bytes;
    StepPrefetch prefetch{nullptr, nullptr, lines};
    // To prefetch for a single block takes as long as to read: only what is this task's for sure.
    if (next >= 0 && !(blocks == 1 && walk.is_last(i))) {
      prefetch.next = p.b + next * p.panel_bytes;
      prefetch.end = prefetch.next + p.panel_bytes;
    }
    const NarrowColumns columns(p, panel);
    for (int64_t r0 = 0; r0 < rows; r0 += block_rows) {
      const int64_t count = std::min(block_rows, rows - r0);
      t.a = reinterpret_cast<const char*>(p.a) + (m0 + r0) * t.lda;
      if (count > height) {
        run_two_tiles<Math>(t, height * t.lda, prefetch);
      } else {
        run_one_tile<Math>(t, prefetch);
        Math::add_halves(sums, sums + height * kPanel, count * kPanel);
      }
      finish_narrow(p, m0 + r0, count, panel * kPanel, columns, sums);
    }
  }
}

template <class Math>
void run_amx_tasks(const NarrowProduct<Math>& p) {
  const int64_t row_bytes = p.lda * static_cast<int64_t>(sizeof(typename Math::A));
  const GridLimits limits{.most_rows = std::max<int64_t>(kAmxBlockBytes / row_bytes, 2 * kAmxRows),
                          .serial_work = Math::kSerialWork,
                          .memory_rows = Math::kMemoryRows};
  divide_narrow(p, limits, run_amx_block<Math>);
}

// prepare(r0, rows, to, ld) as for run_prepared, rows as AmxRow says.
template <class Math, class Prepare>
void run_amx(const NarrowProduct<Math>& p, const Prepare& prepare) {
  run_prepared(p, AmxRow<Math>(p.k).bytes(), kAmxRows, prepare, run_amx_tasks<Math>);
}

}  // namespace ec
