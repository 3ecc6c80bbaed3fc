// Matrix products of AOTInductor's C ABI, and our own packed linear layer, on gemm.h.
#include <string>

#include "base/profile.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/packed_weight.h"
#include "kernels/layer_norm.h"
#include "shim/aoti_abi.h"
#include "shim/arguments.h"

namespace {

using ec::Epilogue;
using ec::fail;
using ec::guarded;
using ec::MatrixView;
using ec::OwnedTensor;
using ec::Tensor;
using ec::unwrap;

// out = alpha · a·b + beta · addend, over a batch; addend (null: none) is broadcast to out.
void multiply(Tensor* out, const Tensor& a, const Tensor& b, const Tensor* addend, double beta,
              double alpha) {
  ec::require_float32(*out, "out");
  ec::require_float32(a, "the left operand");
  ec::require_float32(b, "the right operand");
  const MatrixView left = ec::matrix_view(a);
  const MatrixView right = ec::matrix_view(b);
  const MatrixView result = ec::matrix_view(*out);
  if (left.columns != right.rows || result.rows != left.rows || result.columns != right.columns ||
      left.batch != right.batch || result.batch != left.batch) {
    fail("sizes [%lld, %lld, %lld] x [%lld, %lld, %lld] -> [%lld, %lld, %lld] don't agree",
         static_cast<long long>(left.batch), static_cast<long long>(left.rows),
         static_cast<long long>(left.columns), static_cast<long long>(right.batch),
         static_cast<long long>(right.rows), static_cast<long long>(right.columns),
         static_cast<long long>(result.batch), static_cast<long long>(result.rows),
         static_cast<long long>(result.columns));
  }
  if (out->numel() == 0) return;
  const int64_t batch = result.batch, m = result.rows, n = result.columns, k = left.columns;
  const ec::WorkTimer timer(ec::Work::kMatmul, {.n = n,
                                                .k = k,
                                                .dtype = ec::kFloat32,
                                                .flops = 2 * batch * m * n * k,
                                                .bytes = 4 * batch * (m * k + k * n + m * n)});

  Epilogue epilogue;
  epilogue.alpha = static_cast<float>(alpha);
  epilogue.beta = static_cast<float>(beta);
  OwnedTensor broadcast;
  OwnedTensor addend_copy;
  // beta = 0 drops the addend, NaN and all (torch.addmm's documentation).
  if (addend != nullptr && beta != 0.0) {
    ec::require_float32(*addend, "self");
    broadcast.reset(ec::new_broadcast(*addend, out->dims, out->sizes, "self"));
    const MatrixView full = ec::matrix_view(*broadcast);
    if (full.column_stride != 1 && full.columns > 1) {
      addend_copy.reset(ec::new_contiguous_copy(*broadcast));
    }
    const MatrixView view = ec::matrix_view(addend_copy.get() ? *addend_copy : *broadcast);
    epilogue.residual = view.data;
    epilogue.ld_residual = view.rows == 1 ? 0 : view.row_stride;
    epilogue.residual_batch = view.batch_stride;
  }

  // The product is written row by row; anything else goes through a row-major buffer, as does an
  // output that overlaps what is still to be read.
  OwnedTensor buffer;
  MatrixView target = result;
  if ((result.column_stride != 1 && result.columns > 1) ||
      (result.row_stride < result.columns && result.rows > 1) || ec::shares_memory(*out, a) ||
      ec::shares_memory(*out, b) || (addend != nullptr && ec::shares_memory(*out, *addend))) {
    buffer.reset(ec::new_contiguous(out->dims, out->sizes, ec::kFloat32));
    target = ec::matrix_view(*buffer);
  }
  if (target.batch == 1) {
    ec::gemm(target.rows, target.columns, left.columns, left.data, left.row_stride,
             left.column_stride, right.data, right.row_stride, right.column_stride, target.data,
             target.row_stride, epilogue);
  } else {
    ec::gemm_batched(target.batch, target.rows, target.columns, left.columns, left.data,
                     left.batch_stride, left.row_stride, left.column_stride, right.data,
                     right.batch_stride, right.row_stride, right.column_stride, target.data,
                     target.batch_stride, target.row_stride, epilogue);
  }
  if (buffer.get() != nullptr) ec::copy_elements(*buffer, out);
}

const float* vector_of(const Tensor* tensor, int64_t n, const char* role, OwnedTensor* holder) {
  if (tensor == nullptr) return nullptr;
  ec::require_float32(*tensor, role);
  if (tensor->dims != 1 || tensor->sizes[0] != n) {
    fail("%s is no vector of %lld elements", role, static_cast<long long>(n));
  }
  return ec::with_contiguous_last(*tensor, holder).as<float>();
}

void linear(const Tensor& x, const Tensor& packed, const Tensor* bias, const Tensor* residual,
            int64_t n, int64_t act, AtenTensorHandle* ret) {
  ec::require_float32(x, "x");
  if (n < 1) fail("n is %lld", static_cast<long long>(n));
  if (act < 0 || act > static_cast<int64_t>(ec::Activation::kSigmoid)) {
    fail("activation %lld is unknown", static_cast<long long>(act));
  }
  const ec::RowsView rows(x);
  const int64_t k = rows.columns();
  const int64_t count = ec::packed_count(packed, n, k);
  if (packed.numel() != count || !ec::is_contiguous(packed)) {
    fail("w_packed has %lld elements, a packed [%lld, %lld] of %s has %lld",
         static_cast<long long>(packed.numel()), static_cast<long long>(n),
         static_cast<long long>(k), ec::dtype_name(packed.dtype), static_cast<long long>(count));
  }
  const int64_t m = rows.rows();
  const int64_t activations = m * (k + n + (residual != nullptr ? n : 0));
  const ec::WorkTimer timer(ec::Work::kLinear,
                            {.n = n,
                             .k = k,
                             .dtype = packed.dtype,
                             .flops = 2 * m * n * k,
                             .bytes = count * ec::element_size(packed.dtype) + 4 * activations});
  int64_t sizes[ec::kMaxDims];
  for (int i = 0; i < x.dims; ++i) sizes[i] = x.sizes[i];
  sizes[x.dims - 1] = n;
  OwnedTensor result(ec::new_contiguous(x.dims, sizes, ec::kFloat32));

  Epilogue epilogue;
  epilogue.act = static_cast<ec::Activation>(act);
  OwnedTensor bias_copy;
  epilogue.bias = vector_of(bias, n, "bias", &bias_copy);
  OwnedTensor residual_broadcast;
  OwnedTensor residual_copy;
  if (residual != nullptr) {
    ec::require_float32(*residual, "residual");
    residual_broadcast.reset(ec::new_broadcast(*residual, x.dims, sizes, "residual"));
    const Tensor* source = residual_broadcast.get();
    if (!ec::is_contiguous(*source)) {
      residual_copy.reset(ec::new_contiguous_copy(*source));
      source = residual_copy.get();
    }
    epilogue.residual = source->as<float>();
    epilogue.ld_residual = rows.rows() == 1 ? 0 : n;
  }
  ec::gemm_weight(packed, 0, rows.rows(), n, k, rows.data(), rows.row_stride(), result->as<float>(),
                  n, epilogue);
  *ret = ec::wrap(result.release());
}

}  // namespace

AOTITorchError ec_aoti_torch_cpu_addmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                           AtenTensorHandle mat1, AtenTensorHandle mat2,
                                           double beta, double alpha) {
  return guarded("aoti_torch_cpu_addmm_out", [&] {
    ec::require_dims(*unwrap(out), 2, "out");
    ec::require_dims(*unwrap(mat1), 2, "mat1");
    ec::require_dims(*unwrap(mat2), 2, "mat2");
    multiply(unwrap(out), *unwrap(mat1), *unwrap(mat2), unwrap(self), beta, alpha);
  });
}

AOTITorchError ec_aoti_torch_cpu_mm_out(AtenTensorHandle out, AtenTensorHandle self,
                                        AtenTensorHandle mat2) {
  return guarded("aoti_torch_cpu_mm_out", [&] {
    ec::require_dims(*unwrap(out), 2, "out");
    ec::require_dims(*unwrap(self), 2, "self");
    ec::require_dims(*unwrap(mat2), 2, "mat2");
    multiply(unwrap(out), *unwrap(self), *unwrap(mat2), nullptr, 0.0, 1.0);
  });
}

AOTITorchError ec_aoti_torch_cpu_bmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                         AtenTensorHandle mat2) {
  return guarded("aoti_torch_cpu_bmm_out", [&] {
    ec::require_dims(*unwrap(out), 3, "out");
    ec::require_dims(*unwrap(self), 3, "self");
    ec::require_dims(*unwrap(mat2), 3, "mat2");
    multiply(unwrap(out), *unwrap(self), *unwrap(mat2), nullptr, 0.0, 1.0);
  });
}

AOTITorchError ec_aoti_torch_cpu_baddbmm_out(AtenTensorHandle out, AtenTensorHandle self,
                                             AtenTensorHandle batch1, AtenTensorHandle batch2,
                                             double beta, double alpha) {
  return guarded("aoti_torch_cpu_baddbmm_out", [&] {
    ec::require_dims(*unwrap(out), 3, "out");
    ec::require_dims(*unwrap(batch1), 3, "batch1");
    ec::require_dims(*unwrap(batch2), 3, "batch2");
    multiply(unwrap(out), *unwrap(batch1), *unwrap(batch2), unwrap(self), beta, alpha);
  });
}

AOTITorchError ec_aoti_torch_cpu_ec_linear(AtenTensorHandle x, AtenTensorHandle w_packed,
                                           AtenTensorHandle* bias, AtenTensorHandle* residual,
                                           int64_t n, int64_t act, AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_linear", [&] {
    linear(*unwrap(x), *unwrap(w_packed), ec::unwrap_optional(bias), ec::unwrap_optional(residual),
           n, act, ret);
  });
}

AOTITorchError ec_aoti_torch_cpu_ec_layer_norm(AtenTensorHandle x, AtenTensorHandle* weight,
                                               AtenTensorHandle* bias, double eps,
                                               AtenTensorHandle* ret) {
  return guarded("aoti_torch_cpu_ec_layer_norm", [&] {
    const Tensor& input = *unwrap(x);
    ec::require_float32(input, "x");
    if (input.dims < 1) fail("x has no dimension to normalise over");
    const ec::RowsView rows(input);
    const int64_t n = rows.columns();
    OwnedTensor weight_copy, bias_copy;
    const float* const scale = vector_of(ec::unwrap_optional(weight), n, "weight", &weight_copy);
    const float* const shift = vector_of(ec::unwrap_optional(bias), n, "bias", &bias_copy);
    const ec::WorkTimer timer(ec::Work::kLayerNorm, {.bytes = 8 * rows.rows() * n});
    OwnedTensor result(ec::new_contiguous(input.dims, input.sizes, ec::kFloat32));
    ec::layer_norm(rows.rows(), n, rows.data(), rows.row_stride(), scale, shift,
                   static_cast<float>(eps), result->as<float>(), n);
    *ret = ec::wrap(result.release());
  });
}
