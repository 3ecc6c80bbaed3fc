// Which bucket serves which sizes; inputs padded for it and outputs cut.
#include "call/dispatch.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

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

struct Preference {
  bool padded;
  int64_t elements;
  std::vector<int64_t> ends;  // for each axis in order: its upper end, minus its lower end

  bool operator<(const Preference& other) const {
    if (padded != other.padded) return !padded;
    if (elements != other.elements) return elements < other.elements;
    return ends < other.ends;
  }
};

}  // namespace

Dispatcher::Dispatcher(const Manifest& manifest) : manifest_(manifest) {
  std::set<size_t> padded;
  for (const Bucket& bucket : manifest.buckets) {
    padded.insert(bucket.pad_axes.begin(), bucket.pad_axes.end());
  }
  std::vector<size_t> axes(manifest.axes.size());
  std::iota(axes.begin(), axes.end(), size_t{0});
  std::sort(axes.begin(), axes.end(), [&manifest](size_t a, size_t b) {
    const bool a_other = manifest.length_axis != a;
    const bool b_other = manifest.length_axis != b;
    return a_other != b_other ? !a_other : manifest.axes[a].name < manifest.axes[b].name;
  });
  std::vector<Preference> preferences;
  for (const Bucket& bucket : manifest.buckets) {
    Preference preference{bucket.padded, 1, {}};
    for (const size_t axis : padded) {
      preference.elements = saturating_product(preference.elements, bucket.axes[axis].hi);
    }
    for (const size_t axis : axes) {
      preference.ends.push_back(bucket.axes[axis].hi);
      preference.ends.push_back(-bucket.axes[axis].lo);
    }
    preferences.push_back(std::move(preference));
  }
  order_.resize(manifest.buckets.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  // Stable: of equals the first of the list.
  std::stable_sort(order_.begin(), order_.end(),
                   [&preferences](size_t a, size_t b) { return preferences[a] < preferences[b]; });
}

size_t Dispatcher::choose(const Sizes& sizes) const {
  for (const size_t index : order_) {
    if (contains(manifest_.buckets[index], sizes)) return index;
  }
  std::string text = "no bucket takes the sizes " + sizes_text(sizes);
  const size_t listed = std::min(manifest_.buckets.size(), kMaxListed);
  for (size_t i = 0; i < listed; ++i) {
    text += cat("\n  bucket ", i, ": ", bucket_text(manifest_, manifest_.buckets[i]));
  }
  if (listed < manifest_.buckets.size()) {
    text += cat("\n  ... and ", manifest_.buckets.size() - listed, " more");
  }
  fail(ECR_OUTSIDE, text, hint(sizes));
}

void Dispatcher::check(size_t index, const Sizes& sizes) const {
  const Bucket& bucket = manifest_.buckets[index];
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
  return "the sizes lie in a gap between the buckets; build the bundle with these lengths";
}

std::vector<Array> Dispatcher::pad(size_t index, const std::vector<Array>& arrays,
                                   const Sizes& sizes) const {
  const Bucket& bucket = manifest_.buckets[index];
  Sizes filled = sizes;
  for (const size_t axis : bucket.pad_axes) filled[axis] = bucket.axes[axis].hi;
  std::vector<Array> result;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const TensorSpec& spec = manifest_.inputs[i];
    const Array& array = arrays[i];
    Sizes shape = array.sizes;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (spec.shape[d].kind == Dim::Kind::kAxis) shape[d] = filled[spec.shape[d].axis];
    }
    if (shape == array.sizes) {
      Array borrowed;
      borrowed.type = array.type;
      borrowed.sizes = std::move(shape);
      borrowed.data = array.data;
      result.push_back(std::move(borrowed));
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

Sizes Dispatcher::crop(const TensorSpec& output, const Sizes& sizes) const {
  Sizes result;
  for (const Dim& dim : output.shape) {
    result.push_back(dim.kind == Dim::Kind::kAny     ? -1
                     : dim.kind == Dim::Kind::kFixed ? dim.size
                                                     : sizes[dim.axis]);
  }
  return result;
}

Sizes Dispatcher::hint_sizes(size_t index) const {
  const Bucket& bucket = manifest_.buckets[index];
  Sizes sizes;
  for (const Extent& extent : bucket.axes) sizes.push_back(extent.hint);
  for (const size_t axis : bucket.pad_axes) sizes[axis] = bucket.axes[axis].hi;
  return sizes;
}

}  // namespace ecr
