// Products with int8 and int4 weights on the tile registers of AMX, for many rows: the sums of
// gemm_rounded_tile.h bit for bit, since those of a block's half are exact and are scaled and added
// up in the same order.
//
// An instruction multiplies 16 rows by 16 columns over a block's half, and its sums pass through
// memory. Scaling these takes longer than multiplying: scaled sums stay in vector registers for all
// of K, and the next step's tiles are under way meanwhile.
#pragma once

#include <immintrin.h>

#include "kernels/gemm/narrow/amx_tiles.h"
#include "kernels/gemm/narrow/gemm_rounded_product.h"
#include "kernels/gemm/narrow/gemm_rounded_steps.h"
#include "kernels/gemm/narrow/row_quantizer.h"

namespace ec {

// Fewer rows are as fast, or faster, without tiles.
constexpr int64_t kAmxLeastRows = 32;
// Blocks of a product. Each takes 2.5 KiB of an unpacked panel: 1.3 MiB of an L2 cache of 2 MiB.
constexpr int64_t kAmxMostBlocks = 512;

// Whether tiles are faster: their last rows may be filled up by a quarter at most.
inline bool rounded_tiles_pay(int64_t m, int64_t k) {
  const int64_t filler = -m & (kAmxRows - 1);
  return m >= kAmxLeastRows && 4 * filler <= m && k > 0 && rounded_blocks(k) <= kAmxMostBlocks &&
         amx_permitted();
}

// How a block of a panel lies for tiles: [16][32 columns][4 k] int8, behind them [halves][32] float
// scales, and where there are minimums as many of these: the form of int8 on disk.
constexpr int64_t kAmxWeightBytes = kRoundedBlock * kPanel;
constexpr int64_t kAmxScaleBytes = kPanel * 4;  // of a half
constexpr int64_t kAmxUnpackedBytes = kAmxWeightBytes + 4 * kAmxScaleBytes;

// int4 becomes int8, with zeros subtracted. Minimums become an eighth of their opposites, as starts
// are activations times -8.
template <class Math, Shift kShift>
void unpack_int4_block(const char* from, int64_t next_scales, char* to) {
  constexpr int kL = kFloatLanes;
  constexpr int64_t kWeights = kWeightBytes<Math>, kScales = kPanel * Math::kScaleBytes;
  const char* const shifts = from + kWeights + kScales + next_scales;
  float* const floats = reinterpret_cast<float*>(to + kAmxWeightBytes);
  using Bytes = Vector<int8_t, kVectorBytes>;
  for (int64_t j = 0; j < kPanel; j += kL) {
    Bytes zeros[2] = {broadcast<Bytes>(Math::kOffset), broadcast<Bytes>(Math::kOffset)};
    for (int64_t half = 0; half < 2; ++half) {
      const char* const scales = from + kWeights + half * next_scales;
      store(floats + half * kPanel + j, Math::load_scales(scales + j * Math::kScaleBytes));
      if constexpr (kShift == Shift::kZeros) {
        const char* const own = shifts + half * next_scales / 2 + j;
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(own));
        const vi32 zero = bits_as<vi32>(_mm512_cvtepu8_epi32(bytes));
        zeros[half] = bits_as<Bytes>(zero | zero << 8 | zero << 16 | zero << 24);
      } else if constexpr (kShift == Shift::kMinimums) {
        const char* const own = shifts + half * next_scales + j * Math::kScaleBytes;
        store(floats + (2 + half) * kPanel + j, Math::load_scales(own) * broadcast(-0.125f));
        zeros[half] = Bytes{};
      }
    }
    for (int64_t at = 4 * j; at < kWeights; at += kGroupBytes) {
      const vi32 bytes = load<vi32>(reinterpret_cast<const int32_t*>(from + at));
      int8_t* const first = reinterpret_cast<int8_t*>(to + at);
      store(first, bits_as<Bytes>(Math::nibbles(bytes, FirstHalf{})) - zeros[0]);
      store(first + kWeights, bits_as<Bytes>(Math::nibbles(bytes, SecondHalf{})) - zeros[1]);
    }
  }
}

// A panel in that form.
struct AmxPanel {
  const char* blocks;
  int64_t block_bytes;
};

// A panel that can't be read as it is is unpacked into `memory`, kAmxUnpackedBytes for each block.
template <class Math>
AmxPanel prepare_amx_panel(const char* panel, int64_t k, const RoundedWeight& weight,
                           char* memory) {
  const int64_t blocks = rounded_blocks(k);
  if constexpr (Math::kShared) {
    const auto unpack = [&](auto shift) {
      const int64_t block_bytes = weight.panel_bytes / blocks;
      const int64_t next_scales = weight.one_scale ? 0 : kPanel * Math::kScaleBytes;
      for (int64_t i = 0; i < blocks; ++i) {
        unpack_int4_block<Math, shift.value>(panel + i * block_bytes, next_scales,
                                             memory + i * kAmxUnpackedBytes);
      }
    };
    if (weight.shift == Shift::kZeros) {
      unpack(std::integral_constant<Shift, Shift::kZeros>{});
    } else if (weight.shift == Shift::kMinimums) {
      unpack(std::integral_constant<Shift, Shift::kMinimums>{});
    } else {
      unpack(std::integral_constant<Shift, Shift::kNone>{});
    }
    return {memory, kAmxUnpackedBytes};
  } else if (Math::kHalves == 2 || k % kRoundedBlock == 0) {
    return {panel, kBlockBytes<Math>};
  } else {  // the last block ends with K, and is filled up
    const int64_t whole = (blocks - 1) * kBlockBytes<Math>;
    const int64_t weights = (k % kRoundedBlock + 3) / 4 * kGroupBytes;
    std::memcpy(memory, panel, static_cast<size_t>(whole + weights));
    std::memset(memory + whole + weights, 0, static_cast<size_t>(kAmxWeightBytes - weights));
    std::memcpy(memory + whole + kAmxWeightBytes, panel + whole + weights, kAmxScaleBytes);
    return {memory, kBlockBytes<Math>};
  }
}

struct AmxRoundedTile {
  const char* a;  // 16 prepared rows
  const char* b;  // the first column of a panel
  const RoundedStep* steps;
  int64_t count;
  float* sums;  // [16][16], rows kPanel apart
};

template <class Math, bool kMinimums>
inline void run_amx_rounded_tile(const AmxRoundedTile& t, StepPrefetch& prefetch) {
  using Row = RoundedRow<Math, kAmxRows>;
  using Whole = int32_t[Math::kHalves][kAmxRows * kAmxBytes / 4];
  alignas(64) Whole whole[2];  // sums of one step, and of the next
  vf32 sums[kAmxRows] = {};
  const char *const rows = t.a, *const panel = t.b;
  const auto multiply = [&](auto half, const RoundedStep& step,
                            Whole& to) __attribute__((always_inline)) {
    constexpr int kHalf = half.value;
    // One register for both strides: with more the compiler moves some to the vectors' side, where
    // every step then waits for the arithmetic of the one before.
    load_tile<6 + kHalf, 2>(panel + step.b + kHalf * kAmxWeightBytes / 2, kAmxBytes);
    load_tile<4 + kHalf>(rows + step.a + kHalf * kHalfInputs<Math>, kAmxBytes);
    zero_tile<kHalf>();
    multiply_int8_tiles<kHalf, 4 + kHalf, 6 + kHalf>();
    store_tile<kHalf>(to[kHalf], kAmxBytes);
  };
  // The scaled sums of half of the rows.
  const auto add = [&](auto of_rows, const RoundedStep& step,
                       const Whole& exact) __attribute__((always_inline)) {
    constexpr int64_t kRows = kAmxRows / 2, kFrom = of_rows.value * kRows;
    const auto of_columns = [&](int64_t i) __attribute__((always_inline)) {
      return load(
          reinterpret_cast<const float*>(panel + step.b + kAmxWeightBytes + i * kAmxScaleBytes));
    };
    vf32 weight_scales[Math::kHalves];
    [[maybe_unused]] vf32 minimums[Math::kHalves];
#pragma GCC unroll 2
    for (int half = 0; half < Math::kHalves; ++half) {
      weight_scales[half] = of_columns(half);
      if constexpr (kMinimums) minimums[half] = of_columns(2 + half);
    }
#pragma GCC unroll 16
    for (int64_t r = kFrom; r < kFrom + kRows; ++r) {
      const char* const of_row = rows + step.a + Row::kScaleAt + r * Row::kNextScale;
      const vf32 scale = broadcast_from<vf32>(of_row);
      vf32 sum = sums[r];
      repeat<Math::kHalves>([&](auto half) __attribute__((always_inline)) {
        const vf32 whole_sum = convert<vf32>(load<vi32>(exact[half] + r * kAmxBytes / 4));
        sum = add_scaled<Math>(half, whole_sum, scale, weight_scales[half], sum);
        if constexpr (kMinimums) {
          const vf32 start = convert<vf32>(broadcast_from<vi32>(of_row + 4 + 4 * half));
          sum = fma(start, minimums[half], sum);
        }
      });
      sums[r] = Math::kHalves == 2 ? fma(sum, scale, sums[r]) : sum;
    }
  };
  const RoundedStep* step = t.steps;
  const RoundedStep* const last = step + t.count - 1;
  multiply(FirstHalf{}, *step, whole[0]);
  if constexpr (Math::kHalves == 2) multiply(SecondHalf{}, *step, whole[0]);
  Whole *now = &whole[0], *ahead = &whole[1];
  // Alternately, so that both kinds of work are always in sight of the CPU.
  for (; step != last; ++step, std::swap(now, ahead)) {
    multiply(FirstHalf{}, step[1], *ahead);
    add(FirstHalf{}, *step, *now);
    if constexpr (Math::kHalves == 2) multiply(SecondHalf{}, step[1], *ahead);
    add(SecondHalf{}, *step, *now);
    prefetch.advance();
  }
  add(FirstHalf{}, *step, *now);
  add(SecondHalf{}, *step, *now);
#pragma GCC unroll 16
  for (int64_t r = 0; r < kAmxRows; ++r) store(t.sums + r * kPanel, sums[r]);
}

// C[m0:m1, panels p0:p1]; m0 is a multiple of kAmxRows.
template <class Math>
void run_amx_rounded_block(const RoundedProduct<Math>& p, const RoundedWeight& weight, int64_t m0,
                           int64_t m1, int64_t p0, int64_t p1) {
  static_assert(kFloatLanes * 4 == kAmxBytes && kPreparedRows == kAmxRows);
  static thread_local Scratch t_panel;
  auto run = run_amx_rounded_tile<Math, false>;
  if constexpr (Math::kShared) {
    if (weight.shift == Shift::kMinimums) run = run_amx_rounded_tile<Math, true>;
  }
  const PanelWalk walk(p.n, p0, p1);
  const RoundedRow<Math, kAmxRows> row(p.k);
  const int64_t blocks = row.blocks, calls = 2 * ((m1 - m0 + kAmxRows - 1) / kAmxRows);
  const int64_t lines = (p.panel_bytes / 64 + blocks * calls - 1) / (blocks * calls);
  const bool unpacks = Math::kShared || p.k % kRoundedBlock != 0;
  char* const memory =
      reinterpret_cast<char*>(t_panel.get(unpacks ? blocks * kAmxUnpackedBytes / 4 : 0));
  alignas(64) float sums[kAmxRows * kPanel];
  RoundedStep steps[2 * kAmxMostBlocks];
  const AmxShapes shapes(kAmxRows, kBlockGroups<Math>);
  for (int64_t i = 0; i < walk.count(); ++i) {
    const int64_t panel = walk.panel(i), next = walk.after(i).panel;
    const AmxPanel b = prepare_amx_panel<Math>(p.b + panel * p.panel_bytes, p.k, weight, memory);
    StepPrefetch prefetch{nullptr, nullptr, lines};
    if (next >= 0) {
      prefetch.next = p.b + next * p.panel_bytes;
      prefetch.end = prefetch.next + p.panel_bytes;
    }
    const NarrowColumns columns(p, panel);
    for (int64_t r0 = m0; r0 < m1; r0 += kAmxRows) {
      const char* const a = p.a + r0 * p.lda;
      const int64_t count = list_rounded_steps(row, a, 1, 0, b.block_bytes, steps);
      for (int64_t j = 0; j < columns.count; j += kFloatLanes) {
        run({a, b.blocks + 4 * j, steps, count, sums + j}, prefetch);
      }
      finish_narrow(p, r0, std::min(kAmxRows, m1 - r0), panel * kPanel, columns, sums);
    }
  }
}

template <class Math>
void run_rounded_amx(const RoundedProduct<Math>& p, const RoundedWeight& weight, const float* a,
                     int64_t lda) {
  const RowQuantizer<Math, kAmxRows> quantize(p.k);
  // A task's rows: half of a second-level cache of 2 MiB.
  const GridLimits limits{
      .most_rows = std::max<int64_t>((1 << 20) / quantize.row_bytes(), 2 * kAmxRows),
      .serial_work = 1'600'000,
      .memory_rows = 16,
      .task_work = 5'000'000};
  run_prepared(
      p, quantize.row_bytes(), kAmxRows,
      [&](int64_t r0, int64_t rows, char* to, int64_t ld) {
        static thread_local Scratch t_most;
        int32_t* const most = reinterpret_cast<int32_t*>(t_most.get(rounded_blocks(p.k)));
        for (int64_t r = 0; r < rows; ++r) {
          int64_t index = (r0 + r) % kAmxRows;
          char* const tile = to + (r - index) * ld;
          quantize(a + (r0 + r) * lda, tile, most, index);
          if (r0 + r + 1 < p.m) continue;
          while (++index < kAmxRows) quantize.blank(tile, index);
        }
      },
      [&](const RoundedProduct<Math>& part) {
        divide_narrow(
            part, limits,
            [&](const RoundedProduct<Math>& task, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
              run_amx_rounded_block(task, weight, m0, m1, p0, p1);
            },
            kAmxRows);
      },
      kRowsApart);
}

}  // namespace ec
