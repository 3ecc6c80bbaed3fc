// Which bucket serves which sizes; inputs padded for it and outputs cut.
#include "call/dispatch.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>

#include "base/text.h"

namespace ecr {
namespace {

constexpr size_t kMaxListed = 32;

bool contains(const Bucket& bucket, const Sizes& sizes) {
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (!bucket.axes[axis].contains(sizes[axis])) return false;
  }
  return true;
}

// The product; the largest integer where it would be larger. Buckets that differ only beyond are
// told apart by their ends.
int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

// Whether it pads, its elements, and for each axis in order its upper end, minus its lower end.
using Preference = std::tuple<bool, int64_t, std::vector<int64_t>>;

}  // namespace

Dispatcher::Dispatcher(const Manifest& manifest, std::vector<Bucket> buckets)
    : manifest_(manifest), buckets_(std::move(buckets)) {
  std::set<size_t> padded;
  for (const Bucket& bucket : buckets_) {
    padded.insert(bucket.pad_axes.begin(), bucket.pad_axes.end());
  }
  // The length first, the others by their names.
  std::vector<size_t> axes;
  if (manifest.length_axis) axes.push_back(*manifest.length_axis);
  for (size_t i = 0; i < manifest.axes.size(); ++i) {
    if (manifest.length_axis != i) axes.push_back(i);
  }
  std::vector<Preference> preferences;
  for (const Bucket& bucket : buckets_) {
    int64_t elements = 1;
    for (const size_t axis : padded) elements = saturating_product(elements, bucket.axes[axis].hi);
    std::vector<int64_t> ends;
    for (const size_t axis : axes) {
      ends.push_back(bucket.axes[axis].hi);
      ends.push_back(-bucket.axes[axis].lo);
    }
    preferences.emplace_back(bucket.padded, elements, std::move(ends));
  }
  order_.resize(buckets_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  // Stable: of equals the first of the list.
  std::stable_sort(order_.begin(), order_.end(),
                   [&preferences](size_t a, size_t b) { return preferences[a] < preferences[b]; });
}

size_t Dispatcher::choose(const Sizes& sizes) const {
  for (const size_t index : order_) {
    if (contains(buckets_[index], sizes)) return index;
  }
  std::string text = "no bucket takes the sizes " + sizes_text(sizes);
  const size_t listed = std::min(buckets_.size(), kMaxListed);
  for (size_t i = 0; i < listed; ++i) {
    text += cat("\n  bucket ", i, ": ", bucket_text(manifest_, buckets_[i]));
  }
  if (listed < buckets_.size()) {
    text += cat("\n  ... and ", buckets_.size() - listed, " more");
  }
  fail(ECR_OUTSIDE, text, hint(sizes));
}

void Dispatcher::check(size_t index, const Sizes& sizes) const {
  const Bucket& bucket = buckets_[index];
  if (contains(bucket, sizes)) return;
  fail(ECR_OUTSIDE, cat("bucket ", index, " (", bucket_text(manifest_, bucket),
                        ") doesn't take the sizes ", sizes_text(sizes)));
}

std::string Dispatcher::sizes_text(const Sizes& sizes) const {
  std::string text;
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    text += cat(axis == 0 ? "" : ", ", manifest_.axes[axis].name, " ", sizes[axis]);
  }
  return text;
}

std::string Dispatcher::hint(const Sizes& sizes) const {
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    const Axis& item = manifest_.axes[axis];
    if (sizes[axis] > item.extent.hi) {
      return cat("cut ", item.name, " to at most ", item.extent.hi,
                 ", or build the bundle for larger sizes");
    }
    if (sizes[axis] < item.extent.lo) {
      return cat(item.name, " must be at least ", item.extent.lo);
    }
  }
  return "the sizes are in a gap between the buckets; build the bundle with these lengths";
}

std::vector<Array> Dispatcher::pad(const Bucket& bucket, const std::vector<Array>& arrays,
                                   const Sizes& sizes) const {
  Sizes filled = sizes;
  for (const size_t axis : bucket.pad_axes) filled[axis] = bucket.axes[axis].hi;
  std::vector<Array> result;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const TensorSpec& spec = manifest_.inputs[i];
    const Array& array = arrays[i];
    Sizes shape = shape_of(spec, filled);
    if (shape == array.sizes) {
      result.push_back({array.type, std::move(shape), array.data, {}});
      continue;
    }
    Array padded = make_array(*array.type, std::move(shape));
    // The manifest's reader made sure that every such input has a pad value.
    fill(&padded, spec.pad.value());
    copy_box(padded.owned.data(), row_major(padded.sizes), array.data, row_major(array.sizes),
             array.sizes, array.type->size);
    result.push_back(std::move(padded));
  }
  return result;
}

Sizes Dispatcher::hint_sizes(size_t index) const {
  const Bucket& bucket = buckets_[index];
  Sizes sizes;
  for (const Extent& extent : bucket.axes) sizes.push_back(extent.hint);
  for (const size_t axis : bucket.pad_axes) sizes[axis] = bucket.axes[axis].hi;
  return sizes;
}

}  // namespace ecr
