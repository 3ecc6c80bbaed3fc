// Reading and writing at tensors of indices and at masks, in AOTInductor's C ABI. A mask stands for
// the indices of what is true in it, so that the size of what is read depends on values.
#include <algorithm>
#include <type_traits>

#include "shim/along_dimension/lines.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {
namespace {

// The indices of the true elements, [count, dims] of int64 in row-major order.
Tensor* true_places(const Tensor& mask) {
  OwnedTensor rows(new_contiguous_copy(mask));
  const bool* const marks = rows->as<bool>();
  const int64_t total = rows->numel();
  const int64_t sizes[] = {std::count(marks, marks + total, true), mask.dims};
  OwnedTensor result(new_contiguous(2, sizes, kInt64));
  int64_t* place = result->as<int64_t>();
  for (int64_t i = 0; i < total; ++i) {
    if (!marks[i]) continue;
    int64_t rest = i;
    for (int d = mask.dims - 1; d >= 0; --d) {
      place[d] = rest % mask.sizes[d];
      rest /= mask.sizes[d];
    }
    place += mask.dims;
  }
  return result.release();
}

// A list of indices into a tensor, as aten::index has it: integers that broadcast to each other,
// masks, or nothing, which takes all of a dimension. The place of the indexed dimensions is taken
// by the common ones: where the first of them stood if they are neighbours, else in front.
class Indexing {
 public:
  template <class HandleAt>
  Indexing(const Tensor& self, int64_t count, const HandleAt& handle_at) : self_(self) {
    int taken = 0;
    for (int64_t i = 0; i < count; ++i) {
      const AtenTensorHandle handle = handle_at(i);
      taken += handle == nullptr ? 1 : add(*unwrap(handle), taken);
      if (taken > self.dims) fail("more indices than the %d dimensions", self.dims);
    }
    if (indexed_ == 0) fail("there is no index");
    place_ = last_ - first_ + 1 == indexed_ ? first_ : 0;
    for (int d = 0; d < self.dims; ++d) {
      if (indices_[d].get() != nullptr) {
        indices_[d].reset(new_broadcast(*indices_[d], common_dims_, common_, "an index"));
      } else {
        if (d < place_) ++before_;
        kept_[kept_dims_++] = d;
      }
    }
    dims = kept_dims_ + common_dims_;
    if (dims > kMaxDims) fail("results of %d dimensions aren't supported", dims);
    for (int k = 0; k < kept_dims_; ++k) {
      sizes[position(k)] = self.sizes[kept_[k]];
      strides[position(k)] = self.strides[kept_[k]];
    }
    for (int d = 0; d < common_dims_; ++d) {
      sizes[place_ + d] = common_[d];
      strides[place_ + d] = 0;
    }
  }

  // What is read or written; the strides are self's, zero along the common dimensions.
  int dims = 0;
  int64_t sizes[kMaxDims], strides[kMaxDims];

  // f(offset in `other`, which has these sizes; offset in `target`, which has self's), for each
  // element in a fixed order.
  template <class F>
  void each(const Tensor& other, const Tensor& target, const F& f) const {
    int64_t total = 1, kept = 1;
    for (int d = 0; d < common_dims_; ++d) total *= common_[d];
    for (int k = 0; k < kept_dims_; ++k) kept *= self_.sizes[kept_[k]];
    if (kept == 0) return;
    for (int64_t i = 0; i < total; ++i) {
      int64_t at[kMaxDims];
      int64_t rest = i, from = 0;
      for (int d = common_dims_ - 1; d >= 0; --d) {
        at[d] = rest % common_[d];
        rest /= common_[d];
        from += at[d] * other.strides[place_ + d];
      }
      each_kept(0, other, target, from, start(at, target), f);
    }
  }

 private:
  // Takes an index for the dimension `at` and gives the number of dimensions that it stands for.
  int add(const Tensor& index, int at) {
    if (index.dtype != kBool) {
      if (index.dtype != kInt64 && index.dtype != kInt32) {
        fail("an index of %s isn't supported", dtype_name(index.dtype));
      }
      if (at >= self_.dims) fail("more indices than the %d dimensions", self_.dims);
      OwnedTensor holder;
      const Tensor& whole = converted(index, kInt64, &holder);
      put(&whole == &index ? new_alias(index) : holder.release(), at);
      return 1;
    }
    if (index.dims == 0 || at + index.dims > self_.dims) {
      fail("a mask of %d dimensions for the last %d of %d", index.dims, self_.dims - at,
           self_.dims);
    }
    for (int d = 0; d < index.dims; ++d) {
      if (index.sizes[d] == self_.sizes[at + d]) continue;
      fail("a mask of size %ld for a dimension of size %ld", index.sizes[d], self_.sizes[at + d]);
    }
    const OwnedTensor places(true_places(index));
    for (int d = 0; d < index.dims; ++d) {
      put(new_view(*places, 1, places->sizes, places->strides, d, kInt64), at + d);
    }
    return index.dims;
  }

  void put(Tensor* index, int at) {
    indices_[at].reset(index);
    if (indexed_++ == 0) first_ = at;
    last_ = at;
    // Sizes broadcast from the right.
    broadcast_sizes(*index, "the indices", &common_dims_, common_);
  }

  // The dimension of the result that a kept one becomes.
  int position(int k) const { return k < before_ ? k : k + common_dims_; }

  int64_t start(const int64_t* at, const Tensor& target) const {
    int64_t offset = 0;
    for (int d = 0; d < self_.dims; ++d) {
      if (indices_[d].get() == nullptr) continue;
      const Tensor& view = *indices_[d];
      int64_t element = 0;
      for (int c = 0; c < common_dims_; ++c) element += at[c] * view.strides[c];
      const int64_t index = view.as<int64_t>()[element], limit = self_.sizes[d];
      if (index < -limit || index >= limit) {
        fail("the index %ld is outside a dimension of size %ld", index, limit);
      }
      offset += (index < 0 ? index + limit : index) * target.strides[d];
    }
    return offset;
  }

  template <class F>
  void each_kept(int k, const Tensor& other, const Tensor& target, int64_t from, int64_t into,
                 const F& f) const {
    if (k == kept_dims_) return f(from, into);
    const int64_t size = self_.sizes[kept_[k]];
    const int64_t step = other.strides[position(k)], stride = target.strides[kept_[k]];
    for (int64_t i = 0; i < size; ++i) {
      each_kept(k + 1, other, target, from + i * step, into + i * stride, f);
    }
  }

  const Tensor& self_;
  OwnedTensor indices_[kMaxDims];
  int64_t common_[kMaxDims] = {1};
  int kept_[kMaxDims];
  int common_dims_ = 0, kept_dims_ = 0, indexed_ = 0, first_ = 0, last_ = 0;
  int place_ = 0, before_ = 0;  // where the common dimensions are, and the kept ones in front
};

// self[indices].
Tensor* index(const Tensor& self, const AtenTensorHandle** handles, int64_t count) {
  const Indexing indexing(self, count,
                          [&](int64_t i) { return handles[i] == nullptr ? nullptr : *handles[i]; });
  int64_t strides[kMaxDims];
  // This is what torch's shape function (meta_index_Tensor) says, and generated code expects; aten
  // itself looks at the strides of the indices, too.
  dense_strides(indexing.dims, indexing.sizes, indexing.strides, strides);
  OwnedTensor result(new_empty(indexing.dims, indexing.sizes, strides, self.dtype));
  visit_bytes(element_size(self.dtype), [&](auto element) {
    using T = decltype(element);
    indexing.each(*result, self,
                  [&](int64_t into, int64_t from) { result->as<T>()[into] = self.as<T>()[from]; });
  });
  return result.release();
}

// out[indices] = values, or += with `accumulate`.
void index_put(Tensor* out, const Tensor& self, const AtenTensorHandle* handles, int64_t count,
               const Tensor& given_values, bool accumulate) {
  const Indexing indexing(self, count, [&](int64_t i) { return handles[i]; });
  if (out != &self) copy_elements(self, out);
  OwnedTensor holder, copy;
  const Tensor& typed = converted(given_values, out->dtype, &holder);
  const Tensor* source = &typed;
  if (shares_memory(typed, *out)) {
    copy.reset(new_contiguous_copy(typed));
    source = copy.get();
  }
  const OwnedTensor values(new_broadcast(*source, indexing.dims, indexing.sizes, "values"));
  if (!accumulate) {
    return visit_bytes(element_size(out->dtype), [&](auto element) {
      using T = decltype(element);
      indexing.each(*values, *out, [&](int64_t from, int64_t into) {
        out->as<T>()[into] = values->as<T>()[from];
      });
    });
  }
  visit_plain(out->dtype, "adding at indices", [&](auto zero) {
    using T = decltype(zero);
    indexing.each(*values, *out, [&](int64_t from, int64_t into) {
      const T value = values->as<T>()[from];
      T* const at = out->as<T>() + into;
      if constexpr (std::is_same_v<T, bool>) {
        *at = *at || value;
      } else {
        *at = static_cast<T>(*at + value);
      }
    });
  });
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_index_Tensor(AtenTensorHandle self,
                                              const AtenTensorHandle** indices,
                                              int64_t indices_len_, AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_index_Tensor",
                 [&] { *ret0 = wrap(index(*unwrap(self), indices, indices_len_)); });
}

EC_API int32_t ec_aoti_torch_index_put_out(AtenTensorHandle out, AtenTensorHandle self,
                                           const AtenTensorHandle* indices, uint32_t num_indices,
                                           AtenTensorHandle values, bool accumulate) {
  return unchecked("aoti_torch_index_put_out", [&] {
    index_put(unwrap(out), *unwrap(self), indices, num_indices, *unwrap(values), accumulate);
  });
}

EC_API int32_t ec_aoti_torch_cpu_nonzero(AtenTensorHandle self, AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_nonzero", [&] {
    OwnedTensor holder;
    const OwnedTensor places(true_places(converted(*unwrap(self), kBool, &holder)));
    // aten's has the coordinates of a dimension next to each other.
    const int64_t strides[] = {1, std::max<int64_t>(places->sizes[0], 1)};
    OwnedTensor result(new_empty(2, places->sizes, strides, kInt64));
    copy_elements(*places, result.get());
    *ret0 = wrap(result.release());
  });
}

}  // namespace ec
