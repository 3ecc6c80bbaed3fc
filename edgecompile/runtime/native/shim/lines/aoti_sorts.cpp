// Sorting and selecting of AOTInductor's C ABI.
//
// NaN counts as larger than everything, as in aten. Equal values keep their order, whichever way is
// sorted: torch promises that of a stable sort only, and leaves the order among equals of topk and
// kthvalue open.
#include <algorithm>
#include <vector>

#include "shim/handles.h"
#include "shim/lines/lines.h"

namespace ec {
namespace {

template <class T>
struct Entry {
  T value;
  int64_t index;
};

template <class T>
bool below(T a, T b) {
  return a < b || (b != b && a == a);
}

// Whether an entry comes first; the index settles ties, so that any sort is stable.
template <class T>
struct Before {
  bool descending;
  bool operator()(const Entry<T>& a, const Entry<T>& b) const {
    if (descending ? below(b.value, a.value) : below(a.value, b.value)) return true;
    if (descending ? below(a.value, b.value) : below(b.value, a.value)) return false;
    return a.index < b.index;
  }
};

// What one call gives: values in the computing dtype, and indices.
struct Selection {
  OwnedTensor values, indices;
};

// arrange(entries, before) puts what is wanted to the front; the first `count` are kept.
template <class Arrange>
void select(const Tensor& source, int dim, bool descending, int64_t count, const Selection& into,
            const Arrange& arrange) {
  const int64_t n = size_along(source, dim);
  const Lines lines(source, dim);
  if (lines.count() == 0 || n == 0) return;
  visit_plain(source.dtype, "sorting", [&](auto zero) {
    using T = decltype(zero);
    const int64_t step = stride_along(source, dim);
    const int64_t value_step = stride_along(*into.values, dim);
    const int64_t index_step = stride_along(*into.indices, dim);
    each_line(lines, 40 * n, [&](int64_t line) {
      thread_local std::vector<Entry<T>> entries;
      entries.resize(static_cast<size_t>(n));
      const T* from = source.as<T>() + lines.start(line, source);
      for (int64_t i = 0; i < n; ++i) entries[static_cast<size_t>(i)] = {from[i * step], i};
      arrange(entries, Before<T>{descending});
      T* values = into.values->as<T>() + lines.start(line, *into.values);
      int64_t* indices = into.indices->as<int64_t>() + lines.start(line, *into.indices);
      for (int64_t i = 0; i < count; ++i) {
        values[i * value_step] = entries[static_cast<size_t>(i)].value;
        indices[i * index_step] = entries[static_cast<size_t>(i)].index;
      }
    });
  });
}

void sort(const Tensor& self, int64_t dim, bool descending, AtenTensorHandle* ret0,
          AtenTensorHandle* ret1) {
  const int along = dimension_of(self, dim);
  OwnedTensor holder;
  const Tensor& source = converted(self, wide_dtype(self.dtype), &holder);
  int64_t strides[kMaxDims];
  preserved_strides(self, strides);
  Selection result;
  result.values.reset(new_empty(self.dims, self.sizes, strides, source.dtype));
  result.indices.reset(new_empty(self.dims, self.sizes, strides, kInt64));
  select(
      source, along, descending, size_along(self, along), result,
      [](auto& entries, const auto& before) { std::sort(entries.begin(), entries.end(), before); });
  Tensor* const values = narrowed(&result.values, self.dtype);
  *ret0 = wrap(values);
  *ret1 = wrap(result.indices.release());
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_sort(AtenTensorHandle self, int64_t dim, int32_t descending,
                                      AtenTensorHandle* ret0, AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu_sort",
                 [&] { sort(*unwrap(self), dim, descending != 0, ret0, ret1); });
}

EC_API int32_t ec_aoti_torch_cpu_sort_stable(AtenTensorHandle self, int32_t*, int64_t dim,
                                             int32_t descending, AtenTensorHandle* ret0,
                                             AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu_sort_stable",
                 [&] { sort(*unwrap(self), dim, descending != 0, ret0, ret1); });
}

// Always sorted; `sorted` false leaves the order open.
EC_API int32_t ec_aoti_torch_cpu_topk(AtenTensorHandle self, int64_t k, int64_t dim,
                                      int32_t largest, int32_t, AtenTensorHandle* ret0,
                                      AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu_topk", [&] {
    const Tensor& given = *unwrap(self);
    const int along = dimension_of(given, dim);
    const int64_t n = size_along(given, along);
    if (k < 0 || k > n) {
      fail("%ld values of %ld can't be selected", k, n);
    }
    OwnedTensor holder;
    const Tensor& source = converted(given, wide_dtype(given.dtype), &holder);
    int64_t sizes[kMaxDims] = {};
    std::copy(given.sizes, given.sizes + given.dims, sizes);
    if (given.dims > 0) sizes[along] = k;
    Selection result;
    result.values.reset(new_contiguous(given.dims, sizes, source.dtype));
    result.indices.reset(new_contiguous(given.dims, sizes, kInt64));
    if (k > 0) {
      select(source, along, largest != 0, k, result, [&](auto& entries, const auto& before) {
        std::partial_sort(entries.begin(), entries.begin() + k, entries.end(), before);
      });
    }
    Tensor* const values = narrowed(&result.values, given.dtype);
    *ret0 = wrap(values);
    *ret1 = wrap(result.indices.release());
  });
}

EC_API int32_t ec_aoti_torch_cpu_kthvalue(AtenTensorHandle self, int64_t k, int64_t dim,
                                          int32_t keepdim, AtenTensorHandle* ret0,
                                          AtenTensorHandle* ret1) {
  return guarded("aoti_torch_cpu_kthvalue", [&] {
    const Tensor& given = *unwrap(self);
    const int along = dimension_of(given, dim);
    const int64_t n = size_along(given, along);
    if (k < 1 || k > n) {
      fail("there is no value number %ld of %ld", k, n);
    }
    OwnedTensor holder;
    const Tensor& source = converted(given, wide_dtype(given.dtype), &holder);
    int64_t sizes[kMaxDims] = {};
    std::copy(given.sizes, given.sizes + given.dims, sizes);
    if (given.dims > 0) sizes[along] = 1;
    Selection result;
    result.values.reset(new_contiguous(given.dims, sizes, source.dtype));
    result.indices.reset(new_contiguous(given.dims, sizes, kInt64));
    select(source, along, false, 1, result, [&](auto& entries, const auto& before) {
      std::nth_element(entries.begin(), entries.begin() + (k - 1), entries.end(), before);
      std::swap(entries.front(), entries[static_cast<size_t>(k - 1)]);
    });
    OwnedTensor values(narrowed(&result.values, given.dtype));
    if (keepdim == 0 && given.dims > 0) {
      const auto without = [&](const Tensor& tensor) {
        int64_t left[kMaxDims], strides[kMaxDims];
        int dims = 0;
        for (int d = 0; d < tensor.dims; ++d) {
          if (d == along) continue;
          left[dims] = tensor.sizes[d];
          strides[dims++] = tensor.strides[d];
        }
        return new_view(tensor, dims, left, strides, tensor.offset, tensor.dtype);
      };
      values.reset(without(*values));
      result.indices.reset(without(*result.indices));
    }
    *ret0 = wrap(values.release());
    *ret1 = wrap(result.indices.release());
  });
}

}  // namespace ec
