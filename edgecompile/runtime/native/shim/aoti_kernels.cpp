// Matrix products of AOTInductor's C ABI, and our own packed linear layer, on gemm.h.
#include <string>

#include "base/profile.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/packed_weight.h"
#include "kernels/layer_norm.h"
#include "shim/arguments.h"
#include "shim/handles.h"
#include "shim/head_mask.h"

namespace ec {
namespace {

// out = alpha · a·b + beta · addend of matrices (2 dims) or batches of them (3); addend (null:
// none) is broadcast to out.
void multiply(int dims, Tensor* out, const Tensor& a, const Tensor& b, const Tensor* addend,
              double beta, double alpha) {
  const Tensor* operands[] = {out, &a, &b};
  const char* roles[] = {"out", "the left operand", "the right operand"};
  for (int i = 0; i < 3; ++i) {
    require_dims(*operands[i], dims, roles[i]);
    require_float32(*operands[i], roles[i]);
  }
  const MatrixView left = matrix_view(a);
  const MatrixView right = matrix_view(b);
  const MatrixView result = matrix_view(*out);
  if (left.columns != right.rows || result.rows != left.rows || result.columns != right.columns ||
      left.batch != right.batch || result.batch != left.batch) {
    fail("sizes [%ld, %ld, %ld] x [%ld, %ld, %ld] -> [%ld, %ld, %ld] don't agree", left.batch,
         left.rows, left.columns, right.batch, right.rows, right.columns, result.batch, result.rows,
         result.columns);
  }
  if (out->numel() == 0) return;
  const int64_t batch = result.batch, m = result.rows, n = result.columns, k = left.columns;
  const int64_t bytes = 4 * batch * (m * k + k * n + m * n);
  const WorkTimer timer(Work::kMatmul, product_size(batch * m, n, k, kFloat32, bytes));

  Epilogue epilogue;
  epilogue.alpha = static_cast<float>(alpha);
  epilogue.beta = static_cast<float>(beta);
  OwnedTensor broadcast;
  OwnedTensor addend_copy;
  // beta = 0 drops the addend, NaN and all (torch.addmm's documentation).
  if (addend != nullptr && beta != 0.0) {
    require_float32(*addend, "self");
    broadcast.reset(new_broadcast(*addend, out->dims, out->sizes, "self"));
    const MatrixView full = matrix_view(*broadcast);
    if (full.column_stride != 1 && full.columns > 1) {
      addend_copy.reset(new_contiguous_copy(*broadcast));
    }
    const MatrixView view = matrix_view(addend_copy.get() ? *addend_copy : *broadcast);
    epilogue.residual = view.data;
    epilogue.ld_residual = view.rows == 1 ? 0 : view.row_stride;
    epilogue.residual_batch = view.batch_stride;
  }

  // The product is written row by row; anything else goes through a row-major buffer, as does an
  // output that overlaps what is still to be read.
  OwnedTensor buffer;
  MatrixView target = result;
  if ((result.column_stride != 1 && result.columns > 1) ||
      (result.row_stride < result.columns && result.rows > 1) || shares_memory(*out, a) ||
      shares_memory(*out, b) || (addend != nullptr && shares_memory(*out, *addend))) {
    buffer.reset(new_contiguous(out->dims, out->sizes, kFloat32));
    target = matrix_view(*buffer);
  }
  gemm_batched(target.batch, target.rows, target.columns, left.columns, left.data,
               left.batch_stride, left.row_stride, left.column_stride, right.data,
               right.batch_stride, right.row_stride, right.column_stride, target.data,
               target.batch_stride, target.row_stride, epilogue);
  if (buffer.get() != nullptr) copy_elements(*buffer, out);
}

void linear(const Tensor& x, const Tensor& packed, const Tensor* bias, const Tensor* residual,
            int64_t n, int64_t act, bool pairs, const ColumnMask* mask, AtenTensorHandle* ret) {
  require_float32(x, "x");
  if (n < 1) fail("n is %ld", n);
  const RowsView rows(x);
  const int64_t k = rows.columns();
  const int64_t count = require_packed(packed, n, k);
  const int64_t m = rows.rows();
  const int64_t activations = m * (k + n + (residual != nullptr ? n : 0));
  const int64_t bytes = count * element_size(packed.dtype) + 4 * activations;
  const WorkTimer timer(Work::kLinear, product_size(m, n, k, packed.dtype, bytes));
  int64_t sizes[kMaxDims];
  for (int i = 0; i < x.dims; ++i) sizes[i] = x.sizes[i];
  sizes[x.dims - 1] = n;
  OwnedTensor result(new_contiguous(x.dims, sizes, kFloat32));

  Epilogue epilogue;
  set_activation(act, &epilogue);
  OwnedTensor bias_copy;
  epilogue.bias = vector_of(bias, n, "bias", &bias_copy);
  OwnedTensor residual_broadcast;
  OwnedTensor residual_copy;
  if (residual != nullptr) {
    require_float32(*residual, "residual");
    residual_broadcast.reset(new_broadcast(*residual, x.dims, sizes, "residual"));
    epilogue.residual = row_major(*residual_broadcast, &residual_copy).as<float>();
    epilogue.ld_residual = rows.rows() == 1 ? 0 : n;
  }
  if (mask != nullptr) {
    gemm_masked(packed, *mask, m, n, k, rows.data(), rows.row_stride(), result->as<float>(), n,
                epilogue);
  } else {
    gemm_weight(packed, count, 0, m, n, k, rows.data(), rows.row_stride(), result->as<float>(), n,
                epilogue, pairs);
  }
  *ret = wrap(result.release());
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_addmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                           AtenTensorHandle mat1, AtenTensorHandle mat2,
                                           double beta, double alpha) {
  return guarded("aoti_torch_cpu_addmm_out", [&] {
    multiply(2, unwrap(out), *unwrap(mat1), *unwrap(mat2), unwrap(self), beta, alpha);
  });
}

EC_API int32_t ec_aoti_torch_cpu_mm_out(AtenTensorHandle out, AtenTensorHandle self,
                                        AtenTensorHandle mat2) {
  return guarded("aoti_torch_cpu_mm_out", [&] {
    multiply(2, unwrap(out), *unwrap(self), *unwrap(mat2), nullptr, 0.0, 1.0);
  });
}

EC_API int32_t ec_aoti_torch_cpu_bmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                         AtenTensorHandle mat2) {
  return guarded("aoti_torch_cpu_bmm_out", [&] {
    multiply(3, unwrap(out), *unwrap(self), *unwrap(mat2), nullptr, 0.0, 1.0);
  });
}

EC_API int32_t ec_aoti_torch_cpu_baddbmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                             AtenTensorHandle batch1, AtenTensorHandle batch2,
                                             double beta, double alpha) {
  return guarded("aoti_torch_cpu_baddbmm_out", [&] {
    multiply(3, unwrap(out), *unwrap(batch1), *unwrap(batch2), unwrap(self), beta, alpha);
  });
}

EC_API int32_t ec_aoti_torch_cpu_ec_linear(AtenTensorHandle x, AtenTensorHandle w_packed,
                                           AtenTensorHandle* bias, AtenTensorHandle* residual,
                                           int64_t n, int64_t act, int32_t pairs,
                                           AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_linear", [&] {
    linear(*unwrap(x), *unwrap(w_packed), unwrap_optional(bias), unwrap_optional(residual), n, act,
           pairs != 0, nullptr, ret);
  });
}

// As ec_linear, of which the columns that a mask of the run leaves out needn't be computed.
EC_API int32_t ec_aoti_torch_cpu_ec_head(AtenTensorHandle x, AtenTensorHandle w_packed,
                                         AtenTensorHandle* bias, AtenTensorHandle* residual,
                                         int64_t n, int64_t act, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_head", [&] {
    linear(*unwrap(x), *unwrap(w_packed), unwrap_optional(bias), unwrap_optional(residual), n, act,
           false, HeadMask::of_run(), ret);
  });
}

EC_API int32_t ec_aoti_torch_cpu_ec_layer_norm(AtenTensorHandle x, AtenTensorHandle* weight,
                                               AtenTensorHandle* bias, double eps,
                                               AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_layer_norm", [&] {
    const Tensor& input = *unwrap(x);
    require_float32(input, "x");
    if (input.dims < 1) fail("x has no dimension to normalise over");
    const RowsView rows(input);
    const int64_t n = rows.columns();
    OwnedTensor weight_copy, bias_copy;
    const float* const scale = vector_of(unwrap_optional(weight), n, "weight", &weight_copy);
    const float* const shift = vector_of(unwrap_optional(bias), n, "bias", &bias_copy);
    const WorkTimer timer(Work::kLayerNorm, {.bytes = 8 * rows.rows() * n});
    OwnedTensor result(new_contiguous(input.dims, input.sizes, kFloat32));
    layer_norm(rows.rows(), n, rows.data(), rows.row_stride(), scale, shift,
               static_cast<float>(eps), result->as<float>(), n);
    *ret = wrap(result.release());
  });
}

}  // namespace ec
