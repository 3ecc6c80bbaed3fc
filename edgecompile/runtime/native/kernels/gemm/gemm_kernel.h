// The innermost loops: one register tile of C += A·B, written once over the vector width.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/gemm/gemm.h"
#include "math/simd.h"

namespace ec {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kVectorRegisters = 32;
#else
constexpr int kVectorRegisters = 16;
#endif

// The register tile is R rows by kTileVectors<R> vectors: all accumulators, the smaller of a row of
// B and a column of A, and one more vector stay in registers. Few rows get wide tiles, since enough
// independent sums (8) must be under way to cover the latency of a multiply-add (4 cycles at 2 per
// cycle); where even a whole panel is too narrow, several sums per element do.
constexpr int kPanelVectors = int{kPanel} / kFloatLanes;
constexpr int kTileRows = kVectorRegisters == 32 && kFloatLanes == 16 ? 12 : 6;

constexpr int widest_tile(int rows) {
  int vectors = kPanelVectors;
  while (vectors > 1 && rows * vectors + (rows < vectors ? rows : vectors) + 1 > kVectorRegisters) {
    vectors /= 2;
  }
  return vectors;
}
template <int Rows>
constexpr int kTileVectors = widest_tile(Rows);
template <int Rows>
constexpr int kTileSums = Rows * kTileVectors<Rows> >= 8   ? 1
                          : Rows * kTileVectors<Rows> >= 4 ? 2
                                                           : 4;

// A product of up to kFewRows rows adds each element up in the order in which one row alone does,
// so that no row's result depends on how many others there are. Where one row has several sums per
// element, such products have tiles of their own.
constexpr int kFewRows = 8;
constexpr int kFewSums = kTileSums<1>;
constexpr int kFewTileRows = 4;

constexpr int widest_few(int rows) {
  int vectors = kTileVectors<1>;
  while (vectors > 1 &&
         rows * vectors * kFewSums + (rows < vectors ? rows : vectors) + 1 > kVectorRegisters) {
    vectors /= 2;
  }
  return vectors;
}
template <int Rows>
constexpr int kFewVectors = widest_few(Rows);

// One element of A for a whole row of B: in all lanes, except where multiplication can take a lane.
#if defined(__aarch64__)
using Spread = float;
#else
using Spread = vf32;
#endif
EC_INLINE Spread spread(float x) {
#if defined(__aarch64__)
  return x;
#else
  return broadcast(x);
#endif
}

// sum += x·y as one instruction on this very register. Left to itself, an unrolled loop of sixteen
// sums gets copies between registers and spills from the compiler, and the loop that isn't unrolled
// spends a sixth of its instructions on itself: too many where a neighbour shares the core.
EC_INLINE void add_product(vf32& sum, Spread x, vf32 y) {
#if defined(__AVX512F__)
  asm volatile("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
#elif defined(__FMA__)
  asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y));
#elif defined(__aarch64__)
  asm volatile("fmla %0.4s, %2.4s, %1.s[0]" : "+w"(sum) : "w"(x), "w"(y));
#else
  sum = fma(x, y, sum);
  keep_in_register(sum);
#endif
}

// How far a tile prefetches: so many lines of 64 bytes for every kTileUnroll steps of k.
constexpr int kTileUnroll = 4;
constexpr int prefetch_rate(int lines) { return lines > 2 ? 4 : lines; }

struct Tile {
  int64_t k;
  const float* a;  // rows of contiguous elements
  int64_t lda;
  // A row is so many runs of k elements, part_step apart; B has k rows for each, one after the
  // other.
  int64_t parts = 1, part_step = 0;
  const float* b;  // k rows of contiguous elements, kPanel apart
  float* c;
  int64_t ldc;
  const float* bias;      // what each row of sums starts from, or null
  bool accumulate;        // added to C
  const float* residual;  // added before the store, or null
  int64_t ld_residual;
  const float* prefetch;  // memory soon needed, or null
  int prefetch_lines;     // a prefetch_rate
};

template <int Rows, int Vectors, int Sums>
inline void run_tile(const Tile& t) {
  constexpr int kL = kFloatLanes;
  static_assert(kTileUnroll % Sums == 0);
  vf32 acc[Sums][Rows][Vectors];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) {
      acc[0][r][v] = vf32{};
#pragma GCC unroll 4
      for (int s = 1; s < Sums; ++s) acc[s][r][v] = vf32{};
    }
  }
  if (t.bias != nullptr) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) acc[0][r][v] = load(t.bias + v * kL);
    }
  }

  const float* a[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) a[r] = t.a + r * t.lda;
  const float* b = t.b;
  const auto step = [&](int64_t i, const float* row, vf32(&sum)[Rows][Vectors])
                        __attribute__((always_inline)) {
                          if constexpr (Rows < Vectors) {
                            Spread av[Rows];
#pragma GCC unroll 16
                            for (int r = 0; r < Rows; ++r) av[r] = spread(a[r][i]);
#pragma GCC unroll 16
                            for (int v = 0; v < Vectors; ++v) {
                              const vf32 bv = load(row + v * kL);
#pragma GCC unroll 16
                              for (int r = 0; r < Rows; ++r) add_product(sum[r][v], av[r], bv);
                            }
                          } else {
                            vf32 bv[Vectors];
#pragma GCC unroll 16
                            for (int v = 0; v < Vectors; ++v) bv[v] = load(row + v * kL);
#pragma GCC unroll 16
                            for (int r = 0; r < Rows; ++r) {
                              const Spread av = spread(a[r][i]);
#pragma GCC unroll 16
                              for (int v = 0; v < Vectors; ++v) add_product(sum[r][v], av, bv[v]);
                            }
                          }
                        };
  int64_t i = 0;
  const auto run = [&](auto lines, const float* next,
                       int64_t distance) __attribute__((always_inline)) {
    for (; i + kTileUnroll <= t.k; i += kTileUnroll, next += distance) {
#pragma GCC unroll 4
      for (int line = 0; line < lines.value; ++line) {
        __builtin_prefetch(next + 16 * line, 0, 2);  // into the second-level cache
      }
#pragma GCC unroll 4
      for (int u = 0; u < kTileUnroll; ++u) step(i + u, b + u * kPanel, acc[u % Sums]);
      b += kTileUnroll * kPanel;
    }
  };
  for (int64_t left = t.parts - 1;; --left, i = 0) {
    // Without anything to prefetch the same line is asked for again: cheaper than another loop.
    if (t.prefetch == nullptr) {
      run(std::integral_constant<int, 1>{}, b, 0);
    } else if (t.prefetch_lines == 1) {
      run(std::integral_constant<int, 1>{}, t.prefetch, 16);
    } else if (t.prefetch_lines == 2) {
      run(std::integral_constant<int, 2>{}, t.prefetch, 32);
    } else {
      run(std::integral_constant<int, 4>{}, t.prefetch, 64);
    }
    for (; i < t.k; ++i, b += kPanel) step(i, b, acc[0]);
    if (left == 0) break;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) a[r] += t.part_step;
  }

  float* const c = t.c;
  const int64_t ldc = t.ldc;
  // Not what the sums start from: they would lose more the longer the product is.
  if (t.accumulate) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) acc[0][r][v] += load(c + r * ldc + v * kL);
    }
  }
  const float* const residual = t.residual;
  const int64_t ld_residual = t.ld_residual;
  const auto finish = [&](auto add_residual) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) {
        vf32 sum = acc[0][r][v];
#pragma GCC unroll 4
        for (int s = 1; s < Sums; ++s) sum += acc[s][r][v];
        if constexpr (add_residual.value) sum += load(residual + r * ld_residual + v * kL);
        store(c + r * ldc + v * kL, sum);
      }
    }
  };
  if (residual != nullptr) {
    finish(std::true_type{});
  } else {
    finish(std::false_type{});
  }
}

// run[rows - 1] computes that many rows and columns[rows - 1] columns, a multiple of kFloatLanes; B
// in panels of 32 columns.
template <class T, int kRows>
struct TileTable {
  void (*run[kRows])(const T&);
  int columns[kRows];
};

template <int... R>
constexpr TileTable<Tile, kTileRows> make_tiles(std::integer_sequence<int, R...>) {
  return {{run_tile<R + 1, kTileVectors<R + 1>, kTileSums<R + 1>>...},
          {kTileVectors<R + 1> * kFloatLanes...}};
}
inline constexpr auto kTiles = make_tiles(std::make_integer_sequence<int, kTileRows>{});

// Tiles of one vector, for C's last columns: the other vectors of kTiles would multiply zeros
// there. Sums have the same order.
template <int... R>
constexpr TileTable<Tile, kTileRows> make_slim_tiles(std::integer_sequence<int, R...>) {
  return {{run_tile<R + 1, 1, kTileSums<R + 1>>...}, {((void)R, kFloatLanes)...}};
}
inline constexpr auto kSlimTiles = make_slim_tiles(std::make_integer_sequence<int, kTileRows>{});

template <int... R>
constexpr TileTable<Tile, kFewTileRows> make_few_tiles(std::integer_sequence<int, R...>) {
  return {{run_tile<R + 1, kFewVectors<R + 1>, kFewSums>...},
          {kFewVectors<R + 1> * kFloatLanes...}};
}
inline constexpr auto kFewTiles = make_few_tiles(std::make_integer_sequence<int, kFewTileRows>{});

// The tiles of a product of m rows.
template <class T>
struct ChosenTiles {
  void (*const* run)(const T&);
  const int* columns;
  int64_t rows;  // of the highest

  template <int kAll, int kFew>
  ChosenTiles(int64_t m, const TileTable<T, kAll>& all, const TileTable<T, kFew>& few) {
    const bool takes_few = kFewSums > 1 && m <= kFewRows;
    run = takes_few ? few.run : all.run;
    columns = takes_few ? few.columns : all.columns;
    rows = takes_few ? kFew : kAll;
  }
};

}  // namespace ec
