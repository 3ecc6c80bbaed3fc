// The innermost loops of products with int8 and int4 weights: a register tile of exact sums over
// each block of kRoundedBlock inputs, or each half of one, which then are scaled and added up in
// single precision. gemm_int8_math.h says what a Math has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/gemm/narrow/gemm_int8_math.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "kernels/gemm/narrow/gemm_narrow_tile.h"

namespace ec {

constexpr int64_t rounded_blocks(int64_t k) { return (k + kRoundedBlock - 1) / kRoundedBlock; }
// Groups of a block, and inputs of a half.
template <class Math>
constexpr int64_t kBlockGroups = kRoundedBlock / 4 / Math::kHalves;
template <class Math>
constexpr int64_t kHalfInputs = kRoundedBlock / Math::kHalves;
// Bytes of a block's weights in a panel, and with a scale for each half and column. Two halves
// share their bytes, or follow each other.
template <class Math>
constexpr int64_t kWeightBytes =
    kBlockGroups<Math> * kGroupBytes * (Math::kShared ? 1 : Math::kHalves);
template <class Math>
constexpr int64_t kBlockBytes = kWeightBytes<Math> + Math::kHalves * kPanel * Math::kScaleBytes;

// Numbers of a block beside weights and scales, shaped as the scales; gemm_narrow.h has the forms.
enum class Shift { kNone, kZeros, kMinimums };

// A prepared row of activations: `kParts` times a record for each block. It holds kRoundedBlock
// elements, zeros beyond K; then as a float what these are multiples of, 0 in a part that isn't
// wanted (its elements may then be anything: a whole number times 0 adds nothing); then, if the
// weights get an offset, an int32 for each half to start sums from. Behind these, where there are
// two parts, a bit for each block whose second one is wanted.
//
// With kTogether rows a record holds [kTogether][kRoundedBlock] elements, then what follows them of
// each row. Every kRowsApart rows have cache lines of their own, for threads that prepare them.
//
// Of two rows, 8 elements of one lie before 8 of the other. The scales of both follow, each twice,
// then starts likewise: as the sums of 2 rows by 2 columns lie in a register.
constexpr int64_t kRowsApart = 4;
template <class Math, int kTogether = 1>
struct RoundedRow {
  static constexpr int64_t kRows = kTogether;
  static constexpr bool kPaired = kTogether == 2;
  static constexpr int64_t kRun = kPaired ? 8 : kRoundedBlock;  // elements of a row without a gap
  static constexpr int64_t kScaleAt =
      kTogether * kRoundedBlock * static_cast<int64_t>(sizeof(typename Math::A));
  static constexpr int64_t kStarts = Math::kOffset != 0 ? Math::kHalves : 0;
  static constexpr int64_t kNextScale = kTogether == 1 ? 4 + 4 * kStarts
                                        : kPaired      ? 8 + 8 * kStarts
                                                       : 64 / kRowsApart;
  static constexpr int64_t kRecord = kScaleAt + kTogether * kNextScale;
  int64_t blocks;

  explicit RoundedRow(int64_t k) : blocks(rounded_blocks(k)) {}
  int64_t part() const { return blocks * kRecord; }  // bytes
  int64_t wanted_at() const { return (Math::kParts * part() + 7) / 8 * 8; }
  int64_t words() const { return Math::kParts > 1 ? (blocks + 63) / 64 : 0; }
  int64_t next_words() const { return kTogether == 1 ? words() : (words() + 1) / 2 * 2; }
  int64_t bytes() const { return wanted_at() + kTogether * next_words() * 8; }
  // Distance of a row's i-th element of a block from its first.
  static constexpr int64_t place(int64_t i) { return kPaired ? i + (i & -kRun) : i; }
  // Writes the scale (slot 0) or a start (1, 2) of the index-th row of a record.
  template <class T>
  static void put(char* record, int64_t index, int64_t slot, T value) {
    static_assert(sizeof value == 4);
    if constexpr (kPaired) {
      char* const to = record + kScaleAt + slot * 16 + index * 8;
      std::memcpy(to, &value, 4);
      std::memcpy(to + 4, &value, 4);
    } else {
      std::memcpy(record + kScaleAt + index * kNextScale + slot * 4, &value, 4);
    }
  }
  // The bits of a row.
  template <class Byte>
  auto wanted(Byte* row, int64_t index) const {
    using Word = std::conditional_t<std::is_const_v<Byte>, const uint64_t, uint64_t>;
    return reinterpret_cast<Word*>(row + wanted_at()) + index * next_words();
  }
};

constexpr int kRoundedRows = 6;
// Rows of a tile. Where two groups are taken at a time, 16 registers hold six rows of one vector of
// columns, or four rows of two, which read A half as often.
template <class Math>
constexpr int kMostRows = Math::kSummed == 2 && kVectorRegisters == 16 ? 4 : kRoundedRows;

struct RoundedTile {
  int64_t k;
  int64_t block_bytes;
  int64_t next_scales;  // bytes from the first half's scales to the second's; 0: these are the same
  const char* a;        // prepared rows
  int64_t lda;          // bytes
  const char* b;        // a panel
  int64_t column;       // the tile's first one
  float* sums;          // rows that lie kPanel apart
  const char* prefetch;  // memory soon needed, or null
  int prefetch_lines;    // of 64 bytes, for each block
};

// Vectors of columns in a tile. As in gemm_kernel.h, registers hold the sums, the smaller of a row
// of B and a column of A, and each step's other operands.
template <class Math, int Rows>
constexpr int rounded_vectors() {
  constexpr int kRegisters = sizeof(typename Math::Acc) / kVectorBytes * Math::kPerVector;
  int vectors = kPanelVectors;
  while (vectors > 1) {
    const int of_b = vectors * Math::kPerVector * Math::kSummed;
    if (Rows * vectors * kRegisters + (Rows < of_b ? Rows : of_b) + Math::kSpare <=
        kVectorRegisters) {
      break;
    }
    vectors /= 2;
  }
  return vectors;
}

// Calls f(0), … f(n - 1) with constants, so that what it indexes stays in registers.
template <int n, class F>
EC_INLINE void repeat(const F& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, i>{}), ...);
  }(std::make_integer_sequence<int, n>{});
}

// Adds exact sums to those of all blocks. Two halves are added to the sums of their block, which
// then take the row's scale: so each takes a multiplication less. These sums need registers, and
// those of all blocks pass through memory.
template <class Math, class Half>
EC_INLINE vf32 add_scaled(Half half, vf32 exact, vf32 of_row, vf32 of_columns, vf32 sums) {
  if constexpr (Math::kHalves == 1) return fma(exact, of_row * of_columns, sums);
  if constexpr (half.value == 1) return fma(exact, of_columns, sums);
  sums = exact * of_columns;
  keep_in_register(sums);  // or this product might be the one that isn't rounded
  return sums;
}

template <class Math, Shift kShift, int Rows>
inline void run_rounded_tile(const RoundedTile& t) {
  using A = typename Math::A;
  using Acc = typename Math::Acc;
  constexpr int kL = kFloatLanes;
  constexpr int Vectors = rounded_vectors<Math, Rows>();
  constexpr int Each = Math::kPerVector;
  constexpr int Accs = Vectors * Each;
  using Row = RoundedRow<Math>;
  const Row row(t.k);
  const char* a[Rows];  // the block's records
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) a[r] = t.a + r * t.lda;
  const char* prefetch = t.prefetch;
  const char* b = t.b + t.column * 4;
  vf32 sums[Rows][Vectors] = {};
  const auto each_sum = [&](const auto& task) __attribute__((always_inline)) {
    repeat<Rows>([&](auto r) __attribute__((always_inline)) {
      repeat<Vectors>(
          [&](auto v) __attribute__((always_inline)) { task(r, v, t.sums + r * kPanel + v * kL); });
    });
  };
  const auto store_sum = [&](auto r, auto v, float* to)
                             __attribute__((always_inline)) { store(to, sums[r][v]); };
  if constexpr (Math::kHalves == 2) each_sum(store_sum);
  const auto add_half = [&](auto half, int64_t part,
                            int64_t groups) __attribute__((always_inline)) {
    vf32 weight_scales[Vectors];
    const int64_t weights = Math::kHalves == 1 ? groups * kGroupBytes : kWeightBytes<Math>;
    const char* const scales =
        b + weights + t.column * (Math::kScaleBytes - 4) + half.value * t.next_scales;
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      weight_scales[v] = Math::load_scales(scales + v * kL * Math::kScaleBytes);
    }
    Acc acc[Rows][Vectors][Each];
    repeat<Rows>([&](auto r) __attribute__((always_inline)) {
      int32_t start = 0;
      if constexpr (Math::kOffset != 0 && !Math::kLateStart && kShift == Shift::kNone) {
        std::memcpy(&start, a[r] + part + Row::kScaleAt + 4 + 4 * half.value, 4);
      }
      repeat<Accs>([&](auto v) __attribute__((always_inline)) {
        acc[r][v / Each][v % Each] = Math::start(v % Each == 0 ? start : 0);
      });
    });
    // One group, or two whose products are added together.
    const auto step = [&](auto... g) __attribute__((always_inline)) {
      const auto from = [&](int64_t group) __attribute__((always_inline)) {
        return b + ((Math::kShared ? 0 : half.value * kBlockGroups<Math>)+group) * kGroupBytes;
      };
      decltype(Math::load_b(b, half)) bv[sizeof...(g)][Accs];
      repeat<Accs>([&](auto v) __attribute__((always_inline)) {
        int i = 0;
        ((bv[i++][v] = Math::load_b(from(g) + v * Math::kColumns * 4, half)), ...);
      });
      repeat<Rows>([&](auto r) __attribute__((always_inline)) {
        const auto load_a = [&](int64_t group) __attribute__((always_inline)) {
          return Math::load_a(reinterpret_cast<const A*>(a[r] + part) +
                              half.value * kHalfInputs<Math> + group * 4);
        };
        const decltype(load_a(0)) av[] = {load_a(g)...};
        repeat<Accs>([&](auto v) __attribute__((always_inline)) {
          Acc& sum = acc[r][v / Each][v % Each];
          if constexpr (sizeof...(g) == 1) {
            Math::add_products(sum, av[0], bv[0][v]);
          } else {
            Math::add_products(sum, av[0], bv[0][v], av[1], bv[1][v]);
          }
        });
      });
    };
    if (groups == kBlockGroups<Math>) {
      // Four at once, by hand: the compiler unrolls no loop of such steps.
      if constexpr (Math::kSummed == 2) {
        for (int64_t g = 0; g < kBlockGroups<Math>; g += 8) {
          step(g, g + 4), step(g + 1, g + 5), step(g + 2, g + 6), step(g + 3, g + 7);
        }
      } else {
        for (int64_t g = 0; g < kBlockGroups<Math>; g += 4) {
          step(g), step(g + 1), step(g + 2), step(g + 3);
        }
      }
    } else {
      for (int64_t g = 0; g < groups; ++g) step(g);
    }
    // An eighth of each: starts are activations times -8.
    [[maybe_unused]] vf32 shifts[Vectors];
    if constexpr (kShift != Shift::kNone) {
      const char* const first =
          b - t.column * 4 + weights + kPanel * Math::kScaleBytes + t.next_scales;
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const int64_t column = t.column + v * kL;
        if constexpr (kShift == Shift::kZeros) {
          const char* const zeros = first + half.value * t.next_scales / 2 + column;
          using Bytes = Vector<uint8_t, kL>;
          const Bytes bytes = load<Bytes>(reinterpret_cast<const uint8_t*>(zeros));
          shifts[v] = convert<vf32>(convert<vi32>(bytes)) * broadcast(0.125f);
        } else {
          const char* const minimums = first + half.value * t.next_scales + 2 * column;
          shifts[v] = Math::load_scales(minimums) * broadcast(-0.125f);
        }
      }
    }
    repeat<Rows>([&](auto r) __attribute__((always_inline)) {
      const vf32 scale = broadcast_from<vf32>(a[r] + part + Row::kScaleAt);
      const auto start = [&]() __attribute__((always_inline)) {
        return broadcast_from<vi32>(a[r] + part + Row::kScaleAt + 4 + 4 * half.value);
      };
      repeat<Vectors>([&](auto v) __attribute__((always_inline)) {
        vi32 whole = Math::total(acc[r][v]);
        if constexpr (Math::kLateStart && kShift == Shift::kNone) whole += start();
        vf32 exact = convert<vf32>(whole);
        // All of these are whole numbers below 2^24.
        if constexpr (kShift == Shift::kZeros)
          exact = fma(convert<vf32>(start()), shifts[v], exact);
        sums[r][v] = add_scaled<Math>(half, exact, scale, weight_scales[v], sums[r][v]);
        if constexpr (kShift == Shift::kMinimums)
          sums[r][v] = fma(convert<vf32>(start()), shifts[v], sums[r][v]);
      });
    });
  };
  const auto add_block = [&](int64_t part, int64_t groups) __attribute__((always_inline)) {
    add_half(FirstHalf{}, part, groups);
    if constexpr (Math::kHalves == 2) {
      add_half(SecondHalf{}, part, groups);
      each_sum([&](auto r, auto v, float* to) __attribute__((always_inline)) {
        const vf32 scale = broadcast_from<vf32>(a[r] + part + Row::kScaleAt);
        store(to, fma(sums[r][v], scale, load(to)));
      });
    }
  };
  [[maybe_unused]] uint64_t wanted = 0;  // a bit for each of 64 blocks
  for (int64_t block = 0; block < row.blocks; ++block, b += t.block_bytes) {
    // A block of one half may end with K.
    const int64_t groups =
        Math::kHalves == 2 ? kBlockGroups<Math>
                           : std::min(kBlockGroups<Math>, (t.k - block * kRoundedBlock + 3) / 4);
    if (prefetch != nullptr) {
      for (int line = 0; line < t.prefetch_lines; ++line, prefetch += 64) {
        __builtin_prefetch(prefetch, 0, 2);  // into the second-level cache
      }
    }
    add_block(0, groups);
    if constexpr (Math::kParts > 1) {
      if (block % 64 == 0) {
        wanted = 0;
        for (int r = 0; r < Rows; ++r) {
          wanted |= row.wanted(t.a + r * t.lda, 0)[block / 64];
        }
      }
      if (wanted >> (block % 64) & 1) add_block(row.part(), groups);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) a[r] += Row::kRecord;
  }
  if constexpr (Math::kHalves == 1) each_sum(store_sum);
}

using RoundedTiles = TileTable<RoundedTile, kRoundedRows>;
template <class Math, Shift kShift, int... R>
constexpr RoundedTiles make_rounded_tiles(std::integer_sequence<int, R...>) {
  return {{run_rounded_tile<Math, kShift, R + 1>...},
          {rounded_vectors<Math, R + 1>() * kFloatLanes...}};
}
template <class Math, Shift kShift>
inline constexpr RoundedTiles kRoundedTiles =
    make_rounded_tiles<Math, kShift>(std::make_integer_sequence<int, kMostRows<Math>>{});

template <class Math>
const RoundedTiles& rounded_tiles(Shift shift) {
  if constexpr (Math::kShared) {
    if (shift == Shift::kZeros) return kRoundedTiles<Math, Shift::kZeros>;
    if (shift == Shift::kMinimums) return kRoundedTiles<Math, Shift::kMinimums>;
  }
  return kRoundedTiles<Math, Shift::kNone>;
}

}  // namespace ec
