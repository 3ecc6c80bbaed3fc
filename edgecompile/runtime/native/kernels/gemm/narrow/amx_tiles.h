// The tile registers of AMX: asking for them, their shapes, and the innermost loops over them.
//
// A tile has up to 16 rows of 64 bytes. A product C += A·B takes 16 rows of A, 16 groups (of 4
// bytes: 2 bfloat16 or 4 int8) and 16 columns, so that half of a panel of a packed B (see
// gemm_narrow.h) is a column of tiles as it is in memory, its rows 128 bytes apart. "Intel
// Architecture Instruction Set Extensions Programming Reference", chapter 3.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kernels/gemm/narrow/gemm_narrow_tile.h"

namespace ec {

// Linux gives tile registers to processes that ask for them: arch_prctl(ARCH_REQ_XCOMP_PERM,
// XFEATURE_XTILEDATA), once for all threads, those to come and those of forked children included
// (Documentation/arch/x86/xstate.rst). It may refuse although the CPU has them: a sandbox without
// the call, or a thread with an alternate signal stack too small for the larger frames. That can't
// be known before the process that computes asks, and asking can't be taken back. So the CPU probe
// only says that the CPU and the system have tiles, and products ask: refused, they run the AVX-512
// code, which is in the variant anyway for few rows.
inline bool amx_permitted() {
  constexpr int kUnknown = 0, kYes = 1, kNo = 2;
  static std::atomic<int> answer{kUnknown};
  int known = answer.load(std::memory_order_relaxed);
  if (known == kUnknown) {  // asking twice does no harm
    known = syscall(SYS_arch_prctl, 0x1023, 18) == 0 ? kYes : kNo;
    answer.store(known, std::memory_order_relaxed);
  }
  return known == kYes;
}

constexpr int64_t kAmxRows = 16;    // of a tile of A and C
constexpr int64_t kAmxGroups = 16;  // of a tile of A and B
constexpr int64_t kAmxBytes = 64;   // of a tile's row

// The shapes are a thread's own. While one lives, tiles 0 to 3 hold sums of two tiles of A (4 and
// 5) with both halves of a panel (6 and 7). Releasing them leaves nothing for the system to save
// when it switches threads.
class AmxShapes {
 public:
  AmxShapes(int64_t rows, int64_t groups) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    static_assert(sizeof shapes == 64);
    for (int i = 0; i < 8; ++i) {
      const bool is_a = i == 4 || i == 5, is_b = i > 5;
      shapes.rows[i] = static_cast<uint8_t>(is_b ? groups : rows);
      shapes.row_bytes[i] = static_cast<uint16_t>(is_a ? 4 * groups : kAmxBytes);
    }
    asm volatile("ldtilecfg %0" ::"m"(shapes));  // the intrinsic names 8 bytes as read, not 64
  }
  ~AmxShapes() { asm volatile("tilerelease"); }
  AmxShapes(const AmxShapes&) = delete;
  AmxShapes& operator=(const AmxShapes&) = delete;
};

// Intrinsics want the tile's number as a literal; and those that load don't say that they read.
template <int Tile>
EC_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
}
template <int Tile>
EC_INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
}
template <int Tile>
EC_INLINE void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
}

// Memory soon needed, a few lines for each step.
struct AmxPrefetch {
  const char* next;
  const char* end;
  int64_t lines;

  EC_INLINE void advance() {
    if (next >= end) return;
    for (int64_t i = 0; i < lines; ++i, next += 64) __builtin_prefetch(next, 0, 2);
  }
};

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
inline void run_two_tiles(const AmxBlock& t, int64_t distance, AmxPrefetch& prefetch) {
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
inline void run_one_tile(const AmxBlock& t, AmxPrefetch& prefetch) {
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
