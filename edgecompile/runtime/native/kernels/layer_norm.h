// Normalisation of rows by their own mean and variance.
#pragma once

#include <cstdint>

namespace ec {

// out[r, :] = (x[r, :] - mean) / sqrt(variance + eps) · weight + bias for each of `rows` rows of n
// contiguous elements; weight and bias (null: left out) have n elements. The variance is that of
// torch: the sum of squares over n. out may be x.
void layer_norm(int64_t rows, int64_t n, const float* x, int64_t ld_x, const float* weight,
                const float* bias, float eps, float* out, int64_t ld_out);

}  // namespace ec
