// Products with int8 and int4 weights by Arm's instruction for 2 rows by 2 columns of 8 inputs
// (smmla), for many rows: the sums of gemm_rounded_tile.h bit for bit, since those of a block's
// half are exact and are scaled and added up in the same order.
//
// The instruction takes 8 inputs of a column side by side, where the disk has 4. So each panel is
// unpacked once for a task's rows. Rows are prepared in pairs.
#pragma once

#include <arm_neon.h>

#include "kernels/gemm/narrow/gemm_rounded_product.h"
#include "kernels/gemm/narrow/gemm_rounded_steps.h"
#include "kernels/gemm/narrow/row_quantizer.h"

namespace ec {

// Fewer rows take as many instructions without: unpacking a panel takes as many as 4 rows do.
constexpr int64_t kMmlaLeastRows = 8;
// Blocks of a product. Each takes 3 KiB of an unpacked panel: 768 KiB of an L2 cache of 1 MiB.
constexpr int64_t kMmlaMostBlocks = 256;
// Most pairs of rows in a tile: 8 rows by 8 columns, or 4 by 16. 16 sums are half of the registers.
constexpr int kMmlaPairs = 4;
constexpr int mmla_columns(int pairs) { return pairs > 2 ? 4 : 8; }  // pairs, too

inline bool mmla_pays(int64_t m, int64_t k) {
  return m >= kMmlaLeastRows && k > 0 && rounded_blocks(k) <= kMmlaMostBlocks;
}

// An unpacked block: [8 times 8 k][32 columns][8 k] int8; then for each half [32 / 2] times the
// scales of two columns, twice; where there are minimums, as many of an eighth of their opposites,
// as starts are activations times -8.
constexpr int64_t kMmlaGroupBytes = 8 * kPanel;
constexpr int64_t kMmlaWeightBytes = kRoundedBlock * kPanel;
constexpr int64_t kMmlaScaleBytes = 2 * 4 * kPanel;  // of a half
constexpr int64_t kMmlaBlockBytes = kMmlaWeightBytes + 4 * kMmlaScaleBytes;

EC_INLINE void store_twice(vf32 columns, float* to) {
  store(to, __builtin_shuffle(columns, vi32{0, 1, 0, 1}));
  store(to + 4, __builtin_shuffle(columns, vi32{2, 3, 2, 3}));
}

// `groups` times 4 k of each half; the others become zeros. Zeros of int4 are subtracted.
template <class Math, Shift kShift>
void unpack_mmla_block(const char* from, int64_t groups, int64_t next_scales, char* to) {
  constexpr int kL = kFloatLanes;
  constexpr int64_t kGroups = kBlockGroups<Math>, kScales = kPanel * Math::kScaleBytes;
  constexpr int64_t kNextHalf = Math::kShared ? 0 : kGroups * kGroupBytes;
  const char* const scales =
      from + (Math::kHalves == 1 ? groups * kGroupBytes : kWeightBytes<Math>);
  const char* const shifts = scales + kScales + next_scales;
  const auto unpack = [&](auto half, int64_t j) __attribute__((always_inline)) {
    float* const floats =
        reinterpret_cast<float*>(to + kMmlaWeightBytes + half.value * kMmlaScaleBytes) + 2 * j;
    store_twice(Math::load_scales(scales + half.value * next_scales + j * Math::kScaleBytes),
                floats);
    int8x16_t zeros = vdupq_n_s8(Math::kShared ? Math::kOffset : 0);
    if constexpr (kShift == Shift::kZeros) {
      using Bytes = Vector<uint8_t, kL>;
      const char* const own = shifts + half.value * next_scales / 2 + j;
      const Bytes bytes = load<Bytes>(reinterpret_cast<const uint8_t*>(own));
      zeros = bits_as<int8x16_t>(convert<vi32>(bytes) * 0x01010101);
    } else if constexpr (kShift == Shift::kMinimums) {
      const char* const own = shifts + half.value * next_scales + j * Math::kScaleBytes;
      store_twice(Math::load_scales(own) * broadcast(-0.125f), floats + 2 * kMmlaScaleBytes / 4);
      zeros = int8x16_t{};
    }
    const auto columns = [&](int64_t g) __attribute__((always_inline)) {
      if (g >= groups) return int32x4_t{};
      const char* const group = from + half.value * kNextHalf + g * kGroupBytes + 4 * j;
      return bits_as<int32x4_t>(Math::load_b(group, half) - zeros);
    };
    char* const weights = to + half.value * kMmlaWeightBytes / 2 + 8 * j;
    for (int64_t g = 0; g < kGroups; g += 2) {
      const int32x4_t first = columns(g), second = columns(g + 1);
      int32_t* const eights = reinterpret_cast<int32_t*>(weights + g / 2 * kMmlaGroupBytes);
      vst1q_s32(eights, vzip1q_s32(first, second));
      vst1q_s32(eights + 4, vzip2q_s32(first, second));
    }
  };
  for (int64_t j = 0; j < kPanel; j += kL) {
    unpack(FirstHalf{}, j);
    if constexpr (Math::kHalves == 2) unpack(SecondHalf{}, j);
  }
}

template <class Math, Shift kShift>
void unpack_mmla_panel(const char* panel, int64_t k, const RoundedWeight& weight, char* to) {
  const int64_t blocks = rounded_blocks(k);
  const int64_t block_bytes = Math::kHalves == 2 ? weight.panel_bytes / blocks : kBlockBytes<Math>;
  const int64_t next_scales = weight.one_scale ? 0 : kPanel * Math::kScaleBytes;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t groups = Math::kHalves == 2
                               ? kBlockGroups<Math>
                               : std::min(kBlockGroups<Math>, (k - i * kRoundedBlock + 3) / 4);
    unpack_mmla_block<Math, kShift>(panel + i * block_bytes, groups, next_scales,
                                    to + i * kMmlaBlockBytes);
  }
}

struct MmlaTile {
  const char* a;     // prepared pairs of rows
  int64_t distance;  // between these, bytes
  const char* b;     // an unpacked panel
  int64_t column;    // the tile's first one
  const RoundedStep* steps;
  int64_t count;
  float* sums;  // rows kPanel apart, from the first column on
};

template <class Math, bool kMinimums, int Pairs>
inline void run_mmla_tile(const MmlaTile& t, StepPrefetch& prefetch) {
  using Row = RoundedRow<Math, 2>;
  constexpr int Columns = mmla_columns(Pairs);
  constexpr int kGroups = kHalfInputs<Math> / 8;
  vf32 sums[Pairs][Columns] = {};  // of all blocks, or of one, as in gemm_rounded_tile.h
  const auto place = [&](int p, int c) __attribute__((always_inline)) {
    return t.sums + (2 * p + c % 2) * kPanel + 2 * (c - c % 2);
  };
  const auto store_sums = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int p = 0; p < Pairs; ++p) {
#pragma GCC unroll 8
      for (int c = 0; c < Columns; ++c) store(place(p, c), sums[p][c]);
    }
  };
  if constexpr (Math::kHalves == 2) store_sums();
  const char* const panel = t.b + 8 * t.column;
  const auto add_half = [&](auto half, const RoundedStep& step) __attribute__((always_inline)) {
    const char* const weights = panel + step.b + half.value * kMmlaWeightBytes / 2;
    const char* const values = t.a + step.a + 2 * half.value * kHalfInputs<Math>;
    int32x4_t acc[Pairs][Columns];
#pragma GCC unroll 4
    for (int p = 0; p < Pairs; ++p) {
#pragma GCC unroll 8
      for (int c = 0; c < Columns; ++c) {
        // Takes no unit of the CPU, unlike the copies of one zero that the compiler would make.
        asm volatile("movi %0.2d, #0" : "=w"(acc[p][c]));
      }
    }
    const auto group = [&](int64_t g) __attribute__((always_inline)) {
      int8x16_t rows[Pairs];
#pragma GCC unroll 4
      for (int p = 0; p < Pairs; ++p) {
        rows[p] = vld1q_s8(reinterpret_cast<const int8_t*>(values) + p * t.distance + 16 * g);
      }
#pragma GCC unroll 8
      for (int c = 0; c < Columns; ++c) {
        const int8x16_t columns =
            vld1q_s8(reinterpret_cast<const int8_t*>(weights) + g * kMmlaGroupBytes + 16 * c);
#pragma GCC unroll 4
        for (int p = 0; p < Pairs; ++p) {
          asm volatile("smmla %0.4s, %1.16b, %2.16b"
                       : "+w"(acc[p][c])
                       : "w"(rows[p]), "w"(columns));
        }
      }
    };
    // By hand: the compiler unrolls no loop of such steps.
    for (int64_t g = 0; g < kGroups; g += 4) group(g), group(g + 1), group(g + 2), group(g + 3);
    const auto of_columns = [&](int i, int c) __attribute__((always_inline)) {
      const char* const floats = panel + step.b + kMmlaWeightBytes + i * kMmlaScaleBytes + 16 * c;
      return load(reinterpret_cast<const float*>(floats));
    };
#pragma GCC unroll 4
    for (int p = 0; p < Pairs; ++p) {
      const char* const of_rows = t.a + p * t.distance + step.a + Row::kScaleAt;
      const vf32 scale = load(reinterpret_cast<const float*>(of_rows));
      [[maybe_unused]] vf32 start;
      if constexpr (kMinimums) {
        const char* const starts = of_rows + 16 + 16 * half.value;
        start = convert<vf32>(load<vi32>(reinterpret_cast<const int32_t*>(starts)));
      }
#pragma GCC unroll 8
      for (int c = 0; c < Columns; ++c) {
        const vf32 exact = convert<vf32>(bits_as<vi32>(acc[p][c]));
        vf32& sum = sums[p][c];
        sum = add_scaled<Math>(half, exact, scale, of_columns(half.value, c), sum);
        if constexpr (kMinimums) sum = fma(start, of_columns(2 + half.value, c), sum);
        if constexpr (half.value == 1) {
          float* const to = place(p, c);
          store(to, fma(sum, scale, load(to)));
        }
      }
    }
  };
  for (const RoundedStep *step = t.steps, *end = step + t.count; step != end; ++step) {
    prefetch.advance();
    add_half(FirstHalf{}, *step);
    if constexpr (Math::kHalves == 2) add_half(SecondHalf{}, *step);
  }
  if constexpr (Math::kHalves == 1) store_sums();
  // As two rows by four columns.
  for (int p = 0; p < Pairs; ++p) {
    for (int c = 0; c < Columns; c += 2) {
      float *const to = place(p, c), *const below = place(p, c + 1);
      const vf32 first = load(to), second = load(below);
      store(to, __builtin_shuffle(first, second, vi32{0, 1, 4, 5}));
      store(below, __builtin_shuffle(first, second, vi32{2, 3, 6, 7}));
    }
  }
}

using RunMmlaTile = void (*)(const MmlaTile&, StepPrefetch&);
template <class Math, bool kMinimums>
inline constexpr RunMmlaTile kMmlaTiles[kMmlaPairs] = {
    run_mmla_tile<Math, kMinimums, 1>, run_mmla_tile<Math, kMinimums, 2>,
    run_mmla_tile<Math, kMinimums, 3>, run_mmla_tile<Math, kMinimums, 4>};

// C[m0:m1, panels p0:p1]; m0 is even.
template <class Math>
void run_mmla_block(const RoundedProduct<Math>& p, const RoundedWeight& weight, int64_t m0,
                    int64_t m1, int64_t p0, int64_t p1) {
  static_assert(kFloatLanes == 4);
  static thread_local Scratch t_panel;
  const RunMmlaTile* run = kMmlaTiles<Math, false>;
  auto unpack = unpack_mmla_panel<Math, Shift::kNone>;
  if constexpr (Math::kShared) {
    if (weight.shift == Shift::kZeros) unpack = unpack_mmla_panel<Math, Shift::kZeros>;
    if (weight.shift == Shift::kMinimums) {
      run = kMmlaTiles<Math, true>;
      unpack = unpack_mmla_panel<Math, Shift::kMinimums>;
    }
  }
  const RoundedRow<Math, 2> row(p.k);
  const TileRows tiles((m1 - m0 + 1) / 2, kMmlaPairs);
  const PanelWalk walk(p.n, p0, p1);
  const int64_t steps_ahead = row.blocks * tiles.tiles * kPanel / 2 / mmla_columns(kMmlaPairs);
  const int64_t lines = (p.panel_bytes / 64 + steps_ahead - 1) / steps_ahead;
  char* const memory = reinterpret_cast<char*>(t_panel.get(row.blocks * kMmlaBlockBytes / 4));
  alignas(64) float sums[2 * kMmlaPairs * kPanel];
  RoundedStep steps[2 * kMmlaMostBlocks];
  MmlaTile t{};
  t.distance = 2 * p.lda;
  t.b = memory;
  t.steps = steps;
  for (int64_t i = 0; i < walk.count(); ++i) {
    const int64_t panel = walk.panel(i), next = walk.after(i).panel;
    unpack(p.b + panel * p.panel_bytes, p.k, weight, memory);
    StepPrefetch prefetch{nullptr, nullptr, lines};
    if (next >= 0) {
      prefetch.next = p.b + next * p.panel_bytes;
      prefetch.end = prefetch.next + p.panel_bytes;
    }
    const NarrowColumns columns(p, panel);
    tiles.each([&](int64_t pair, int64_t pairs) {
      const int64_t r0 = m0 + 2 * pair;
      t.a = p.a + r0 * p.lda;
      t.count = list_rounded_steps(row, t.a, pairs, t.distance, kMmlaBlockBytes, steps);
      const int64_t width = 2 * mmla_columns(static_cast<int>(pairs));
      for (t.column = 0; t.column < columns.count; t.column += width) {
        t.sums = sums + t.column;
        run[pairs - 1](t, prefetch);
      }
      finish_narrow(p, r0, std::min(2 * pairs, m1 - r0), panel * kPanel, columns, sums);
    });
  }
}

template <class Math>
void run_rounded_mmla(const RoundedProduct<Math>& p, const RoundedWeight& weight, const float* a,
                      int64_t lda) {
  const RowQuantizer<Math, 2> quantize(p.k);
  // A task's rows: half of a second-level cache of 1 MiB.
  const GridLimits limits{
      .most_rows = std::max<int64_t>((1 << 19) / quantize.row_bytes(), 4 * kMmlaPairs),
      .serial_work = 1'200'000,
      .memory_rows = 12,
      .task_work = 2'700'000};
  run_prepared(
      p, quantize.row_bytes(), 1,
      [&](int64_t r0, int64_t rows, char* to, int64_t ld) {
        static thread_local Scratch t_most;
        int32_t* const most = reinterpret_cast<int32_t*>(t_most.get(rounded_blocks(p.k)));
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t index = (r0 + r) % 2;
          char* const pair = to + (r - index) * ld;
          quantize(a + (r0 + r) * lda, pair, most, index);
          if (index == 0 && r0 + r + 1 == p.m) quantize.blank(pair, 1);
        }
      },
      [&](const RoundedProduct<Math>& part) {
        divide_narrow(
            part, limits,
            [&](const RoundedProduct<Math>& task, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
              run_mmla_block(task, weight, m0, m1, p0, p1);
            },
            2);
      },
      2);
}

}  // namespace ec
