// Products of groups of rows, each with a matrix of its own: what mixtures of experts consist of.
#include <algorithm>

#include "base/profile.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/packed_weight.h"
#include "shim/aoti_abi.h"
#include "shim/arguments.h"

namespace {

using ec::fail;
using ec::OwnedTensor;
using ec::Tensor;
using ec::unwrap;

// product(expert, first, rows) for each group that has rows; returns the first row behind all.
template <class Product>
int64_t each_group(const Tensor& offs, int64_t experts, int64_t rows, const Product& product) {
  ec::require_dims(offs, 1, "offs");
  if (offs.sizes[0] != experts) {
    fail("%lld offsets for %lld matrices", static_cast<long long>(offs.sizes[0]),
         static_cast<long long>(experts));
  }
  OwnedTensor ends(ec::new_contiguous(1, offs.sizes, ec::kInt64));
  ec::copy_elements(offs, ends.get());
  int64_t first = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t end = ends->as<int64_t>()[e];
    if (end < first || end > rows) {
      fail("offset %lld is %lld, not within %lld..%lld", static_cast<long long>(e),
           static_cast<long long>(end), static_cast<long long>(first),
           static_cast<long long>(rows));
    }
    if (end > first) product(e, first, end - first);
    first = end;
  }
  return first;
}

Tensor* new_result(const ec::RowsView& rows, int64_t n) {
  const int64_t sizes[2] = {rows.rows(), n};
  return ec::new_contiguous(2, sizes, ec::kFloat32);
}

void clear_rows(Tensor* result, int64_t first) {
  float* const data = result->as<float>();
  std::fill(data + first * result->sizes[1], data + result->numel(), 0.0f);
}

}  // namespace

AOTITorchError ec_aoti_torch_cpu_ec_grouped_mm(AtenTensorHandle x, AtenTensorHandle w,
                                               AtenTensorHandle offs, AtenTensorHandle* ret) {
  return ec::guarded("aoti_torch_cpu_ec_grouped_mm", [&] {
    const Tensor& weights = *unwrap(w);
    ec::require_float32(*unwrap(x), "x");
    ec::require_float32(weights, "w");
    ec::require_dims(*unwrap(x), 2, "x");
    ec::require_dims(weights, 3, "w");
    const ec::RowsView rows(*unwrap(x));
    const int64_t k = weights.sizes[1], n = weights.sizes[2];
    if (rows.columns() != k) {
      fail("rows of %lld elements and matrices of %lld rows",
           static_cast<long long>(rows.columns()), static_cast<long long>(k));
    }
    const ec::WorkTimer timer(ec::Work::kMatmul,
                              {.n = n,
                               .k = k,
                               .dtype = ec::kFloat32,
                               .flops = 2 * rows.rows() * n * k,
                               .bytes = 4 * (weights.numel() + rows.rows() * (n + k))});
    OwnedTensor result(new_result(rows, n));
    const int64_t end = each_group(
        *unwrap(offs), weights.sizes[0], rows.rows(), [&](int64_t e, int64_t first, int64_t m) {
          ec::gemm(m, n, k, rows.data() + first * rows.row_stride(), rows.row_stride(), 1,
                   weights.as<float>() + e * weights.strides[0], weights.strides[1],
                   weights.strides[2], result->as<float>() + first * n, n, {});
        });
    clear_rows(result.get(), end);
    *ret = ec::wrap(result.release());
  });
}

AOTITorchError ec_aoti_torch_cpu_ec_grouped_linear(AtenTensorHandle x, AtenTensorHandle w_packed,
                                                   AtenTensorHandle offs, int64_t n,
                                                   AtenTensorHandle* ret) {
  return ec::guarded("aoti_torch_cpu_ec_grouped_linear", [&] {
    const Tensor& packed = *unwrap(w_packed);
    ec::require_float32(*unwrap(x), "x");
    ec::require_dims(*unwrap(x), 2, "x");
    if (n < 1) fail("n is %lld", static_cast<long long>(n));
    const ec::RowsView rows(*unwrap(x));
    const int64_t k = rows.columns();
    const int64_t each = ec::packed_count(packed, n, k);
    if (packed.dims < 2 || packed.numel() != packed.sizes[0] * each || !ec::is_contiguous(packed)) {
      fail("w_packed has %lld elements, each packed [%lld, %lld] of %s has %lld",
           static_cast<long long>(packed.numel()), static_cast<long long>(n),
           static_cast<long long>(k), ec::dtype_name(packed.dtype), static_cast<long long>(each));
    }
    const ec::WorkTimer timer(
        ec::Work::kLinear,
        {.n = n,
         .k = k,
         .dtype = packed.dtype,
         .flops = 2 * rows.rows() * n * k,
         .bytes = packed.numel() * ec::element_size(packed.dtype) + 4 * rows.rows() * (n + k)});
    OwnedTensor result(new_result(rows, n));
    const int64_t end = each_group(
        *unwrap(offs), packed.sizes[0], rows.rows(), [&](int64_t e, int64_t first, int64_t m) {
          ec::gemm_weight(packed, e * each, m, n, k, rows.data() + first * rows.row_stride(),
                          rows.row_stride(), result->as<float>() + first * n, n, {});
        });
    clear_rows(result.get(), end);
    *ret = ec::wrap(result.release());
  });
}
