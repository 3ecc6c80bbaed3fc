// Scans of AOTInductor's C ABI.
#include <algorithm>

#include "aoti_abi.h"
#include "copies.h"

namespace {

using ec::fail;
using ec::Tensor;

// Sums along one dimension in place. Floats are summed in double, as aten does on the CPU.
template <class T, class Sum>
void scan(Tensor* tensor, int dim) {
  const int64_t count = tensor->sizes[dim];
  const int64_t step = tensor->strides[dim];
  const int64_t lines = tensor->numel() / count;
  int64_t index[ec::kMaxDims] = {};
  for (int64_t line = 0; line < lines; ++line) {
    T* at = tensor->as<T>();
    for (int d = 0; d < tensor->dims; ++d) at += index[d] * tensor->strides[d];
    Sum sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      sum += static_cast<Sum>(at[i * step]);
      at[i * step] = static_cast<T>(sum);
    }
    for (int d = tensor->dims - 1; d >= 0; --d) {
      if (d == dim) continue;
      if (++index[d] < tensor->sizes[d]) break;
      index[d] = 0;
    }
  }
}

bool is_integral(int32_t dtype) {
  return dtype == ec::kBool || dtype == ec::kUInt8 || dtype == ec::kInt8 || dtype == ec::kInt16 ||
         dtype == ec::kInt32 || dtype == ec::kInt64;
}

}  // namespace

AOTITorchError ec_aoti_torch_cpu_cumsum(AtenTensorHandle self, int64_t dim, int32_t* dtype,
                                        AtenTensorHandle* ret0) {
  return ec::guarded("aoti_torch_cpu_cumsum", [&] {
    const Tensor& source = *ec::unwrap(self);
    const int64_t dims = std::max(source.dims, 1);
    if (dim < -dims || dim >= dims)
      fail("dimension %lld of %d", static_cast<long long>(dim), source.dims);
    const int along = static_cast<int>(dim < 0 ? dim + dims : dim);
    const int32_t result_dtype = dtype != nullptr            ? *dtype
                                 : is_integral(source.dtype) ? static_cast<int32_t>(ec::kInt64)
                                                             : source.dtype;
    // Row-major whatever the source's strides are: that is what generated code expects of aten.
    ec::OwnedTensor result(ec::new_contiguous(source.dims, source.sizes, result_dtype));
    // Converted before summing, as aten does.
    ec::copy_elements(source, result.get());
    if (source.dims > 0 && source.numel() > 0) {
      switch (result_dtype) {
        case ec::kFloat32:
          scan<float, double>(result.get(), along);
          break;
        case ec::kFloat64:
          scan<double, double>(result.get(), along);
          break;
        case ec::kInt64:
          scan<int64_t, uint64_t>(result.get(), along);
          break;
        case ec::kInt32:
          scan<int32_t, uint64_t>(result.get(), along);
          break;
        default:
          fail("sums in %s are not supported", ec::dtype_name(result_dtype));
      }
    }
    *ret0 = ec::wrap(result.release());
  });
}
