// Products whose activations are rounded for each row and block in every call: of int8 and int4
// weights. gemm_int8_math.h says what a Math has.
#pragma once

#include "kernels/gemm/narrow/gemm_narrow_run.h"
#include "kernels/gemm/narrow/gemm_rounded_tile.h"

namespace ec {

constexpr int32_t kInfinity = 0x7f800000;
// The largest magnitudes that a block's values are rounded to multiples of, in one part and in two.
constexpr int32_t kCoarse = 127;
constexpr int32_t kFine = 127 * 128;
// A block is an outlier's if its largest value is over so many times the row's root mean square.
constexpr float kOutlier = 12.0f;

// The nearest whole numbers of magnitudes below 2^22, ties to even.
EC_INLINE vi32 round_to_int(vf32 x) {
  keep_in_register(x);  // a product is rounded first, so that every CPU gets the same numbers
  constexpr float kShift = 0x1.8p23f;
  const vf32 shift = opaque_constant(broadcast(kShift));
  return bits_as<vi32>(x + shift) - bits_as<vi32>(shift);
}

inline float as_float(int32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// By how much values of magnitudes up to `most` are multiplied to be at most `limit`, and what the
// results are multiples of.
struct RoundingStep {
  float factor, scale;

  RoundingStep(float most, int32_t limit) {
    // So far down the factor would overflow; there it stays a power of two whose inverse is exact.
    const bool tiny = most < static_cast<float>(limit) * 0x1p-127f;
    factor = tiny ? 0x1p126f : static_cast<float>(limit) / most;
    scale = tiny ? 0x1p-126f : most / static_cast<float>(limit);
  }
};

template <class Math>
class RowQuantizer {
 public:
  using A = typename Math::A;

  explicit RowQuantizer(int64_t k) : k_(k), row_(k) {}

  int64_t row_bytes() const { return row_.bytes(); }

  // Prepares a row; `most` has room for an integer for each block.
  void operator()(const float* x, char* to, int32_t* most) const {
    const float square = measure(x, most);
    const bool finite = square >= 0;
    uint64_t* const wanted = reinterpret_cast<uint64_t*>(to + row_.wanted_at());
    if constexpr (Math::kParts > 1) std::fill_n(wanted, (row_.blocks + 63) / 64, 0);
    for (int64_t block = 0; block < row_.blocks; ++block) {
      char* const record = to + block * Row::kRecord;
      const int64_t from = block * kRoundedBlock, n = std::min(kRoundedBlock, k_ - from);
      const float largest = as_float(most[block]);
      int32_t sums[2][Math::kHalves] = {};
      if (Math::kParts > 1) put_scale(record + row_.part(), 0.0f);
      if (!finite || most[block] == 0) {
        std::fill_n(reinterpret_cast<A*>(record), kRoundedBlock, A{0});
        put_scale(record, finite ? 0.0f : __builtin_nanf(""));
      } else if (Math::kParts == 1) {
        const RoundingStep step(largest, kFine);
        round<1>(x + from, n, step.factor, record, sums);
        put_scale(record, step.scale);
      } else if (largest * largest <= kOutlier * kOutlier * square) {
        const RoundingStep step(largest, kCoarse);
        round<1>(x + from, n, step.factor, record, sums);
        put_scale(record, step.scale);
      } else {
        const RoundingStep step(largest, kFine);
        round<2>(x + from, n, step.factor, record, sums);
        put_scale(record, step.scale * 128.0f);
        put_scale(record + row_.part(), step.scale);
        wanted[block / 64] |= uint64_t{1} << (block % 64);
      }
      if constexpr (Math::kOffset != 0) {
        for (int part = 0; part < Math::kParts; ++part) {
          for (int half = 0; half < Math::kHalves; ++half) {
            const int32_t start = -Math::kOffset * sums[part][half];
            char* const at = record + part * row_.part() + Row::kStartAt + 4 * half;
            std::memcpy(at, &start, sizeof start);
          }
        }
      }
    }
  }

 private:
  using Row = RoundedRow<Math>;

  static void put_scale(char* record, float scale) {
    std::memcpy(record + Row::kScaleAt, &scale, sizeof scale);
  }

  // The bits of each block's largest magnitude, and the mean square; -1 if not all are finite. As
  // integers, infinity's bits exceed every number's and a NaN's exceed infinity's.
  float measure(const float* x, int32_t* most) const {
    constexpr int kL = kFloatLanes;
    vf32 squares{};
    int32_t of_all = 0;
    for (int64_t from = 0; from < k_; from += kRoundedBlock) {
      const int64_t n = std::min(kRoundedBlock, k_ - from);
      vi32 largest{};
      const auto take = [&](vf32 v) __attribute__((always_inline)) {
        squares = fma(v, v, squares);
        largest = max(largest, bits_as<vi32>(abs(v)));
      };
      int64_t i = 0;
      for (; i + kL <= n; i += kL) take(load(x + from + i));
      if (i < n) take(load_partial(x + from + i, n - i));
      *most = reduce_max(largest);
      of_all = std::max(of_all, *most++);
    }
    return of_all >= kInfinity ? -1.0f : reduce_add(squares) / static_cast<float>(k_);
  }

  // n values times `factor` as integers: in one part, or as 128·first + second. What is left of a
  // block becomes zero. Adds up each half of each part.
  template <int Parts>
  void round(const float* x, int64_t n, float factor, char* record,
             int32_t (&sums)[2][Math::kHalves]) const {
    constexpr int kL = kFloatLanes;
    A* const to = reinterpret_cast<A*>(record);
    [[maybe_unused]] A* const rest = reinterpret_cast<A*>(record + row_.part());
    for (int half = 0; half < Math::kHalves; ++half) {
      const int64_t begin = half * kHalfInputs<Math>, end = begin + kHalfInputs<Math>;
      vi32 sum[2] = {};
      const auto put = [&](vf32 v, int64_t i) __attribute__((always_inline)) {
        vi32 whole = round_to_int(v * factor);
        if constexpr (Parts == 2) {
          const vi32 shifted = whole + 64;
          const vi32 low = (shifted & 127) - 64;
          whole = shifted >> 7;
          store(rest + i, convert<Vector<A, kL>>(low));
          sum[1] += low;
        }
        store(to + i, convert<Vector<A, kL>>(whole));
        sum[0] += whole;
      };
      const int64_t filled = std::min(n, end);
      int64_t i = begin;
      for (; i + kL <= filled; i += kL) put(load(x + i), i);
      if (i < filled) put(load_partial(x + i, filled - i), i), i += kL;
      for (; i < end; i += kL) put(vf32{}, i);
      if constexpr (Math::kOffset != 0) {
        for (int part = 0; part < Parts; ++part) sums[part][half] = reduce_add(sum[part]);
      }
    }
  }

  int64_t k_;
  RoundedRow<Math> row_;
};

// A packed weight and the form of its blocks.
struct RoundedWeight {
  const char* panels;
  int64_t panel_bytes;
  bool one_scale = false;  // for both halves of a block
  Shift shift = Shift::kNone;
};

// Rows of any bytes, sums in single precision with all scales in them.
template <class Math>
struct RoundedSums {
  using A = char;
  static constexpr int64_t kSerialWork = Math::kParts == 2 ? 800'000 : 400'000;
  static constexpr int64_t kMemoryRows = Math::kParts == 2 ? 8 : 4;
  static constexpr int64_t kTaskWork = Math::kParts == 2 ? 1'800'000 : 600'000;
};
template <class Math>
using RoundedProduct = NarrowProduct<RoundedSums<Math>>;

// C[m0:m1, panels p0:p1]; `t` has the form of the weight's blocks.
template <class Math>
void run_rounded_block(const RoundedProduct<Math>& p, const RoundedTiles& table, RoundedTile t,
                       int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
  const TileRows tiles(m1 - m0, kRoundedRows);
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
  const RowQuantizer<Math> quantize(k);
  RoundedProduct<Math> p{m, n, k, nullptr, 0, b.panels, b.panel_bytes, c, ldc, epilogue};
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
