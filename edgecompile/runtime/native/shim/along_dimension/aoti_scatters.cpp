// Scatters, in AOTInductor's C ABI. Indices are checked; they are written in their order, so that
// results don't depend on the number of threads.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "shim/along_dimension/lines.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {
namespace {

enum class Reduce { kWrite, kSum, kProd, kMean, kAmax, kAmin };

Reduce reduce_of(const char* name) {
  const struct {
    const char* name;
    Reduce reduce;
  } known[] = {{"sum", Reduce::kSum},   {"add", Reduce::kSum},       {"prod", Reduce::kProd},
               {"mean", Reduce::kMean}, {"multiply", Reduce::kProd}, {"amax", Reduce::kAmax},
               {"amin", Reduce::kAmin}};
  for (const auto& [text, reduce] : known) {
    if (std::strcmp(text, name) == 0) return reduce;
  }
  fail("the reduction %s isn't supported", name);
}

// NaN stays, whichever side it is on.
template <class T>
void combine(Reduce reduce, T value, T* at) {
  switch (reduce) {
    case Reduce::kWrite:
      *at = value;
      return;
    case Reduce::kSum:
    case Reduce::kMean:
      if constexpr (std::is_same_v<T, bool>) {
        *at = *at || value;
      } else {
        *at = static_cast<T>(*at + value);
      }
      return;
    case Reduce::kProd:
      if constexpr (std::is_same_v<T, bool>) {
        *at = *at && value;
      } else {
        *at = static_cast<T>(*at * value);
      }
      return;
    case Reduce::kAmax:
      if (*at == *at && (value != value || value > *at)) *at = value;
      return;
    case Reduce::kAmin:
      if (*at == *at && (value != value || value < *at)) *at = value;
      return;
  }
}

template <class T>
T neutral(Reduce reduce) {
  using Limits = std::numeric_limits<T>;
  switch (reduce) {
    case Reduce::kProd:
      return T{1};
    case Reduce::kAmax:
      return Limits::has_infinity ? static_cast<T>(-Limits::infinity()) : Limits::lowest();
    case Reduce::kAmin:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    default:
      return T{0};
  }
}

// Rounded down, as aten divides integers here.
template <class T>
T mean_of(T sum, int64_t count) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(sum / static_cast<T>(count));
  } else {
    const auto wide = static_cast<int64_t>(sum);
    const int64_t quotient = wide / count;
    return static_cast<T>(wide % count < 0 ? quotient - 1 : quotient);
  }
}

// f(offset in the target, offset in the source) for every index; sizes are those of the index.
// Lines go to places of their own, so several threads take them; each line is gone through in its
// order.
template <class F>
void each_index(const Tensor& index, const Tensor& target, const Tensor* source, int dim,
                const F& f) {
  const int64_t n = size_along(index, dim);
  const int64_t limit = size_along(target, dim);
  const Lines lines(index, dim);
  const int64_t step = stride_along(index, dim);
  const int64_t target_step = stride_along(target, dim);
  const int64_t source_step = source == nullptr ? 0 : stride_along(*source, dim);
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
  std::atomic<int64_t> outside{kNone};  // a task can't fail
  each_line(lines, 2 * n, [&](int64_t line) {
    const int64_t* indices = index.as<int64_t>() + lines.start(line, index);
    const int64_t into = lines.start(line, target);
    const int64_t from = source == nullptr ? 0 : lines.start(line, *source);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = indices[i * step];
      if (at < 0 || at >= limit) {
        int64_t none = kNone;
        outside.compare_exchange_strong(none, at);
        return;
      }
      f(into + at * target_step, from + i * source_step);
    }
  });
  if (outside != kNone) fail("the index %ld is outside 0..%ld", outside.load(), limit - 1);
}

void check_fits(const Tensor& index, const Tensor& target, const Tensor* source, int dim) {
  const bool same_dims =
      std::max(index.dims, 1) == std::max(target.dims, 1) &&
      (source == nullptr || std::max(source->dims, 1) == std::max(index.dims, 1));
  if (!same_dims) fail("index, source and target have different numbers of dimensions");
  for (int d = 0; d < index.dims; ++d) {
    const bool too_large = (d != dim && index.sizes[d] > target.sizes[d]) ||
                           (source != nullptr && index.sizes[d] > source->sizes[d]);
    if (too_large)
      fail("the index has size %ld in dimension %d, more than it may", index.sizes[d], d);
  }
}

// out = self, then out[index] = reduce(out[index], source) along `dim`.
void scatter(Tensor* out, const Tensor& self, int64_t dim, const Tensor& given_index,
             const Tensor* given_source, double value, Reduce reduce, bool include_self) {
  const int along = dimension_of(self, dim);
  OwnedTensor index_holder, source_holder, apart, wide;
  const Tensor& index = converted(given_index, kInt64, &index_holder);
  Tensor* target = out;
  if (wide_dtype(out->dtype) != out->dtype) {
    wide.reset(new_contiguous(out->dims, out->sizes, kFloat32));
    target = wide.get();
  }
  const Tensor* source = given_source;
  if (source != nullptr) {
    source = &converted(*source, target->dtype, &source_holder);
    if (shares_memory(*source, *target)) {
      apart.reset(new_contiguous_copy(*source));
      source = apart.get();
    }
  }
  if (target != &self) copy_elements(self, target);
  if (index.numel() > 0) {
    check_fits(index, *target, source, along);
    visit_plain(target->dtype, "scattering", [&](auto zero) {
      using T = decltype(zero);
      T* into = target->as<T>();
      if (!include_self) {
        each_index(index, *target, source, along,
                   [&](int64_t to, int64_t) { into[to] = neutral<T>(reduce); });
      }
      const T scalar = static_cast<T>(value);
      each_index(index, *target, source, along, [&](int64_t to, int64_t from) {
        combine(reduce, source == nullptr ? scalar : source->as<T>()[from], into + to);
      });
      if (reduce != Reduce::kMean) return;
      if constexpr (!std::is_same_v<T, bool>) {
        OwnedTensor counts(new_empty(target->dims, target->sizes, target->strides, kInt32));
        fill_elements(include_self ? 1 : 0, counts.get());
        int32_t* const count = counts->as<int32_t>();
        each_index(index, *target, source, along, [&](int64_t to, int64_t) { ++count[to]; });
        // The first visit divides, and leaves 1 behind.
        each_index(index, *target, source, along, [&](int64_t to, int64_t) {
          into[to] = mean_of(into[to], count[to]);
          count[to] = 1;
        });
      } else {
        fail("means of bool aren't supported");
      }
    });
  }
  if (target != out) copy_elements(*target, out);
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_scatter_src_out(AtenTensorHandle out, AtenTensorHandle self,
                                                 int64_t dim, AtenTensorHandle index,
                                                 AtenTensorHandle src) {
  return unchecked("aoti_torch_cpu_scatter_src_out", [&] {
    scatter(unwrap(out), *unwrap(self), dim, *unwrap(index), unwrap(src), 0, Reduce::kWrite, true);
  });
}

EC_API int32_t ec_aoti_torch_cpu_scatter_value_out(AtenTensorHandle out, AtenTensorHandle self,
                                                   int64_t dim, AtenTensorHandle index,
                                                   double value) {
  return unchecked("aoti_torch_cpu_scatter_value_out", [&] {
    scatter(unwrap(out), *unwrap(self), dim, *unwrap(index), nullptr, value, Reduce::kWrite, true);
  });
}

EC_API int32_t ec_aoti_torch_cpu_scatter_reduce_two_out(AtenTensorHandle out, AtenTensorHandle self,
                                                        int64_t dim, AtenTensorHandle index,
                                                        AtenTensorHandle src, const char* reduce,
                                                        int32_t include_self) {
  return unchecked("aoti_torch_cpu_scatter_reduce_two_out", [&] {
    scatter(unwrap(out), *unwrap(self), dim, *unwrap(index), unwrap(src), 0, reduce_of(reduce),
            include_self != 0);
  });
}

EC_API int32_t ec_aoti_torch_cpu_masked_scatter(AtenTensorHandle self, AtenTensorHandle mask,
                                                AtenTensorHandle source, AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_masked_scatter", [&] {
    const Tensor& given = *unwrap(self);
    const Tensor& marks = *unwrap(mask);
    if (marks.dtype != kBool) fail("mask is %s", dtype_name(marks.dtype));
    // self and mask broadcast to each other.
    int64_t sizes[kMaxDims];
    int dims = given.dims;
    std::copy(given.sizes, given.sizes + dims, sizes);
    broadcast_sizes(marks, "self and mask", &dims, sizes);
    OwnedTensor wide_self(new_broadcast(given, dims, sizes, "self"));
    OwnedTensor wide_mask(new_broadcast(marks, dims, sizes, "mask"));
    OwnedTensor result(new_contiguous_copy(*wide_self));
    OwnedTensor row_mask(new_contiguous_copy(*wide_mask));
    OwnedTensor values(new_contiguous_copy(*unwrap(source)));
    if (values->dtype != given.dtype) fail("source is %s", dtype_name(values->dtype));
    const int64_t item = element_size(given.dtype);
    const int64_t available = values->numel();
    int64_t used = 0;
    for (int64_t i = 0, n = result->numel(); i < n; ++i) {
      if (!row_mask->as<bool>()[i]) continue;
      if (used == available) {
        fail("the mask takes more than the %ld values of the source", available);
      }
      std::memcpy(result->data + i * item, values->data + used++ * item, static_cast<size_t>(item));
    }
    *ret0 = wrap(result.release());
  });
}

}  // namespace ec
