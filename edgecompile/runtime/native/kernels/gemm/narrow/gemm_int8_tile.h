// The innermost loops of products with int8 weights: a register tile of exact sums over each block
// of kInt8Block inputs, which then are scaled and added up in single precision.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/gemm/narrow/gemm_int8_math.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "kernels/gemm/narrow/gemm_narrow_tile.h"

namespace ec {

constexpr int64_t int8_blocks(int64_t k) { return (k + kInt8Block - 1) / kInt8Block; }
constexpr int64_t kBlockGroups = kInt8Block / 4;
// A whole block of a panel: the weights, then a scale for each column.
constexpr int64_t kBlockBytes = kBlockGroups * kGroupBytes + kPanel * 4;

// A prepared row of activations: `kParts` times a record for each block. It holds kInt8Block
// elements, zeros beyond K; then as a float what these are multiples of, 0 in a part that isn't
// wanted (its elements may then be anything: a whole number times 0 adds nothing); then, if the
// weights get an offset, an int32 to start sums from. Behind these, where there are two parts, a
// bit for each block whose second one is wanted.
template <class Math>
struct Int8Row {
  static constexpr int64_t kScaleAt = kInt8Block * static_cast<int64_t>(sizeof(typename Math::A));
  static constexpr int64_t kStartAt = kScaleAt + 4;
  static constexpr int64_t kRecord = kStartAt + (Math::kOffset != 0 ? 4 : 0);
  int64_t blocks;

  explicit Int8Row(int64_t k) : blocks(int8_blocks(k)) {}
  int64_t part() const { return blocks * kRecord; }  // bytes
  int64_t wanted_at() const { return (Math::kParts * part() + 7) / 8 * 8; }
  int64_t bytes() const { return wanted_at() + (Math::kParts > 1 ? (blocks + 63) / 64 * 8 : 0); }
};

constexpr int kInt8Rows = 6;

struct Int8Tile {
  int64_t k;
  const char* a;  // prepared rows
  int64_t lda;    // bytes
  const char* b;  // a panel, or its columns from one that a vector begins with
  int64_t column;
  float* sums;           // rows that lie kPanel apart
  const char* prefetch;  // memory soon needed, or null
  int prefetch_lines;    // of 64 bytes, for each block
};

// As in gemm_kernel.h: the sums, the smaller of a row of B and a column of A, and what each step
// needs beside them stay in registers.
template <class Math, int Rows>
constexpr int int8_vectors() {
  constexpr int kRegisters = sizeof(typename Math::Acc) / kVectorBytes * Math::kPerVector;
  int vectors = kPanelVectors;
  while (vectors > 1) {
    const int of_b = vectors * Math::kPerVector;
    if (Rows * vectors * kRegisters + (Rows < of_b ? Rows : of_b) + Math::kSpare <=
        kVectorRegisters) {
      break;
    }
    vectors /= 2;
  }
  return vectors;
}

template <class Math, int Rows>
inline void run_int8_tile(const Int8Tile& t) {
  using A = typename Math::A;
  using Acc = typename Math::Acc;
  constexpr int kL = kFloatLanes;
  constexpr int Vectors = int8_vectors<Math, Rows>();
  constexpr int Each = Math::kPerVector;
  constexpr int Accs = Vectors * Each;
  using Row = Int8Row<Math>;
  const Row row(t.k);
  const char* a[Rows];  // the block's records
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) a[r] = t.a + r * t.lda;
  const char* prefetch = t.prefetch;
  const char* b = t.b + t.column * 4;
  vf32 sums[Rows][Vectors] = {};
  const auto add_block = [&](int64_t part, int64_t groups) __attribute__((always_inline)) {
    // Read now: behind the block's products they would be waited for.
    vf32 weight_scales[Vectors];
    const float* const scales = reinterpret_cast<const float*>(b + groups * kGroupBytes);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) weight_scales[v] = load(scales + v * kL);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) keep_in_register(weight_scales[v]);
    Acc acc[Rows][Vectors][Each];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      int32_t start = 0;
      if constexpr (Math::kOffset != 0) std::memcpy(&start, a[r] + part + Row::kStartAt, 4);
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) {
#pragma GCC unroll 2
        for (int x = 0; x < Each; ++x) acc[r][v][x] = Math::start(x == 0 ? start : 0);
      }
    }
    const auto step = [&](int64_t g) __attribute__((always_inline)) {
      const char* const from = b + g * kGroupBytes;
      decltype(Math::load_b(from)) bv[Accs];
#pragma GCC unroll 16
      for (int v = 0; v < Accs; ++v) bv[v] = Math::load_b(from + v * Math::kColumns * 4);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const auto av = Math::load_a(reinterpret_cast<const A*>(a[r] + part) + g * 4);
#pragma GCC unroll 16
        for (int v = 0; v < Accs; ++v) {
          Math::add_products(acc[r][v / Each][v % Each], av, bv[v]);
        }
      }
    };
    if (groups == kBlockGroups) {
      // Four at once, by hand: the compiler unrolls no loop of such steps.
      for (int64_t g = 0; g < kBlockGroups; g += 4) step(g), step(g + 1), step(g + 2), step(g + 3);
    } else {
      for (int64_t g = 0; g < groups; ++g) step(g);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const vf32 scale = broadcast_from<vf32>(a[r] + part + Row::kScaleAt);
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) {
        const vf32 total = convert<vf32>(Math::total(acc[r][v]));
        sums[r][v] = fma(total, scale * weight_scales[v], sums[r][v]);
      }
    }
  };
  [[maybe_unused]] uint64_t wanted = 0;  // a bit for each of 64 blocks
  for (int64_t block = 0; block < row.blocks; ++block, b += kBlockBytes) {
    const int64_t groups = std::min(kBlockGroups, (t.k - block * kInt8Block + 3) / 4);
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
          wanted |=
              reinterpret_cast<const uint64_t*>(t.a + r * t.lda + row.wanted_at())[block / 64];
        }
      }
      if (wanted >> (block % 64) & 1) add_block(row.part(), groups);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) a[r] += Row::kRecord;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) store(t.sums + r * kPanel + v * kL, sums[r][v]);
  }
}

template <class Math, int... R>
constexpr TileTable<Int8Tile, kInt8Rows> make_int8_tiles(std::integer_sequence<int, R...>) {
  return {{run_int8_tile<Math, R + 1>...}, {int8_vectors<Math, R + 1>() * kFloatLanes...}};
}
inline constexpr auto kInt8Tiles =
    make_int8_tiles<Int8Math>(std::make_integer_sequence<int, kInt8Rows>{});

}  // namespace ec
