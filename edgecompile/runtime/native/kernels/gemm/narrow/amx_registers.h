// The tile registers of AMX: asking for them, their shapes, and the instructions that use them.
//
// A tile has up to 16 rows of 64 bytes. A product C += A·B takes 16 rows of A, 16 groups (of 4
// bytes: 2 bfloat16 or 4 int8) and 16 columns, so that half of a panel of a packed B (see
// gemm_narrow.h) is a column of tiles as it is in memory, its rows 128 bytes apart. "Intel
// Architecture Instruction Set Extensions Programming Reference", chapter 3.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "math/simd.h"

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
// Rows lie kTimes·stride bytes apart.
template <int Tile, int kTimes = 1>
EC_INLINE void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,%c3), %%tmm%c2" ::"r"(from), "r"(stride), "i"(Tile), "i"(kTimes)
               : "memory");
}
template <int Tile>
EC_INLINE void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
}

// C += A·B of pairs of bfloat16 with float sums, and of four int8 with int32 sums.
template <int C, int A, int B>
EC_INLINE void multiply_bf16_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B>
EC_INLINE void multiply_int8_tiles() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace ec
