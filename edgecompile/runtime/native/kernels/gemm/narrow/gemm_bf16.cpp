// B in bfloat16: expanded to single precision in registers, multiplied in pairs by vdpbf16ps or
// bfdot, or on AMX tiles.
#include "kernels/gemm/gemm_pack.h"
#include "kernels/gemm/narrow/gemm_bf16_pairs.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "kernels/gemm/narrow/gemm_narrow_run.h"
#if defined(__AMX_BF16__)
#define EC_BF16_TILES 1
#include "kernels/gemm/narrow/gemm_amx.h"
#endif

namespace ec {
namespace {

struct Bf16Math {
  using A = float;
  static constexpr int kDepth = 2;
  static constexpr int kParts = 2;
  static constexpr int64_t kSerialWork = 200'000;
  static constexpr int64_t kMemoryRows = 4;
  static constexpr int64_t kTaskWork = 600'000;

  EC_INLINE static vf32 load_b(const char* b, int part) {
#if defined(__x86_64__)
    asm volatile("" : "+r"(b));  // each part loads again: registers are scarcer than loads
#endif
    const vu32 pairs = load<vu32>(reinterpret_cast<const uint32_t*>(b));
    if (part == 0) return bits_as<vf32>(pairs << 16);
    vf32 high = bits_as<vf32>(pairs >> 16);
    keep_in_register(high);  // two shifts, since a mask would take a register
    return bits_as<vf32>(bits_as<vu32>(high) << 16);
  }
  EC_INLINE static Spread load_a(const float* a, int part) { return spread(a[part]); }
#if defined(__aarch64__)
  EC_INLINE static vf32 multiply_add(vf32 acc, Spread a, vf32 b) {
    add_product(acc, a, b);
    return acc;
  }
  EC_INLINE static void keep(vf32&) {}  // the instruction is opaque as it is
#else
  EC_INLINE static vf32 multiply_add(vf32 acc, vf32 a, vf32 b) { return fma(a, b, acc); }
  EC_INLINE static void keep(vf32& v) { keep_in_register(v); }
#endif
};

#if EC_BF16_TILES
struct Bf16Tiles {
  using A = uint16_t;
  static constexpr int64_t kDepth = 2;
  static constexpr int64_t kSerialWork = 1'600'000;
  static constexpr int64_t kMemoryRows = 32;

  template <int C, int A, int B>
  EC_INLINE static void multiply() {
    multiply_bf16_tiles<C, A, B>();
  }
  static void add_halves(float* to, const float* from, int64_t n) {
    for (int64_t i = 0; i < n; i += kFloatLanes) store(to + i, load(to + i) + load(from + i));
  }
};
#endif

}  // namespace

bool bf16_rounds_a() {
#if EC_BF16_TILES
  return amx_permitted();
#elif EC_BF16_PAIRS || EC_BF16_DOTS
  return pairs_pay();
#else
  return false;
#endif
}

int64_t packed_elements_bf16(int64_t n, int64_t k) {
  return (n + kPanel - 1) / kPanel * kPanel * ((k + 1) / 2) * 2;
}

void gemm_bf16(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
               const uint16_t* b_packed, float* c, int64_t ldc, const Epilogue& epilogue) {
  const char* const b = reinterpret_cast<const char*>(b_packed);
  const int64_t panel_bytes = (k + 1) / 2 * kGroupBytes;
#if EC_BF16_TILES
  if (amx_permitted()) {
    const AmxRow<Bf16Tiles> row(k);
    NarrowProduct<Bf16Tiles> p{m, n, k, nullptr, 0, b, panel_bytes, c, ldc, epilogue};
    run_amx(p, [&](int64_t r0, int64_t rows, uint16_t* to, int64_t ld) {
      for (int64_t r = 0; r < rows; ++r, to += ld) {
        row.write(k, to, [&](int64_t from, uint16_t* part, int64_t count) {
          round_to_bf16(a + (r0 + r) * lda + from, count, part);
        });
      }
    });
    return;
  }
#endif
#if EC_BF16_PAIRS || EC_BF16_DOTS
  if (pairs_pay()) {
    NarrowProduct<Bf16Pairs> p{m, n, k, nullptr, 0, b, panel_bytes, c, ldc, epilogue};
    run_prepared(p, [&](int64_t r0, int64_t rows, uint16_t* to, int64_t ld) {
      for (int64_t r = 0; r < rows; ++r, to += ld) {
        round_to_pairs(a + (r0 + r) * lda, k, to);
      }
    });
    return;
  }
#endif
  NarrowProduct<Bf16Math> p{m, n, k, nullptr, 0, b, panel_bytes, c, ldc, epilogue};
  // Rows that lie a multiple of a page apart compete for the same few places of the first cache.
  if (m > 1 && lda % 1024 == 0 && k * 4 > kNarrowRowBytes && n > kPanel) {
    run_prepared(p, [&](int64_t r0, int64_t rows, float* to, int64_t ld) {
      copy_rows(a + r0 * lda, lda, 1, rows, k, 1.0f, to, ld);
    });
  } else {
    p.a = a;
    p.lda = lda;
    run_narrow(p);
  }
}

}  // namespace ec
