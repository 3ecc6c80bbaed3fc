// The innermost loops of products with int8 weights: a register tile of exact sums over each block
// of kInt8Block inputs, which then are scaled and added up in single precision.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gemm_int8_math.h"
#include "gemm_narrow.h"
#include "gemm_narrow_tile.h"

namespace ec {

constexpr int64_t int8_blocks(int64_t k) { return (k + kInt8Block - 1) / kInt8Block; }
constexpr int64_t kBlockGroups = kInt8Block / 4;
// A whole block of a panel: the weights, then a scale for each column.
constexpr int64_t kBlockBytes = kBlockGroups * kGroupBytes + kPanel * 4;

// A prepared row of activations: `parts` times [blocks][kInt8Block] elements, zeros beyond K; then
// for each part a float for each block, what its integers are multiples of, 0 where the part isn't
// wanted (its values may then be anything: a whole number times 0 adds nothing); then likewise
// int32 sums to start from, if the weights get an offset.
template <class Math>
struct Int8Row {
  int64_t blocks;

  explicit Int8Row(int64_t k) : blocks(int8_blocks(k)) {}
  int64_t part() const { return blocks * kInt8Block; }  // elements
  int64_t scales_at() const {                           // bytes
    return Math::kParts * part() * static_cast<int64_t>(sizeof(typename Math::A));
  }
  int64_t starts_at() const { return scales_at() + Math::kParts * blocks * 4; }
  int64_t bytes() const {
    return starts_at() + (Math::kOffset != 0 ? Math::kParts * blocks * 4 : 0);
  }
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
  const Int8Row<Math> row(t.k);
  const auto scale_of = [&](int r, int part, int64_t block) __attribute__((always_inline)) {
    const char* const scales = t.a + r * t.lda + row.scales_at();
    return reinterpret_cast<const float*>(scales)[part * row.blocks + block];
  };
  const char* prefetch = t.prefetch;
  const char* b = t.b + t.column * 4;
  vf32 sums[Rows][Vectors] = {};
  for (int64_t block = 0; block < row.blocks; ++block, b += kBlockBytes) {
    const int64_t groups = std::min(kBlockGroups, (t.k - block * kInt8Block + 3) / 4);
    vf32 weight_scales[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const char* const scales = t.b + block * kBlockBytes + groups * kGroupBytes;
      weight_scales[v] = load(reinterpret_cast<const float*>(scales) + t.column + v * kL);
    }
    if (prefetch != nullptr) {
      for (int line = 0; line < t.prefetch_lines; ++line, prefetch += 64) {
        __builtin_prefetch(prefetch, 0, 2);  // into the second-level cache
      }
    }
    for (int part = 0; part < Math::kParts; ++part) {
      if (part > 0) {
        float wanted = 0.0f;
        for (int r = 0; r < Rows; ++r) wanted += scale_of(r, part, block);
        if (wanted == 0.0f) break;
      }
      const A* a[Rows];
      Acc acc[Rows][Vectors][Each];
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const char* const from = t.a + r * t.lda;
        a[r] = reinterpret_cast<const A*>(from) + part * row.part() + block * kInt8Block;
        int32_t start = 0;
        if constexpr (Math::kOffset != 0) {
          const char* const starts = from + row.starts_at();
          start = reinterpret_cast<const int32_t*>(starts)[part * row.blocks + block];
        }
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
          const auto av = Math::load_a(a[r] + g * 4);
#pragma GCC unroll 16
          for (int v = 0; v < Accs; ++v) {
            Acc& sum = acc[r][v / Each][v % Each];
            sum = Math::multiply_add(sum, av, bv[v]);
          }
        }
      };
      if (groups == kBlockGroups) {
#pragma GCC unroll 4
        for (int64_t g = 0; g < kBlockGroups; ++g) step(g);
      } else {
        for (int64_t g = 0; g < groups; ++g) step(g);
      }
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        const vf32 scale = broadcast(scale_of(r, part, block));
#pragma GCC unroll 16
        for (int v = 0; v < Vectors; ++v) {
          const vf32 total = convert<vf32>(Math::total(acc[r][v]));
          sums[r][v] = fma(total, scale * weight_scales[v], sums[r][v]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) store(t.sums + r * kPanel + v * kL, sums[r][v]);
  }
}

// run[rows - 1] computes that many rows and columns[rows - 1] columns, a multiple of kFloatLanes.
template <class Math>
struct Int8TileTable {
  void (*run[kInt8Rows])(const Int8Tile&);
  int columns[kInt8Rows];
  constexpr Int8TileTable() : Int8TileTable(std::make_integer_sequence<int, kInt8Rows>{}) {}

 private:
  template <int... R>
  explicit constexpr Int8TileTable(std::integer_sequence<int, R...>)
      : run{run_int8_tile<Math, R + 1>...}, columns{int8_vectors<Math, R + 1>() * kFloatLanes...} {}
};
inline constexpr Int8TileTable<Int8Math> kInt8Tiles;

}  // namespace ec
