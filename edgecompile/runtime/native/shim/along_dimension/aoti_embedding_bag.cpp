// Sums, means and maxima of bags of a table's rows, in AOTInductor's C ABI.
#include <vector>

#include "shim/along_dimension/lines.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {
namespace {

enum Mode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

struct Bags {
  const Tensor& table;     // [rows, width], contiguous last dimension
  const int64_t* indices;  // [count]
  const int64_t* offsets;  // [bags], and the end behind them
  const Tensor* scales;    // [count], of the table's dtype; null: 1
  int64_t count, bags, padding;
};

// One row of the result, its bag's size without padding, and where its maxima were found.
template <class T>
int64_t reduce_bag(const Bags& bags, int64_t bag, int64_t mode, T* result, int64_t* places) {
  const int64_t width = bags.table.sizes[1];
  std::fill(result, result + width, T{0});
  int64_t size = 0;
  for (int64_t i = bags.offsets[bag]; i < bags.offsets[bag + 1]; ++i) {
    const int64_t index = bags.indices[i];
    if (index < 0 || index >= bags.table.sizes[0]) {
      fail("the index %ld is outside a table of %ld rows", index, bags.table.sizes[0]);
    }
    if (index == bags.padding) continue;
    const T* row = bags.table.as<T>() + index * bags.table.strides[0];
    if (mode == kMax) {
      for (int64_t j = 0; j < width; ++j) {
        if (size == 0 || row[j] > result[j]) {
          result[j] = row[j];
          places[j] = index;
        }
      }
    } else {
      const T scale = bags.scales == nullptr ? T{1} : bags.scales->as<T>()[i];
      for (int64_t j = 0; j < width; ++j) result[j] += scale * row[j];
    }
    ++size;
  }
  if (mode == kMean && size > 0) {
    for (int64_t j = 0; j < width; ++j) result[j] /= static_cast<T>(size);
  }
  return size;
}

void embedding_bag(const Tensor& given, const Tensor& given_indices, const Tensor& given_offsets,
                   int64_t mode, const Tensor* scales, bool include_last_offset,
                   int64_t padding_idx, AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                   AtenTensorHandle* ret2, AtenTensorHandle* ret3) {
  require_dims(given, 2, "weight");
  require_dims(given_indices, 1, "indices");
  require_dims(given_offsets, 1, "offsets");
  if (mode < kSum || mode > kMax) fail("mode %ld", mode);
  OwnedTensor wide, table_copy, index_copy, offset_copy, scale_copy, scale_row;
  const Tensor& table =
      with_contiguous_last(converted(given, wide_dtype(given.dtype), &wide), &table_copy);
  const int64_t count = given_indices.sizes[0];
  const int64_t starts = given_offsets.sizes[0];
  const int64_t bags = include_last_offset ? starts - 1 : starts;
  if (bags < 0) fail("no offsets, and the last one is included");
  const int64_t* const offsets = int64s_of(given_offsets, &offset_copy);
  std::vector<int64_t> bound(offsets, offsets + bags);
  bound.push_back(count);
  if (starts > 0 && offsets[0] != 0) fail("the first offset isn't 0");
  if (include_last_offset && offsets[bags] != count) {
    // torch leaves out what is behind the last offset in the sums that have a fast kernel, and
    // takes it in everywhere else.
    if (mode != kSum || padding_idx >= 0 || given.dtype == kFloat64 || given.strides[1] != 1) {
      fail("the last offset is %ld, there are %ld indices", offsets[bags], count);
    }
    if (offsets[bags] > count) fail("the offsets go beyond the indices");
    bound.back() = offsets[bags];
  }
  if (bound[0] < 0 || !std::is_sorted(bound.begin(), bound.end())) {
    fail("the offsets aren't ascending");
  }
  if (scales != nullptr) {
    if (mode != kSum || scales->dims != 1 || scales->sizes[0] != count) {
      fail("per_sample_weights don't fit");
    }
    scales = &row_major(converted(*scales, table.dtype, &scale_copy), &scale_row);
  }
  const int64_t width = table.sizes[1];
  const int64_t sizes[2] = {bags, width};
  OwnedTensor result(new_contiguous(2, sizes, table.dtype));
  // What aten gives beside the result, as far as it computes it without gradients.
  OwnedTensor bag_sizes(new_contiguous(1, &bags, kInt64));
  OwnedTensor places(new_contiguous(mode == kMax ? 2 : 1, sizes, kInt64));
  fill_elements(0, places.get());
  const int64_t owners = mode != kSum || padding_idx >= 0 ? count : 0;
  OwnedTensor owner(new_contiguous(1, &owners, kInt64));
  const Bags all{
      table, int64s_of(given_indices, &index_copy), bound.data(), scales, count, bags, padding_idx};
  for (int64_t bag = 0; bag < bags; ++bag) {
    visit_floats(table.dtype, "bags", [&](auto zero) {
      using T = decltype(zero);
      const int64_t size = reduce_bag(all, bag, mode, result->as<T>() + bag * width,
                                      mode == kMax ? places->as<int64_t>() + bag * width : nullptr);
      bag_sizes->as<int64_t>()[bag] = mode == kSum ? 0 : size;
      if (mode == kMean) places->as<int64_t>()[bag] = size;
    });
    for (int64_t i = bound[bag]; i < bound[bag + 1] && owners > 0; ++i) {
      owner->as<int64_t>()[i] = bag;
    }
  }
  for (int64_t i = 0; i < bound[0] && owners > 0; ++i) owner->as<int64_t>()[i] = 0;
  // All of them are there before the first one is given away: a failure gives none.
  const int32_t index_dtype = given_indices.dtype;
  result.reset(narrowed(&result, given.dtype));
  owner.reset(narrowed(&owner, index_dtype));
  bag_sizes.reset(narrowed(&bag_sizes, index_dtype));
  places.reset(narrowed(&places, index_dtype));
  *ret0 = wrap(result.release());
  *ret1 = wrap(owner.release());
  *ret2 = wrap(bag_sizes.release());
  *ret3 = wrap(places.release());
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu__embedding_bag_forward_only(
    AtenTensorHandle weight, AtenTensorHandle indices, AtenTensorHandle offsets, int32_t,
    int64_t mode, int32_t, AtenTensorHandle* per_sample_weights, int32_t include_last_offset,
    int64_t padding_idx, AtenTensorHandle* ret0, AtenTensorHandle* ret1, AtenTensorHandle* ret2,
    AtenTensorHandle* ret3) {
  return guarded("aoti_torch_cpu__embedding_bag_forward_only", [&] {
    embedding_bag(*unwrap(weight), *unwrap(indices), *unwrap(offsets), mode,
                  unwrap_optional(per_sample_weights), include_last_offset != 0, padding_idx, ret0,
                  ret1, ret2, ret3);
  });
}

// With what a gradient would need: the same results, since there are no gradients here.
EC_API int32_t ec_aoti_torch_cpu__embedding_bag(AtenTensorHandle weight, AtenTensorHandle indices,
                                                AtenTensorHandle offsets, int32_t, int64_t mode,
                                                int32_t, AtenTensorHandle* per_sample_weights,
                                                int32_t include_last_offset, int64_t padding_idx,
                                                AtenTensorHandle* ret0, AtenTensorHandle* ret1,
                                                AtenTensorHandle* ret2, AtenTensorHandle* ret3) {
  return ec_aoti_torch_cpu__embedding_bag_forward_only(weight, indices, offsets, 0, mode, 0,
                                                       per_sample_weights, include_last_offset,
                                                       padding_idx, ret0, ret1, ret2, ret3);
}

}  // namespace ec
