// B in int8, a scale for each column; A in int16, or in two parts of int8 for tiles, a scale for
// each row, found anew for each call.
#include "gemm_int8_math.h"
#include "gemm_narrow.h"
#include "gemm_narrow_run.h"
#if defined(__AMX_INT8__)
#include "gemm_amx.h"
#endif

namespace ec {
namespace {

constexpr int kL = kFloatLanes;
constexpr int32_t kInfinity = 0x7f800000;

// The bits of the largest magnitude. As integers, infinity's exceed every number's and a NaN's
// exceed infinity's, so that neither is lost.
int32_t largest_magnitude(const float* x, int64_t n) {
  vi32 most{};
  const auto take = [&](vf32 v)
                        __attribute__((always_inline)) { most = max(most, bits_as<vi32>(abs(v))); };
  int64_t i = 0;
  for (; i + kL <= n; i += kL) take(load(x + i));
  if (i < n) take(load_partial(x + i, n - i));
  return reduce_max(most);
}

// The nearest whole numbers of magnitudes below 2^22, ties to even.
EC_INLINE vi32 round_to_int(vf32 x) {
  keep_in_register(x);  // a product is rounded first, so that every CPU gets the same numbers
  constexpr float kShift = 0x1.8p23f;
  const vf32 shift = opaque_constant(broadcast(kShift));
  return bits_as<vi32>(x + shift) - bits_as<vi32>(shift);
}

// One row as whole multiples, at most `limit`, of the scale that it returns.
float quantize_row(const float* x, int64_t k, int32_t limit, int16_t* q) {
  const int32_t bits = largest_magnitude(x, k);
  const int64_t padded = (k + 3) / 4 * 4;
  if (bits == 0 || bits >= kInfinity) {
    std::fill_n(q, padded, int16_t{0});
    return bits == 0 ? 0.0f : __builtin_nanf("");
  }
  float most;
  std::memcpy(&most, &bits, sizeof most);
  // Below 2^-113 the factor would overflow; there it stays a power of two whose inverse is exact.
  const bool tiny = most < 0x1p-113f;
  const float factor = tiny ? 0x1p126f : static_cast<float>(limit) / most;
  int64_t i = 0;
  for (; i + kL <= k; i += kL) {
    const vi32 whole = round_to_int(load(x + i) * factor);
    store(q + i, convert<Vector<int16_t, kL>>(whole));
  }
  for (; i < k; ++i) q[i] = static_cast<int16_t>(__builtin_lrintf(x[i] * factor));
  for (; i < padded; ++i) q[i] = 0;
  return tiny ? 0x1p-126f : most / static_cast<float>(limit);
}

#if defined(__AMX_INT8__)
// q = 128·high + low: rows of 13 bits and a sign in two int8, so that tiles give the same exact
// sums.
struct Int8Tiles {
  using A = int8_t;
  using Sum = int32_t;
  static constexpr int64_t kDepth = 4;
  static constexpr int kPlanes = 2;
  static constexpr bool kScales = true;
  static constexpr int64_t kSerialWork = 1'600'000;
  static constexpr int64_t kMemoryRows = 16;

  template <int C, int A, int B>
  EC_INLINE static void multiply() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  static void add_planes(int32_t* high, const int32_t* low, int64_t n) {
    for (int64_t i = 0; i < n; i += kL) {  // 128·high may wrap, and the sum wraps back
      const vu32 sums = ((vu32)load<vi32>(high + i) << 7) + (vu32)load<vi32>(low + i);
      store(high + i, (vi32)sums);
    }
  }
};
// One row is read by vectors as fast, and needs no change of shapes.
constexpr int64_t kLeastTileRows = 2;

void split_parts(const int16_t* q, int64_t n, int8_t* high, int8_t* low) {
  for (int64_t i = 0; i < n; ++i) {
    high[i] = static_cast<int8_t>((q[i] + 64) >> 7);
    low[i] = static_cast<int8_t>(((q[i] + 64) & 127) - 64);
  }
}
#endif

}  // namespace

int64_t packed_elements_int8(int64_t n, int64_t k) {
  return (n + kPanel - 1) / kPanel * ((k + 3) / 4 * kGroupBytes + 2 * kPanel * 4);
}

int32_t int8_row_limit(int64_t k) {
  int bits = 13;
  while (bits > 1 && k * 127 >= int64_t{1} << (31 - bits)) --bits;
  return (1 << bits) - 1;
}

void gemm_int8(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const int8_t* b_packed,
               float* c, int64_t ldc, const Epilogue& epilogue) {
  const char* const b = reinterpret_cast<const char*>(b_packed);
  const int64_t panel_bytes = (k + 3) / 4 * kGroupBytes + 2 * kPanel * 4;
  const int32_t limit = int8_row_limit(k);
#if defined(__AMX_INT8__)
  if (m >= kLeastTileRows && amx_permitted()) {
    const AmxRow<Int8Tiles> row(k);
    NarrowProduct<Int8Tiles> p{m, n, k, nullptr, 0, nullptr, b, panel_bytes, c, ldc, epilogue};
    run_amx(p, [&](int64_t r0, int64_t rows, int8_t* to, int64_t ld, float* scales) {
      static thread_local Scratch t_row;
      int16_t* const q = reinterpret_cast<int16_t*>(t_row.get((k + 3) / 4 * 2));
      for (int64_t r = 0; r < rows; ++r, to += ld) {
        scales[r] = quantize_row(a + (r0 + r) * lda, k, limit, q);
        row.write(k, to, [&](int64_t from, int8_t* part, int64_t count) {
          split_parts(q + from, count, part, part + row.elements());
        });
      }
    });
    return;
  }
#endif
  NarrowProduct<Int8Math> p{m, n, k, nullptr, 0, nullptr, b, panel_bytes, c, ldc, epilogue};
  run_prepared(p, [&](int64_t r0, int64_t rows, int16_t* to, int64_t ld, float* scales) {
    for (int64_t r = 0; r < rows; ++r) {
      scales[r] = quantize_row(a + (r0 + r) * lda, k, limit, to + r * ld);
    }
  });
}

}  // namespace ec
