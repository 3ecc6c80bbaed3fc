// Products whose activations are rounded for each row and block in every call: of int8 and int4
// weights. gemm_int8_math.h says what a Math has.
#pragma once

#include "kernels/gemm/narrow/gemm_rounded_product.h"
#include "kernels/gemm/narrow/row_quantizer.h"
#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#define EC_ROUNDED_TILES 1
#include "kernels/gemm/narrow/gemm_rounded_amx.h"
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#define EC_ROUNDED_MMLA 1
#include "kernels/gemm/narrow/gemm_rounded_mmla.h"
#endif

namespace ec {

template <class Math>
constexpr RowSteps row_steps() {
  return Math::kParts == 1    ? RowSteps::kFine
         : Math::kSummed == 2 ? RowSteps::kSums
                              : RowSteps::kCoarse;
}

// C[m0:m1, panels p0:p1]; `t` has the form of the weight's blocks.
template <class Math>
void run_rounded_block(const RoundedProduct<Math>& p, const RoundedTiles& table, RoundedTile t,
                       int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
  const TileRows tiles(m1 - m0, kMostRows<Math>);
  const PanelWalk walk(p.n, p0, p1);
  const int64_t calls = tiles.tiles * (kPanel / table.columns[tiles.highest() - 1]);
  alignas(64) float sums[kRoundedRows * kPanel];
  t.k = p.k;
  t.lda = p.lda;
  t.prefetch_lines = static_cast<int>((t.block_bytes / 64 + calls - 1) / calls);
  const int64_t part = rounded_blocks(p.k) * t.prefetch_lines * 64;  // that one tile prefetches
  for (int64_t i = 0; i < walk.count(); ++i) {
    const int64_t panel = walk.panel(i), next_panel = walk.after(i).panel;
    t.b = p.b + panel * p.panel_bytes;
    const char* const next = next_panel < 0 ? nullptr : p.b + next_panel * p.panel_bytes;
    t.prefetch = next;
    const NarrowColumns columns(p, panel);
    tiles.each([&](int64_t r0, int64_t count) {
      t.a = p.a + (m0 + r0) * p.lda;
      for (t.column = 0; t.column < columns.count; t.column += table.columns[count - 1]) {
        t.sums = sums + t.column;
        table.run[count - 1](t);
        prefetch_next_part(&t.prefetch, next, part, p.panel_bytes);
      }
      finish_narrow(p, m0 + r0, count, panel * kPanel, columns, sums);
    });
  }
}

template <class Math>
void run_rounded(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                 const RoundedWeight& b, float* c, int64_t ldc, const Epilogue& epilogue) {
  using Sums = RoundedSums<Math>;
  const RoundedProduct<Math> p{m, n, k, nullptr, 0, b.panels, b.panel_bytes, c, ldc, epilogue};
#if EC_ROUNDED_TILES
  if (rounded_tiles_pay(m, k)) return run_rounded_amx<Math>(p, b, a, lda);
#elif EC_ROUNDED_MMLA
  if (mmla_pays(m, k)) return run_rounded_mmla<Math>(p, b, a, lda);
#endif
  const RowQuantizer<Math> quantize(k);
  RoundedTile form{};
  form.block_bytes =
      Math::kHalves == 2 && k > 0 ? b.panel_bytes / rounded_blocks(k) : kBlockBytes<Math>;
  form.next_scales = b.one_scale ? 0 : kPanel * Math::kScaleBytes;
  const RoundedTiles& table = rounded_tiles<Math>(b.shift);
  // A task's rows: half of a second-level cache of 512 KiB.
  const GridLimits limits{
      .most_rows = std::max<int64_t>(kNarrowBlockBytes / (quantize.row_bytes() + 1), 2 * kTileRows),
      .serial_work = Sums::kSerialWork,
      .memory_rows = Sums::kMemoryRows,
      .task_work = Sums::kTaskWork};
  run_prepared(
      p, quantize.row_bytes(), 0,
      [&](int64_t r0, int64_t rows, char* to, int64_t ld) {
        static thread_local Scratch t_most;
        int32_t* const most = reinterpret_cast<int32_t*>(t_most.get(rounded_blocks(k)));
        for (int64_t r = 0; r < rows; ++r) quantize(a + (r0 + r) * lda, to + r * ld, most);
      },
      [&](const RoundedProduct<Math>& part) {
        divide_narrow(part, limits,
                      [&](const RoundedProduct<Math>& task, int64_t m0, int64_t m1, int64_t p0,
                          int64_t p1) { run_rounded_block(task, table, form, m0, m1, p0, p1); });
      });
}

}  // namespace ec
