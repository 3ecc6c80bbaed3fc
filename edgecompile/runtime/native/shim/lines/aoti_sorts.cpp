// Sorting and selecting of AOTInductor's C ABI.
//
// NaN counts as larger than everything, as in aten. Equal values keep their order, whichever way is
// sorted: torch promises that of a stable sort only, and leaves the order among equals of topk and
// kthvalue open.
#include <algorithm>
#include <vector>

#include "shim/aoti_abi.h"
#include "shim/lines/lines.h"

namespace {

using ec::fail;
using ec::OwnedTensor;
using ec::Tensor;
using ec::unwrap;

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
  const int64_t n = ec::size_along(source, dim);
  const ec::Lines lines(source, dim);
  if (lines.count() == 0 || n == 0) return;
  ec::visit_plain(source.dtype, "sorting", [&](auto zero) {
    using T = decltype(zero);
    const int64_t step = ec::stride_along(source, dim);
    const int64_t value_step = ec::stride_along(*into.values, dim);
    const int64_t index_step = ec::stride_along(*into.indices, dim);
    ec::each_line(lines, 40 * n, [&](int64_t line) {
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
  const int along = ec::dimension_of(self, dim);
  OwnedTensor holder;
  const Tensor& source = ec::converted(self, ec::wide_dtype(self.dtype), &holder);
  int64_t strides[ec::kMaxDims];
  ec::preserved_strides(self, strides);
  Selection result;
  result.values.reset(ec::new_empty(self.dims, self.sizes, strides, source.dtype));
  result.indices.reset(ec::new_empty(self.dims, self.sizes, strides, ec::kInt64));
  select(
      source, along, descending, ec::size_along(self, along), result,
      [](auto& entries, const auto& before) { std::sort(entries.begin(), entries.end(), before); });
  Tensor* const values = ec::narrowed(&result.values, self.dtype);
  *ret0 = ec::wrap(values);
  *ret1 = ec::wrap(result.indices.release());
}

}  // namespace

AOTITorchError ec_aoti_torch_cpu_sort(AtenTensorHandle self, int64_t dim, int32_t descending,
                                      AtenTensorHandle* ret0, AtenTensorHandle* ret1) {
  return ec::guarded("aoti_torch_cpu_sort",
                     [&] { sort(*unwrap(self), dim, descending != 0, ret0, ret1); });
}

AOTITorchError ec_aoti_torch_cpu_sort_stable(AtenTensorHandle self, int32_t*, int64_t dim,
                                             int32_t descending, AtenTensorHandle* ret0,
                                             AtenTensorHandle* ret1) {
  return ec::guarded("aoti_torch_cpu_sort_stable",
                     [&] { sort(*unwrap(self), dim, descending != 0, ret0, ret1); });
}

// Always sorted; `sorted` false leaves the order open.
AOTITorchError ec_aoti_torch_cpu_topk(AtenTensorHandle self, int64_t k, int64_t dim,
                                      int32_t largest, int32_t, AtenTensorHandle* ret0,
                                      AtenTensorHandle* ret1) {
  return ec::guarded("aoti_torch_cpu_topk", [&] {
    const Tensor& given = *unwrap(self);
    const int along = ec::dimension_of(given, dim);
    const int64_t n = ec::size_along(given, along);
    if (k < 0 || k > n) {
      fail("%lld values of %lld can't be selected", static_cast<long long>(k),
           static_cast<long long>(n));
    }
    OwnedTensor holder;
    const Tensor& source = ec::converted(given, ec::wide_dtype(given.dtype), &holder);
    int64_t sizes[ec::kMaxDims] = {};
    std::copy(given.sizes, given.sizes + given.dims, sizes);
    if (given.dims > 0) sizes[along] = k;
    Selection result;
    result.values.reset(ec::new_contiguous(given.dims, sizes, source.dtype));
    result.indices.reset(ec::new_contiguous(given.dims, sizes, ec::kInt64));
    if (k > 0) {
      select(source, along, largest != 0, k, result, [&](auto& entries, const auto& before) {
        std::partial_sort(entries.begin(), entries.begin() + k, entries.end(), before);
      });
    }
    Tensor* const values = ec::narrowed(&result.values, given.dtype);
    *ret0 = ec::wrap(values);
    *ret1 = ec::wrap(result.indices.release());
  });
}

AOTITorchError ec_aoti_torch_cpu_kthvalue(AtenTensorHandle self, int64_t k, int64_t dim,
                                          int32_t keepdim, AtenTensorHandle* ret0,
                                          AtenTensorHandle* ret1) {
  return ec::guarded("aoti_torch_cpu_kthvalue", [&] {
    const Tensor& given = *unwrap(self);
    const int along = ec::dimension_of(given, dim);
    const int64_t n = ec::size_along(given, along);
    if (k < 1 || k > n) {
      fail("there is no value number %lld of %lld", static_cast<long long>(k),
           static_cast<long long>(n));
    }
    OwnedTensor holder;
    const Tensor& source = ec::converted(given, ec::wide_dtype(given.dtype), &holder);
    int64_t sizes[ec::kMaxDims] = {};
    std::copy(given.sizes, given.sizes + given.dims, sizes);
    if (given.dims > 0) sizes[along] = 1;
    Selection result;
    result.values.reset(ec::new_contiguous(given.dims, sizes, source.dtype));
    result.indices.reset(ec::new_contiguous(given.dims, sizes, ec::kInt64));
    select(source, along, false, 1, result, [&](auto& entries, const auto& before) {
      std::nth_element(entries.begin(), entries.begin() + (k - 1), entries.end(), before);
      std::swap(entries.front(), entries[static_cast<size_t>(k - 1)]);
    });
    OwnedTensor values(ec::narrowed(&result.values, given.dtype));
    if (keepdim == 0 && given.dims > 0) {
      const auto without = [&](const Tensor& tensor) {
        int64_t left[ec::kMaxDims], strides[ec::kMaxDims];
        int dims = 0;
        for (int d = 0; d < tensor.dims; ++d) {
          if (d == along) continue;
          left[dims] = tensor.sizes[d];
          strides[dims++] = tensor.strides[d];
        }
        return ec::new_view(tensor, dims, left, strides, tensor.offset, tensor.dtype);
      };
      values.reset(without(*values));
      result.indices.reset(without(*result.indices));
    }
    *ret0 = ec::wrap(values.release());
    *ret1 = ec::wrap(result.indices.release());
  });
}
