// Products of groups of rows, each with a matrix of its own: what mixtures of experts consist of.
#include <algorithm>

#include "base/profile.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/packed_weight.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {
namespace {

// Rows [m, n]: product(expert, rows of x, their number, rows of the result) for each group that has
// rows, zeros behind all groups.
template <class Product>
Tensor* new_grouped(const RowsView& x, int64_t n, const Tensor& offs, int64_t experts,
                    const Product& product) {
  require_dims(offs, 1, "offs");
  if (offs.sizes[0] != experts) fail("%ld offsets for %ld matrices", offs.sizes[0], experts);
  OwnedTensor holder;
  const int64_t* const ends = row_major(converted(offs, kInt64, &holder), &holder).as<int64_t>();
  const int64_t sizes[2] = {x.rows(), n};
  OwnedTensor result(new_contiguous(2, sizes, kFloat32));
  float* const data = result->as<float>();
  int64_t first = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t end = ends[e];
    if (end < first || end > x.rows()) {
      fail("offset %ld is %ld, not within %ld..%ld", e, end, first, x.rows());
    }
    if (end > first) {
      product(e, x.data() + first * x.row_stride(), end - first, data + first * n);
    }
    first = end;
  }
  std::fill(data + first * n, data + result->numel(), 0.0f);
  return result.release();
}

}  // namespace

// Products of groups of rows, each with a matrix of its own, float32: rows offs[e-1]..offs[e] of x
// with matrix e; rows past the last offset give zero. w is [E, K, N] of any strides.
EC_API int32_t ec_aoti_torch_cpu_ec_grouped_mm(AtenTensorHandle x, AtenTensorHandle w,
                                               AtenTensorHandle offs, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_grouped_mm", [&] {
    const Tensor& weights = *unwrap(w);
    require_float32(*unwrap(x), "x");
    require_float32(weights, "w");
    require_dims(*unwrap(x), 2, "x");
    require_dims(weights, 3, "w");
    const RowsView rows(*unwrap(x));
    const int64_t k = weights.sizes[1], n = weights.sizes[2];
    if (rows.columns() != k) {
      fail("rows of %ld elements and matrices of %ld rows", rows.columns(), k);
    }
    const int64_t bytes = 4 * (weights.numel() + rows.rows() * (n + k));
    const WorkTimer timer(Work::kMatmul, product_size(rows.rows(), n, k, kFloat32, bytes));
    *ret = wrap(new_grouped(rows, n, *unwrap(offs), weights.sizes[0],
                            [&](int64_t e, const float* a, int64_t m, float* c) {
                              gemm_batched(1, m, n, k, a, 0, rows.row_stride(), 1,
                                           weights.as<float>() + e * weights.strides[0], 0,
                                           weights.strides[1], weights.strides[2], c, 0, n, {});
                            }));
  });
}

// The same with E packed weights (gemm.h), one behind the other.
EC_API int32_t ec_aoti_torch_cpu_ec_grouped_linear(AtenTensorHandle x, AtenTensorHandle w_packed,
                                                   AtenTensorHandle offs, int64_t n,
                                                   AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_grouped_linear", [&] {
    const Tensor& packed = *unwrap(w_packed);
    require_float32(*unwrap(x), "x");
    require_dims(*unwrap(x), 2, "x");
    if (n < 1) fail("n is %ld", n);
    const RowsView rows(*unwrap(x));
    const int64_t k = rows.columns();
    if (packed.dims < 2) fail("w_packed has %d dimensions", packed.dims);
    const int64_t each = require_packed(packed, n, k, packed.sizes[0]);
    const int64_t bytes = packed.numel() * element_size(packed.dtype) + 4 * rows.rows() * (n + k);
    const WorkTimer timer(Work::kLinear, product_size(rows.rows(), n, k, packed.dtype, bytes));
    *ret = wrap(new_grouped(rows, n, *unwrap(offs), packed.sizes[0],
                            [&](int64_t e, const float* a, int64_t m, float* c) {
                              gemm_weight(packed, each, e, m, n, k, a, rows.row_stride(), c, n, {});
                            }));
  });
}

}  // namespace ec
