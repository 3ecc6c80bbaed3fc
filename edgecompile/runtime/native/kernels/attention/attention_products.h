// The two products of attention, of a panel of keys or values with a tile of queries: in single
// precision, or of operands rounded to bfloat16. A "Products" has
//   kExact                    whether operands stay as they are
//   kPadded                   scores are read in multiples of this
//   row_floats(dim, block)    memory for copies of a tile's rows
//   pack_keys                 up to 32 keys to a panel of at most [dim][32] words
//   pack_values               up to 32 columns of values to a panel of at most [keys][32] words
//   score                     scores [rows][keys] of a tile's queries
//   weigh_row                 weights of the keys, from the scores of one of the tile's rows
//   weigh                     weights · values of a panel
#pragma once

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cache.h"
#include "kernels/attention/attention_softmax.h"
#include "kernels/gemm/gemm_kernel.h"
#include "kernels/gemm/gemm_pack.h"
#include "kernels/gemm/narrow/gemm_bf16_pairs.h"

namespace ec {

struct FloatProducts {
  static constexpr bool kExact = true;
  static constexpr int64_t kPadded = kFloatLanes;
  static int64_t row_floats(int64_t, int64_t) { return 0; }

  static void pack_keys(const AttentionArgs& a, const float* k, int64_t keys, float*, float* to) {
    pack_panel(k, 1, a.k_strides[2], a.dim, keys, a.scale, to);
  }
  static void pack_values(const float* v, int64_t stride, int64_t keys, int64_t columns,
                          float* to) {
    pack_panel(v, stride, 1, keys, columns, 1.0f, to);
  }
  static void score(const AttentionArgs& a, const float* q, int64_t rows, const float* panels,
                    int64_t keys, float*, float* scores, int64_t ld) {
    for (int64_t j = 0; j < keys; j += kPanel) {
      multiply(q, a.q_strides[2], rows, panels + j * a.dim, a.dim, std::min(kPanel, keys - j),
               scores + j, ld);
    }
  }
  static void weigh_row(float* s, int64_t padded, int64_t keys, float top, RowState& row, int64_t,
                        float*) {
    weigh_scores<1>(
        s, padded, top, row, [](vf32 x) __attribute__((always_inline)) { return vexp2_normal(x); },
        [&](int64_t j, const vf32(&w)[1]) __attribute__((always_inline)) { store(s + j, w[0]); });
    std::fill(s + std::min(keys, padded), s + keys, 0.0f);
  }
  static void weigh(const float* weights, int64_t ld, int64_t rows, const float* panel,
                    int64_t keys, int64_t columns, const float*, float* sums) {
    multiply(weights, ld, rows, panel, keys, columns, sums, kPanel);
  }

 private:
  static void multiply(const float* a, int64_t lda, int64_t rows, const float* panel, int64_t depth,
                       int64_t columns, float* c, int64_t ldc) {
    Tile t{};
    t.k = depth;
    t.a = a;
    t.lda = lda;
    t.ldc = ldc;
    const int width = kTiles.columns[rows - 1];
    for (int64_t j = 0; j < columns; j += width) {
      t.b = panel + j;
      t.c = c + j;
      kTiles.run[rows - 1](t);
    }
  }
};

#if EC_BF16_PAIRS
struct PairProducts {
  static constexpr bool kExact = false;
  static constexpr int64_t kPadded = 2 * kFloatLanes;
  static int64_t row_floats(int64_t dim, int64_t block) {
    return std::max<int64_t>(kTileRows, kPanel) * ld_pairs(std::max(dim, block)) / 2;
  }

  static void pack_keys(const AttentionArgs& a, const float* k, int64_t keys, float* copy,
                        float* to) {
    uint16_t* const rounded = reinterpret_cast<uint16_t*>(copy);
    const int64_t ld = ld_pairs(a.dim);
    for (int64_t j = 0; j < kPanel; ++j) {  // columns beyond the keys are computed, and unused
      fetch_ahead<kAhead>(k + j * a.k_strides[2], a.k_strides[2], keys - 1 - j, a.dim);
      round_to_pairs(k + std::min(j, keys - 1) * a.k_strides[2], a.dim, rounded + j * ld);
    }
    transpose_words(copy, ld / 2, kPanel, (a.dim + 1) / 2, to, kPanel);
  }
  static void pack_values(const float* v, int64_t stride, int64_t keys, int64_t columns,
                          float* to) {
    char* out = reinterpret_cast<char*>(to);
    const auto pack = [&](int64_t j, const auto& read) __attribute__((always_inline)) {
      const float* const row = v + j * stride;
      for (int64_t c = 0; c < kPanel; c += kFloatLanes, out += sizeof(vu32)) {
        const vf32 odd = j + 1 < keys ? read(row + stride + c, c) : vf32{};
        const vu32 pairs = interleave(read(row + c, c), odd);
        std::memcpy(out, &pairs, sizeof pairs);
      }
    };
    if (columns == kPanel) {
      for (int64_t j = 0; j < keys; j += 2) {
        fetch_ahead<kAhead>(v + j * stride, stride, keys - 1 - j, kPanel);
        fetch_ahead<kAhead>(v + (j + 1) * stride, stride, keys - 2 - j, kPanel);
        pack(j, [](const float* x, int64_t) __attribute__((always_inline)) { return load(x); });
      }
    } else {
      for (int64_t j = 0; j < keys; j += 2) {
        pack(j, [&](const float* x, int64_t c) __attribute__((always_inline)) {
          return load_partial(x, std::max<int64_t>(0, columns - c));
        });
      }
    }
  }
  static void score(const AttentionArgs& a, const float* q, int64_t rows, const float* panels,
                    int64_t keys, float* copy, float* scores, int64_t ld) {
    uint16_t* const rounded = reinterpret_cast<uint16_t*>(copy);
    for (int64_t r = 0; r < rows; ++r) {
      uint16_t* const to = rounded + r * ld_pairs(a.dim);
      alignas(64) float scaled[kScaled];
      for (int64_t d = 0; d < a.dim; d += kScaled) {
        const int64_t n = std::min(kScaled, a.dim - d);
        for (int64_t i = 0; i < n; ++i) scaled[i] = q[r * a.q_strides[2] + d + i] * a.scale;
        round_to_pairs(scaled, n, to + d);
      }
    }
    for (int64_t j = 0; j < keys; j += kPanel) {
      multiply(rounded, ld_pairs(a.dim), rows, panels + j * a.dim, a.dim,
               std::min(kPanel, keys - j), scores + j, ld);
    }
  }
  static void weigh_row(float* s, int64_t padded, int64_t keys, float top, RowState& row, int64_t r,
                        float* copy) {
    uint16_t* const to = reinterpret_cast<uint16_t*>(copy) + r * ld_pairs(keys);
    weigh_scores<2>(
        s, padded, top, row, [](vf32 x) __attribute__((always_inline)) { return coarse_power(x); },
        [&](int64_t j, const vf32(&w)[2]) __attribute__((always_inline)) {
          const __m512bh pairs = _mm512_cvtne2ps_pbh((__m512)w[1], (__m512)w[0]);
          std::memcpy(to + j, &pairs, sizeof pairs);
        });
    // Pairs are multiplied: beside an odd last one stands a zero, too.
    std::fill(to + std::min(keys, padded), to + (keys + 1) / 2 * 2, uint16_t{0});
  }
  static void weigh(const float*, int64_t, int64_t rows, const float* panel, int64_t keys,
                    int64_t columns, const float* copy, float* sums) {
    const uint16_t* const rounded = reinterpret_cast<const uint16_t*>(copy);
    multiply(rounded, ld_pairs(keys), rows, panel, keys / 2 * 2, columns, sums, kPanel);
    if (keys % 2 == 0) return;
    // The partner of the last key is one that these queries may not see: it might be a NaN.
    alignas(64) float last[kPanel];
    for (int64_t c = 0; c < kPanel; c += kFloatLanes) {
      const vu32 pairs = bits_as<vu32>(load(panel + keys / 2 * kPanel + c));
      store(last + c, bits_as<vf32>(pairs & 0xffffu));
    }
    multiply(rounded + keys - 1, ld_pairs(keys), rows, last, 1, columns, sums, kPanel, true);
  }

 private:
  static constexpr int64_t kScaled = 256;

  // Elements from one row to the next: whole cache lines.
  static int64_t ld_pairs(int64_t n) { return (n + 31) / 32 * 32; }

  static constexpr int64_t kAhead = 10;

  // 2^x, off by up to 2^-13.7 of itself; scripts/fit_vecmath.py: exp2_coarse_f32.
  EC_INLINE static vf32 coarse_power(vf32 x) {
    constexpr float q[] = {0.999925196f, 0.69583416f, 0.22606492f, 0.0780264065f};
    constexpr int kDown = 1;  // the whole part is what _mm512_scalef_ps takes: floor(x)
    const vf32 part = (vf32)_mm512_reduce_ps((__m512)x, kDown);
    return (vf32)_mm512_scalef_ps((__m512)polynomial(part, q), (__m512)x);
  }

  // Words of which the lower halves are `even`, the upper ones `odd`.
  EC_INLINE static vu32 interleave(vf32 even, vf32 odd) {
    using Words = Vector<uint16_t, 2 * kFloatLanes>;
    const Words both = (Words)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
    return (vu32)[&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
      return __builtin_shuffle(both, Words{(i / 2 + i % 2 * kFloatLanes)...});
    }
    (std::make_integer_sequence<int, 2 * kFloatLanes>{});
  }
  static void multiply(const uint16_t* a, int64_t lda, int64_t rows, const float* panel,
                       int64_t depth, int64_t columns, float* c, int64_t ldc,
                       bool accumulate = false) {
    constexpr auto& kTable = kNarrowTiles<Bf16Pairs>;
    NarrowTile<Bf16Pairs> t{};
    t.groups = (depth + 1) / 2;
    t.a = a;
    t.lda = lda;
    t.ld_sums = ldc;
    t.accumulate = accumulate;
    for (int64_t j = 0; j < columns; j += kTable.columns[rows - 1]) {
      t.b = reinterpret_cast<const char*>(panel + j);
      t.sums = c + j;
      kTable.run[rows - 1](t);
    }
  }
};
#endif

}  // namespace ec
