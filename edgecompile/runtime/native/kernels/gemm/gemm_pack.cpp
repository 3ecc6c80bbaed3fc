// Packs B into panels, and copies rows of A.
#include "kernels/gemm/gemm_pack.h"

#include <algorithm>

#include "kernels/gemm/gemm.h"
#include "math/simd.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int kL = kFloatLanes;

// One stage of a transposition: of two vectors, the blocks of `Distance` lanes that are off the
// diagonal change places.
template <int Distance, int... I>
EC_INLINE void swap_blocks(vf32& a, vf32& b, std::integer_sequence<int, I...>) {
  const vf32 low = __builtin_shuffle(a, b, vi32{(I & Distance ? kL + I - Distance : I)...});
  b = __builtin_shuffle(a, b, vi32{(I & Distance ? kL + I : I + Distance)...});
  a = low;
}

template <int Distance>
EC_INLINE void transpose_stages(vf32 (&v)[kL]) {
#pragma GCC unroll 16
  for (int i = 0; i < kL; ++i) {
    if ((i & Distance) == 0) {
      swap_blocks<Distance>(v[i], v[i + Distance], std::make_integer_sequence<int, kL>{});
    }
  }
  if constexpr (Distance > 1) transpose_stages<Distance / 2>(v);
}

// out[j][i] = f(in[i][j]) for a square of as many rows as a vector has lanes.
template <class F>
EC_INLINE void transpose_square(const float* in, int64_t ld_in, const F& f, float* out,
                                int64_t ld_out) {
  vf32 v[kL];
#pragma GCC unroll 16
  for (int i = 0; i < kL; ++i) v[i] = load(in + i * ld_in);
  transpose_stages<kL / 2>(v);
#pragma GCC unroll 16
  for (int i = 0; i < kL; ++i) store(out + i * ld_out, f(v[i]));
}

// out[j][i] = f(in[i][j]): rows×columns of contiguous rows become contiguous columns.
template <class F>
void transpose(const float* in, int64_t ld_in, int64_t rows, int64_t columns, const F& f,
               float* out, int64_t ld_out) {
  int64_t i = 0;
  for (; i + kL <= rows; i += kL) {
    int64_t j = 0;
    for (; j + kL <= columns; j += kL) {
      transpose_square(in + i * ld_in + j, ld_in, f, out + j * ld_out + i, ld_out);
    }
    for (; j < columns; ++j) {
      for (int64_t x = i; x < i + kL; ++x) out[j * ld_out + x] = f(in[x * ld_in + j]);
    }
  }
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[j * ld_out + i] = f(in[i * ld_in + j]);
  }
}

void transpose_scaled(const float* in, int64_t ld_in, int64_t rows, int64_t columns, float scale,
                      float* out, int64_t ld_out) {
  transpose(in, ld_in, rows, columns, [&](auto x) { return x * scale; }, out, ld_out);
}

EC_INLINE void copy_scaled(const float* from, int64_t n, float scale, float* to) {
  int64_t i = 0;
  for (; i + kL <= n; i += kL) store(to + i, load(from + i) * scale);
  for (; i < n; ++i) to[i] = from[i] * scale;
}

}  // namespace

void pack_panel(const float* b, int64_t b_row, int64_t b_col, int64_t depth, int64_t columns,
                float scale, float* out) {
  if (columns < kPanel) {
    for (int64_t i = 0; i < depth; ++i)
      std::fill_n(out + i * kPanel + columns, kPanel - columns, 0.0f);
  }
  if (b_col == 1) {
    for (int64_t i = 0; i < depth; ++i) {
      copy_scaled(b + i * b_row, columns, scale, out + i * kPanel);
    }
  } else if (b_row == 1) {
    transpose_scaled(b, b_col, columns, depth, scale, out, kPanel);
  } else {
    for (int64_t i = 0; i < depth; ++i) {
      for (int64_t j = 0; j < columns; ++j) out[i * kPanel + j] = b[i * b_row + j * b_col] * scale;
    }
  }
}

void transpose_words(const float* in, int64_t ld_in, int64_t rows, int64_t columns, float* out,
                     int64_t ld_out) {
  transpose(in, ld_in, rows, columns, [](auto x) { return x; }, out, ld_out);
}

void copy_rows(const float* a, int64_t a_row, int64_t a_col, int64_t rows, int64_t depth,
               float scale, float* out, int64_t ld) {
  if (a_col == 1) {
    for (int64_t r = 0; r < rows; ++r) copy_scaled(a + r * a_row, depth, scale, out + r * ld);
  } else if (a_row == 1) {
    transpose_scaled(a, a_col, depth, rows, scale, out, ld);
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < depth; ++i) out[r * ld + i] = a[r * a_row + i * a_col] * scale;
    }
  }
}

int64_t packed_elements(int64_t n, int64_t k) { return (n + kPanel - 1) / kPanel * kPanel * k; }

void pack_b(const float* b, int64_t stride_k, int64_t stride_n, int64_t k, int64_t n,
            float* packed) {
  parallel_for((n + kPanel - 1) / kPanel, [&](int64_t p) {
    pack_panel(b + p * kPanel * stride_n, stride_k, stride_n, k, std::min(kPanel, n - p * kPanel),
               1.0f, packed + p * kPanel * k);
  });
}

}  // namespace ec
