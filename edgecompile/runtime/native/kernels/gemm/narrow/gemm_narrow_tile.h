// The innermost loops of products with a narrow B: one register tile, written once over the
// arithmetic, "Math", that it is made of. A Math has
//   A                element type of A as prepared
//   kDepth           k steps of one group: 4 bytes of each column of B
//   kParts           multiplications that a group takes; the p-th needs
//   B load_b(b, p)   a vector of columns of B
//   V load_a(a, p)   the same group of a row of A, for all of them
//   vf32 multiply_add(sums, a, b)
//   keep(sums)       makes them stay in their register
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/gemm/gemm_kernel.h"

namespace ec {

constexpr int64_t kGroupBytes = 4 * 32;  // of one panel

template <class Math>
struct NarrowTile {
  int64_t groups;
  bool half;                  // and the first part of one group more
  const typename Math::A* a;  // rows of contiguous elements
  int64_t lda;
  const char* b;  // the first column of the first group
  float* sums;    // rows that lie ld_sums apart
  int64_t ld_sums;
  bool accumulate;       // add to what is there
  const char* prefetch;  // memory soon needed, or null
  int prefetch_lines;    // of 64 bytes, for every kNarrowUnroll groups
};

constexpr int kNarrowUnroll = 4;

template <class Math, int Rows, int Vectors, int Sums>
inline void run_narrow_tile(const NarrowTile<Math>& t) {
  constexpr int kL = kFloatLanes;
  constexpr int kParts = Math::kParts;
  vf32 acc[Sums][Rows][Vectors];
#pragma GCC unroll 4
  for (int s = 0; s < Sums; ++s) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < Vectors; ++v) acc[s][r][v] = vf32{};
    }
  }
  const typename Math::A* a[Rows];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) a[r] = t.a + r * t.lda;
  const char* b = t.b;
  const char* prefetch = t.prefetch;

  // Part p of the group u·kGroupBytes behind b.
  const auto step = [&](int u, int p, int64_t i, vf32(&sum)[Rows][Vectors])
                        __attribute__((always_inline)) {
                          const char* row = b + u * kGroupBytes;
                          const int64_t k = (i + u) * Math::kDepth;
                          if constexpr (Rows < Vectors) {
                            decltype(Math::load_a(a[0], 0)) av[Rows];
#pragma GCC unroll 16
                            for (int r = 0; r < Rows; ++r) av[r] = Math::load_a(a[r] + k, p);
#pragma GCC unroll 16
                            for (int v = 0; v < Vectors; ++v) {
                              const auto bv = Math::load_b(row + v * kL * 4, p);
#pragma GCC unroll 16
                              for (int r = 0; r < Rows; ++r) {
                                sum[r][v] = Math::multiply_add(sum[r][v], av[r], bv);
                              }
                            }
                          } else {
                            decltype(Math::load_b(b, 0)) bv[Vectors];
#pragma GCC unroll 16
                            for (int v = 0; v < Vectors; ++v) {
                              bv[v] = Math::load_b(row + v * kL * 4, p);
                            }
#pragma GCC unroll 16
                            for (int r = 0; r < Rows; ++r) {
                              const auto av = Math::load_a(a[r] + k, p);
#pragma GCC unroll 16
                              for (int v = 0; v < Vectors; ++v) {
                                sum[r][v] = Math::multiply_add(sum[r][v], av, bv[v]);
                              }
                            }
                          }
#pragma GCC unroll 16
                          for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
                            for (int v = 0; v < Vectors; ++v) Math::keep(sum[r][v]);
                          }
                        };
  int64_t i = 0;
  for (; i + kNarrowUnroll <= t.groups; i += kNarrowUnroll) {
    if (prefetch != nullptr) {
      for (int line = 0; line < t.prefetch_lines; ++line, prefetch += 64) {
        __builtin_prefetch(prefetch, 0, 2);  // into the second-level cache
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < kNarrowUnroll; ++u) {
#pragma GCC unroll 2
      for (int p = 0; p < kParts; ++p) step(u, p, i, acc[(u * kParts + p) % Sums]);
    }
    b += kNarrowUnroll * kGroupBytes;
  }
  for (; i < t.groups; ++i, b += kGroupBytes) {
#pragma GCC unroll 2
    for (int p = 0; p < kParts; ++p) step(0, p, i, acc[p % Sums]);
  }
  if (kParts > 1 && t.half) step(0, 0, i, acc[0]);

#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < Vectors; ++v) {
      vf32 sum = acc[0][r][v];
#pragma GCC unroll 4
      for (int s = 1; s < Sums; ++s) sum += acc[s][r][v];
      float* const to = t.sums + r * t.ld_sums + v * kL;
      store(to, t.accumulate ? sum + load(to) : sum);
    }
  }
}

template <class Math, int... R>
constexpr TileTable<NarrowTile<Math>, kTileRows> make_narrow_tiles(
    std::integer_sequence<int, R...>) {
  return {{run_narrow_tile<Math, R + 1, kTileVectors<R + 1>, kTileSums<R + 1>>...},
          {kTileVectors<R + 1> * kFloatLanes...}};
}
template <class Math>
inline constexpr auto kNarrowTiles =
    make_narrow_tiles<Math>(std::make_integer_sequence<int, kTileRows>{});

template <class Math, int... R>
constexpr TileTable<NarrowTile<Math>, kFewTileRows> make_few_narrow_tiles(
    std::integer_sequence<int, R...>) {
  return {{run_narrow_tile<Math, R + 1, kFewVectors<R + 1>, kFewSums>...},
          {kFewVectors<R + 1> * kFloatLanes...}};
}
template <class Math>
inline constexpr auto kFewNarrowTiles =
    make_few_narrow_tiles<Math>(std::make_integer_sequence<int, kFewTileRows>{});

}  // namespace ec
