// Histograms, and places in sorted sequences, of AOTInductor's C ABI.
#include <cmath>
#include <cstring>

#include "shim/along_dimension/lines.h"
#include "shim/arguments.h"
#include "shim/handles.h"

namespace ec {
namespace {

// Counts are kept in the values' own type, as aten does: they stop growing at 2^24 in float32.
template <class T>
void count(const Tensor& values, int64_t bins, double min, double max, T* counts) {
  const int64_t n = values.numel();
  const T* at = values.as<T>();
  T low = static_cast<T>(min), high = static_cast<T>(max);
  if (low == high && n > 0) {
    low = high = at[0];
    for (int64_t i = 0; i < n; ++i) {
      if (at[i] != at[i]) fail("range of [nan, nan] is not finite");
      low = std::min(low, at[i]);
      high = std::max(high, at[i]);
    }
  }
  if (low == high) {
    low -= 1;
    high += 1;
  }
  if (!std::isfinite(low) || !std::isfinite(high)) {
    fail("range of [%g, %g] is not finite", static_cast<double>(low), static_cast<double>(high));
  }
  if (low > high) fail("max must be larger than min");
  for (int64_t i = 0; i < n; ++i) {
    if (!(at[i] >= low && at[i] <= high)) continue;
    T place = (at[i] - low) * static_cast<T>(bins) / (high - low);
    if (!std::isfinite(place)) {
      // A step overflowed. No integer stands for what came of it, so not even a place among the
      // counts would.
      const T share = (at[i] / 4 - low / 4) / (high / 4 - low / 4);
      place = share * static_cast<T>(bins);
    }
    counts[place < static_cast<T>(bins) ? static_cast<int64_t>(place) : bins - 1] += 1;
  }
}

// The first place in an ascending line before which everything is less (right: or equal).
template <class T>
int64_t place_of(const T* line, int64_t n, T value, bool right) {
  int64_t start = 0, end = n;
  while (start < end) {
    const int64_t middle = start + (end - start) / 2;
    const bool after = right ? !(line[middle] > value) : !(line[middle] >= value);
    if (after) {
      start = middle + 1;
    } else {
      end = middle;
    }
  }
  return start;
}

// One line of the sequence for each line of the values, or one for all.
void search(const Tensor& sequence, const Tensor& values, bool out_int32, bool right,
            AtenTensorHandle* ret0) {
  const bool shared = sequence.dims == 1;
  if (sequence.dims < 1) fail("a sequence without a dimension can't be searched");
  if (!shared && sequence.dims != values.dims) {
    fail("a sequence of %d dimensions can't be searched for values of %d", sequence.dims,
         values.dims);
  }
  for (int d = 0; !shared && d < values.dims - 1; ++d) {
    if (sequence.sizes[d] != values.sizes[d]) fail("sequence and values differ in dimension %d", d);
  }
  // Both in one type that holds either.
  const bool floats = sequence.dtype == kFloat32 || sequence.dtype == kFloat64 ||
                      wide_dtype(sequence.dtype) != sequence.dtype || values.dtype == kFloat32 ||
                      values.dtype == kFloat64 || wide_dtype(values.dtype) != values.dtype;
  const int32_t common = floats ? kFloat64 : kInt64;
  OwnedTensor line_holder(new_contiguous(sequence.dims, sequence.sizes, common));
  copy_elements(sequence, line_holder.get());
  OwnedTensor value_holder(new_contiguous(values.dims, values.sizes, common));
  copy_elements(values, value_holder.get());
  OwnedTensor places(new_contiguous(values.dims, values.sizes, kInt64));
  const int64_t n = sequence.sizes[sequence.dims - 1];
  const int64_t width = shared ? std::max<int64_t>(values.numel(), 1)
                               : std::max<int64_t>(values.sizes[values.dims - 1], 1);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < values.numel(); ++i) {
      const T* line = line_holder->as<T>() + (shared ? 0 : i / width * n);
      places->as<int64_t>()[i] = place_of(line, n, value_holder->as<T>()[i], right);
    }
  };
  if (floats) {
    run(double{});
  } else {
    run(int64_t{});
  }
  *ret0 = wrap(narrowed(&places, out_int32 ? kInt32 : kInt64));
}

}  // namespace

EC_API int32_t ec_aoti_torch_cpu_histc(AtenTensorHandle self, int64_t bins, double min, double max,
                                       AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_histc", [&] {
    const Tensor& given = *unwrap(self);
    if (bins < 1) fail("a histogram of %ld bins", bins);
    OwnedTensor values(new_contiguous_copy(given));
    OwnedTensor counts(new_contiguous(1, &bins, given.dtype));
    fill_elements(0, counts.get());
    visit_floats(given.dtype, "a histogram", [&](auto zero) {
      using T = decltype(zero);
      count(*values, bins, min, max, counts->as<T>());
    });
    *ret0 = wrap(counts.release());
  });
}

EC_API int32_t ec_aoti_torch_cpu_searchsorted_Tensor(AtenTensorHandle sorted_sequence,
                                                     AtenTensorHandle self, int32_t out_int32,
                                                     int32_t right, const char** side,
                                                     AtenTensorHandle* sorter,
                                                     AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_searchsorted_Tensor", [&] {
    if (unwrap_optional(sorter) != nullptr) fail("a sorter isn't supported");
    const bool from_right = side != nullptr && std::strcmp(*side, "right") == 0;
    search(*unwrap(sorted_sequence), *unwrap(self), out_int32 != 0, right != 0 || from_right, ret0);
  });
}

EC_API int32_t ec_aoti_torch_cpu_bucketize_Tensor(AtenTensorHandle self,
                                                  AtenTensorHandle boundaries, int32_t out_int32,
                                                  int32_t right, AtenTensorHandle* ret0) {
  return guarded("aoti_torch_cpu_bucketize_Tensor", [&] {
    require_dims(*unwrap(boundaries), 1, "boundaries");
    search(*unwrap(boundaries), *unwrap(self), out_int32 != 0, right != 0, ret0);
  });
}

}  // namespace ec
