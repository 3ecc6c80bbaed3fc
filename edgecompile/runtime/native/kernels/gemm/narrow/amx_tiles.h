// The innermost loops over the tile registers of AMX.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm/gemm_walk.h"
#include "kernels/gemm/narrow/amx_registers.h"
#include "kernels/gemm/narrow/gemm_narrow_tile.h"

namespace ec {

struct AmxBlock {
  int64_t groups;  // of a column of B
  int64_t rows;    // of a tile
  const char* a;   // 64 bytes for each step
  int64_t lda;     // bytes
  const char* b;   // the panel
  void* sums;      // [2][rows][32] elements of 4 bytes
};

// The last step of a column takes its last 16 groups, so that none is read beside the panel; what
// it shares with the step before is zero in A.
inline int64_t amx_steps(int64_t groups) { return (groups + kAmxGroups - 1) / kAmxGroups; }
EC_INLINE const char* amx_step(const AmxBlock& t, int64_t step) {
  return t.b +
         std::min(step * kAmxGroups, std::max<int64_t>(t.groups - kAmxGroups, 0)) * kGroupBytes;
}

template <int Tile>
EC_INLINE void store_sums_of(const AmxBlock& t) {
  char* const to = static_cast<char*>(t.sums) + Tile / 2 * t.rows * kGroupBytes;
  store_tile<Tile>(to + Tile % 2 * kAmxBytes, kGroupBytes);
}
EC_INLINE void zero_all_sums() {
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
}
EC_INLINE void store_all_sums(const AmxBlock& t) {
  store_sums_of<0>(t);
  store_sums_of<1>(t);
  store_sums_of<2>(t);
  store_sums_of<3>(t);
}

// Two tiles of A, the second one `distance` bytes behind the first. Each is multiplied twice, and
// so is each half of the panel: four sums, enough to cover the 52 cycles that each waits for the
// one before.
template <class Math>
inline void run_two_tiles(const AmxBlock& t, int64_t distance, StepPrefetch& prefetch) {
  const int64_t steps = amx_steps(t.groups);
  zero_all_sums();
  for (int64_t s = 0; s < steps; ++s) {
    const char* const b = amx_step(t, s);
    const char* const a = t.a + s * kAmxBytes;
    load_tile<6>(b, kGroupBytes);
    load_tile<4>(a, t.lda);
    Math::template multiply<0, 4, 6>();
    load_tile<7>(b + kAmxBytes, kGroupBytes);
    Math::template multiply<1, 4, 7>();
    load_tile<5>(a + distance, t.lda);
    Math::template multiply<2, 5, 6>();
    Math::template multiply<3, 5, 7>();
    prefetch.advance();
  }
  store_all_sums(t);
}

// One tile of A: every other step has sums of its own, to be added to the others.
template <class Math>
inline void run_one_tile(const AmxBlock& t, StepPrefetch& prefetch) {
  const int64_t steps = amx_steps(t.groups);
  const auto load = [&](auto tile, int64_t s) __attribute__((always_inline)) {
    const char* const b = amx_step(t, s);
    load_tile<6>(b, kGroupBytes);
    load_tile<tile.value>(t.a + s * kAmxBytes, t.lda);
    load_tile<7>(b + kAmxBytes, kGroupBytes);
    prefetch.advance();
  };
  zero_all_sums();
  for (int64_t s = 0; s < steps; ++s) {
    load(std::integral_constant<int, 4>{}, s);
    Math::template multiply<0, 4, 6>();
    Math::template multiply<1, 4, 7>();
    if (++s == steps) break;
    load(std::integral_constant<int, 5>{}, s);
    Math::template multiply<2, 5, 6>();
    Math::template multiply<3, 5, 7>();
  }
  store_all_sums(t);
}

}  // namespace ec
