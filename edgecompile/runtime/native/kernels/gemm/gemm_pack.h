// Copies of slices of matrices into the layouts that the register tiles read.
#pragma once

#include <cstdint>

namespace ec {

// One panel: depth×columns (columns <= 32) of a matrix with any strides, times `scale`, to
// [depth][32] floats; zeros in the columns beyond.
void pack_panel(const float* b, int64_t b_row, int64_t b_col, int64_t depth, int64_t columns,
                float scale, float* out);

// rows×depth of a matrix with any strides, times `scale`, to rows of contiguous elements that lie
// `ld` apart.
void copy_rows(const float* a, int64_t a_row, int64_t a_col, int64_t rows, int64_t depth,
               float scale, float* out, int64_t ld);

// out[j][i] = in[i][j] for rows×columns words of any 32 bits.
void transpose_words(const float* in, int64_t ld_in, int64_t rows, int64_t columns, float* out,
                     int64_t ld_out);

}  // namespace ec
