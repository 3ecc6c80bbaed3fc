// Scans along one dimension of AOTInductor's C ABI. Results are row-major whatever the source's
// strides are: that is what generated code expects of aten.
#include <cmath>
#include <limits>

#include "shim/along_dimension/lines.h"
#include "shim/handles.h"

namespace ec {
namespace {

bool is_integral(int32_t dtype) {
  return dtype == kBool || dtype == kUInt8 || dtype == kInt8 || dtype == kInt16 ||
         dtype == kInt32 || dtype == kInt64;
}

// What aten adds and multiplies up in on the CPU: double for floats, wrapping integers.
template <class T>
using Accumulator = std::conditional_t<std::is_floating_point_v<T>, double, uint64_t>;

// state = step(state, element) along one dimension, in place.
template <class T, class Step>
void scan(Tensor* tensor, int dim, Accumulator<T> first, const Step& step) {
  const int64_t count = size_along(*tensor, dim);
  const int64_t stride = stride_along(*tensor, dim);
  const Lines lines(*tensor, dim);
  each_line(lines, count, [&](int64_t line) {
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
  const int along = dimension_of(source, dim);
  const int32_t result_dtype = dtype != nullptr            ? *dtype
                               : is_integral(source.dtype) ? static_cast<int32_t>(kInt64)
                                                           : source.dtype;
  // Converted before scanning, as aten does; half-width floats are scanned in float32, since each
  // partial result is rounded on its own.
  OwnedTensor given;
  OwnedTensor result(new_contiguous(source.dims, source.sizes, wide_dtype(result_dtype)));
  copy_elements(converted(source, result_dtype, &given), result.get());
  if (source.numel() > 0) {
    visit_plain(result->dtype, what, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_same_v<T, bool>) {
        fail("%s in bool isn't supported", what);
      } else {
        scan<T>(result.get(), along, static_cast<Accumulator<T>>(first), step);
      }
    });
  }
  return narrowed(&result, result_dtype);
}

// The running extreme and where it stands; better(new, old) says whether it is replaced. NaN stays.
template <class Better>
void running_extreme(const char* function, const Tensor& self, int64_t dim, AtenTensorHandle* ret0,
                     AtenTensorHandle* ret1, const Better& better) {
  const int along = dimension_of(self, dim);
  OwnedTensor holder;
  const Tensor& source = converted(self, wide_dtype(self.dtype), &holder);
  OwnedTensor values(new_contiguous(self.dims, self.sizes, source.dtype));
  OwnedTensor indices(new_contiguous(self.dims, self.sizes, kInt64));
  const int64_t count = size_along(self, along);
  const Lines lines(source, along);
  if (self.numel() > 0) {
    visit_plain(source.dtype, function, [&](auto zero) {
      using T = decltype(zero);
      const int64_t step = stride_along(source, along);
      const int64_t result_step = stride_along(*values, along);
      each_line(lines, 2 * count, [&](int64_t line) {
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
  *ret0 = wrap(narrowed(&values, self.dtype));
  *ret1 = wrap(indices.release());
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_cumsum(AtenTensorHandle self, int64_t dim, int32_t* dtype,
                                        AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_cumsum", [&] {
    *ret0 = wrap(
        new_scanned(*unwrap(self), dim, dtype, 0, "sums", [](auto a, auto b) { return a + b; }));
  });
}

EC_API int32_t ec_aoti_torch_cpu_cumprod(AtenTensorHandle self, int64_t dim, int32_t* dtype,
                                         AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_cumprod", [&] {
    *ret0 = wrap(new_scanned(*unwrap(self), dim, dtype, 1, "products",
                             [](auto a, auto b) { return a * b; }));
  });
}

EC_API int32_t ec_aoti_torch_cpu_logcumsumexp(AtenTensorHandle self, int64_t dim,
                                              AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_logcumsumexp", [&] {
    const Tensor& source = *unwrap(self);
    const int along = dimension_of(source, dim);
    OwnedTensor result(new_contiguous(source.dims, source.sizes, wide_dtype(source.dtype)));
    copy_elements(source, result.get());
    if (source.numel() > 0) {
      visit_floats(result->dtype, "logarithms of sums", [&](auto zero) {
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
    *ret0 = wrap(narrowed(&result, source.dtype));
  });
}

// Among equal values the last one counts, as in aten.
EC_API int32_t ec_aoti_torch_cpu_cummax(AtenTensorHandle self, int64_t dim, AtenTensorHandle* ret0,
                                        AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu_cummax", [&] {
    running_extreme("running maxima", *unwrap(self), dim, ret0, ret1,
                    [](auto value, auto best) { return value >= best; });
  });
}

EC_API int32_t ec_aoti_torch_cpu_cummin(AtenTensorHandle self, int64_t dim, AtenTensorHandle* ret0,
                                        AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu_cummin", [&] {
    running_extreme("running minima", *unwrap(self), dim, ret0, ret1,
                    [](auto value, auto best) { return value <= best; });
  });
}

}  // namespace ec
