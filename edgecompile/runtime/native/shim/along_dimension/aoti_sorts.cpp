// Sorting and selecting of AOTInductor's C ABI.
//
// NaN counts as larger than everything, as in aten. Equal values keep their order, whichever way is
// sorted: torch promises that of a stable sort only, and leaves the order among equals of topk and
// kthvalue open.
#include <algorithm>
#include <vector>

#include "shim/along_dimension/lines.h"
#include "shim/handles.h"

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

// Sizes and strides of what one call gives.
struct Shape {
  int64_t sizes[kMaxDims] = {}, strides[kMaxDims] = {};

  // Row-major, as self with `count` elements along `dim`.
  Shape(const Tensor& self, int dim, int64_t count) {
    std::copy(self.sizes, self.sizes + self.dims, sizes);
    if (self.dims > 0) sizes[dim] = count;
    contiguous_strides(self.dims, sizes, strides);
  }
};

struct Selection {
  OwnedTensor values, indices;
};

// arrange(entries, before) puts what is wanted to the front of each line; as many as the shape has
// are kept.
template <class Arrange>
void select(const Tensor& self, int dim, bool descending, const Shape& shape, Selection* result,
            const Arrange& arrange) {
  OwnedTensor holder;
  const Tensor& source = converted(self, wide_dtype(self.dtype), &holder);
  result->values.reset(new_empty(self.dims, shape.sizes, shape.strides, source.dtype));
  result->indices.reset(new_empty(self.dims, shape.sizes, shape.strides, kInt64));
  const int64_t n = size_along(source, dim), count = size_along(*result->values, dim);
  const Lines lines(source, dim);
  if (lines.count() > 0 && count > 0) {
    visit_plain(source.dtype, "sorting", [&](auto zero) {
      using T = decltype(zero);
      const int64_t step = stride_along(source, dim);
      const int64_t result_step = stride_along(*result->values, dim);
      each_line(lines, 40 * n, [&](int64_t line) {
        thread_local std::vector<Entry<T>> entries;
        entries.resize(static_cast<size_t>(n));
        const T* from = source.as<T>() + lines.start(line, source);
        for (int64_t i = 0; i < n; ++i) entries[static_cast<size_t>(i)] = {from[i * step], i};
        arrange(entries, Before<T>{descending});
        const int64_t start = lines.start(line, *result->values);
        for (int64_t i = 0; i < count; ++i) {
          const Entry<T>& entry = entries[static_cast<size_t>(i)];
          result->values->as<T>()[start + i * result_step] = entry.value;
          result->indices->as<int64_t>()[start + i * result_step] = entry.index;
        }
      });
    });
  }
  result->values.reset(narrowed(&result->values, self.dtype));
}

void sort(const Tensor& self, int64_t dim, bool descending, AtenTensorHandle* ret0,
          AtenTensorHandle* ret1) {
  const int along = dimension_of(self, dim);
  Shape shape(self, along, size_along(self, along));
  preserved_strides(self, shape.strides);
  Selection result;
  select(self, along, descending, shape, &result, [](auto& entries, const auto& before) {
    std::sort(entries.begin(), entries.end(), before);
  });
  *ret0 = wrap(result.values.release());
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
    if (k < 0 || k > n) fail("%ld values of %ld can't be selected", k, n);
    Selection result;
    select(given, along, largest != 0, Shape(given, along, k), &result,
           [&](auto& entries, const auto& before) {
             std::partial_sort(entries.begin(), entries.begin() + k, entries.end(), before);
           });
    *ret0 = wrap(result.values.release());
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
    if (k < 1 || k > n) fail("there is no value number %ld of %ld", k, n);
    Selection result;
    select(given, along, false, Shape(given, along, 1), &result,
           [&](auto& entries, const auto& before) {
             std::nth_element(entries.begin(), entries.begin() + (k - 1), entries.end(), before);
             std::swap(entries.front(), entries[static_cast<size_t>(k - 1)]);
           });
    if (keepdim == 0 && given.dims > 0) {
      // Both are row-major, so the dimension of size 1 only has to be left out.
      int64_t sizes[kMaxDims];
      std::copy(given.sizes, given.sizes + along, sizes);
      std::copy(given.sizes + along + 1, given.sizes + given.dims, sizes + along);
      int64_t strides[kMaxDims];
      contiguous_strides(given.dims - 1, sizes, strides);
      for (OwnedTensor* tensor : {&result.values, &result.indices}) {
        tensor->reset(new_view(**tensor, given.dims - 1, sizes, strides, 0, (*tensor)->dtype));
      }
    }
    *ret0 = wrap(result.values.release());
    *ret1 = wrap(result.indices.release());
  });
}

}  // namespace ec
