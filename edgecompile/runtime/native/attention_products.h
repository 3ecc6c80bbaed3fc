// The two products of attention, of a panel of keys or values with a tile of queries: in single
// precision, or of operands rounded to bfloat16. A "Products" has
//   kExact                    whether operands stay as they are
//   row_floats(dim, block)    memory for copies of a tile's rows
//   pack_keys                 up to 32 keys to a panel of at most [dim][32] words
//   pack_values               up to 32 columns of values to a panel of at most [keys][32] words
//   score                     scores [rows][keys] of a tile's queries
//   take_weights              what softmax made of them, once for all panels of values
//   weigh                     weights · values of a panel
#pragma once

#include <algorithm>

#include "attention.h"
#include "gemm_bf16_pairs.h"
#include "gemm_kernel.h"
#include "gemm_pack.h"

namespace ec {

struct FloatProducts {
  static constexpr bool kExact = true;
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
  static void take_weights(const float*, int64_t, int64_t, int64_t, float*) {}
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
  static int64_t row_floats(int64_t dim, int64_t block) {
    return std::max<int64_t>(kTileRows, kPanel) * ld_pairs(std::max(dim, block)) / 2;
  }

  static void pack_keys(const AttentionArgs& a, const float* k, int64_t keys, float* copy,
                        float* to) {
    uint16_t* const rounded = reinterpret_cast<uint16_t*>(copy);
    const int64_t ld = ld_pairs(a.dim);
    for (int64_t j = 0; j < kPanel; ++j) {  // columns beyond the keys are computed, and unused
      round_to_pairs(k + std::min(j, keys - 1) * a.k_strides[2], a.dim, rounded + j * ld);
    }
    transpose_words(copy, ld / 2, kPanel, (a.dim + 1) / 2, to, kPanel);
  }
  static void pack_values(const float* v, int64_t stride, int64_t keys, int64_t columns,
                          float* to) {
    char* out = reinterpret_cast<char*>(to);
    for (int64_t j = 0; j < keys; j += 2) {
      const float* const row = v + j * stride;
      for (int64_t c = 0; c < kPanel; c += kFloatLanes, out += sizeof(vu32)) {
        const int64_t n = std::max<int64_t>(0, columns - c);
        const vf32 even = load_partial(row + c, n);
        const vf32 odd = load_partial(row + stride + c, j + 1 < keys ? n : 0);
        const vu32 pairs = widen(even) | widen(odd) << 16;
        std::memcpy(out, &pairs, sizeof pairs);
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
  static void take_weights(const float* weights, int64_t ld, int64_t rows, int64_t keys,
                           float* copy) {
    uint16_t* const rounded = reinterpret_cast<uint16_t*>(copy);
    for (int64_t r = 0; r < rows; ++r) {
      round_to_pairs(weights + r * ld, keys, rounded + r * ld_pairs(keys));
    }
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

  EC_INLINE static vu32 widen(vf32 x) {
    return convert<vu32>((Vector<uint16_t, kFloatLanes>)_mm512_cvtneps_pbh((__m512)x));
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
