// Scans along one dimension of AOTInductor's C ABI. Results are row-major whatever the source's
// strides are: that is what generated code expects of aten.
#include <cmath>
#include <limits>

#include "shim/aoti_abi.h"
#include "shim/lines/lines.h"

namespace {

using ec::OwnedTensor;
using ec::Tensor;
using ec::unwrap;

bool is_integral(int32_t dtype) {
  return dtype == ec::kBool || dtype == ec::kUInt8 || dtype == ec::kInt8 || dtype == ec::kInt16 ||
         dtype == ec::kInt32 || dtype == ec::kInt64;
}

// What aten adds and multiplies up in on the CPU: double for floats, wrapping integers.
template <class T>
using Accumulator = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;

// state = step(state, element) along one dimension, in place.
template <class T, class Step>
void scan(Tensor* tensor, int dim, Accumulator<T> first, const Step& step) {
  const int64_t count = ec::size_along(*tensor, dim);
  const int64_t stride = ec::stride_along(*tensor, dim);
  const ec::Lines lines(*tensor, dim);
  ec::each_line(lines, count, [&](int64_t line) {
    T* at = tensor->as<T>() + lines.start(line, *tensor);
    Accumulator<T> state = first;
    for (int64_t i = 0; i < count; ++i) {
      state = step(state, static_cast<Accumulator<T>>(at[i * stride]));
      at[i * stride] = static_cast<T>(state);
    }
  });
}

template <class Step>
Tensor* new_scanned(const Tensor& source, int64_t dim, const int32_t* dtype, int first,
                    const char* what, const Step& step) {
  const int along = ec::dimension_of(source, dim);
  const int32_t result_dtype = dtype != nullptr            ? *dtype
                               : is_integral(source.dtype) ? static_cast<int32_t>(ec::kInt64)
                                                           : source.dtype;
  // Converted before scanning, as aten does; half-width floats are scanned in float32, since each
  // partial result is rounded on its own.
  OwnedTensor given;
  OwnedTensor result(ec::new_contiguous(source.dims, source.sizes, ec::wide_dtype(result_dtype)));
  ec::copy_elements(ec::converted(source, result_dtype, &given), result.get());
  if (source.numel() > 0) {
    ec::visit_plain(result->dtype, what, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_same_v<T, bool>) {
        ec::fail("%s in bool isn't supported", what);
      } else {
        scan<T>(result.get(), along, static_cast<Accumulator<T>>(first), step);
      }
    });
  }
  return ec::narrowed(&result, result_dtype);
}

// The running extreme and where it stands; better(new, old) says whether it is replaced. NaN stays.
template <class Better>
void running_extreme(const char* function, const Tensor& self, int64_t dim, AtenTensorHandle* ret0,
                     AtenTensorHandle* ret1, const Better& better) {
  const int along = ec::dimension_of(self, dim);
  OwnedTensor holder;
  const Tensor& source = ec::converted(self, ec::wide_dtype(self.dtype), &holder);
  OwnedTensor values(ec::new_contiguous(self.dims, self.sizes, source.dtype));
  OwnedTensor indices(ec::new_contiguous(self.dims, self.sizes, ec::kInt64));
  const int64_t count = ec::size_along(self, along);
  const ec::Lines lines(source, along);
  if (self.numel() > 0) {
    ec::visit_plain(source.dtype, function, [&](auto zero) {
      using T = decltype(zero);
      const int64_t step = ec::stride_along(source, along);
      const int64_t result_step = ec::stride_along(*values, along);
      ec::each_line(lines, 2 * count, [&](int64_t line) {
        const T* from = source.as<T>() + lines.start(line, source);
        const int64_t start = lines.start(line, *values);
        T best = from[0];
        int64_t place = 0;
        for (int64_t i = 0; i < count; ++i) {
          const T value = from[i * step];
          if (value != value || (best == best && better(value, best))) {
            best = value;
            place = i;
          }
          values->as<T>()[start + i * result_step] = best;
          indices->as<int64_t>()[start + i * result_step] = place;
        }
      });
    });
  }
  *ret0 = ec::wrap(ec::narrowed(&values, self.dtype));
  *ret1 = ec::wrap(indices.release());
}

}  // namespace

AOTITorchError ec_aoti_torch_cpu_cumsum(AtenTensorHandle self, int64_t dim, int32_t* dtype,
                                        AtenTensorHandle* ret0) {
  return ec::guarded("aoti_torch_cpu_cumsum", [&] {
    *ret0 = ec::wrap(
        new_scanned(*unwrap(self), dim, dtype, 0, "sums", [](auto a, auto b) { return a + b; }));
  });
}

AOTITorchError ec_aoti_torch_cpu_cumprod(AtenTensorHandle self, int64_t dim, int32_t* dtype,
                                         AtenTensorHandle* ret0) {
  return ec::guarded("aoti_torch_cpu_cumprod", [&] {
    *ret0 = ec::wrap(new_scanned(*unwrap(self), dim, dtype, 1, "products",
                                 [](auto a, auto b) { return a * b; }));
  });
}

AOTITorchError ec_aoti_torch_cpu_logcumsumexp(AtenTensorHandle self, int64_t dim,
                                              AtenTensorHandle* ret0) {
  return ec::guarded("aoti_torch_cpu_logcumsumexp", [&] {
    const Tensor& source = *unwrap(self);
    const int along = ec::dimension_of(source, dim);
    OwnedTensor result(ec::new_contiguous(source.dims, source.sizes, ec::wide_dtype(source.dtype)));
    ec::copy_elements(source, result.get());
    if (source.numel() > 0) {
      ec::visit_floats(result->dtype, "logarithms of sums", [&](auto zero) {
        using T = decltype(zero);
        scan<T>(result.get(), along, -std::numeric_limits<double>::infinity(),
                [](double a, double b) {
                  const double low = std::fmin(a, b), high = std::fmax(a, b);
                  if (a != a || b != b) return a + b;
                  if (low == high && std::isinf(low)) return low;
                  return high + std::log1p(std::exp(low - high));
                });
      });
    }
    *ret0 = ec::wrap(ec::narrowed(&result, source.dtype));
  });
}

// Among equal values the last one counts, as in aten.
AOTITorchError ec_aoti_torch_cpu_cummax(AtenTensorHandle self, int64_t dim, AtenTensorHandle* ret0,
                                        AtenTensorHandle* ret1) {
  return ec::guarded("aoti_torch_cpu_cummax", [&] {
    running_extreme("running maxima", *unwrap(self), dim, ret0, ret1,
                    [](auto value, auto best) { return value >= best; });
  });
}

AOTITorchError ec_aoti_torch_cpu_cummin(AtenTensorHandle self, int64_t dim, AtenTensorHandle* ret0,
                                        AtenTensorHandle* ret1) {
  return ec::guarded("aoti_torch_cpu_cummin", [&] {
    running_extreme("running minima", *unwrap(self), dim, ret0, ret1,
                    [](auto value, auto best) { return value <= best; });
  });
}
