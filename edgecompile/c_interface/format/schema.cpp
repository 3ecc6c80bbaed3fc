// Texts about what a manifest says.
#include "format/schema.h"

#include <algorithm>

#include "base/text.h"

namespace ecr {

bool Generation::is_cache(const std::string& name) const {
  return std::find(caches.begin(), caches.end(), name) != caches.end();
}

std::string extent_text(const Extent& extent) {
  return extent.lo == extent.hi ? cat(extent.lo) : cat(extent.lo, "..", extent.hi);
}

std::string bucket_text(const Manifest& manifest, const Bucket& bucket) {
  std::string text = bucket.padded ? "pad" : "exact";
  if (bucket.pad_axes.size() > 1) {
    text += cat(" (", join(bucket.pad_axes, [&](size_t axis) { return manifest.axes[axis].name; }),
                ")");
  }
  for (size_t axis = 0; axis < bucket.axes.size(); ++axis) {
    text +=
        cat(axis == 0 ? " " : ", ", manifest.axes[axis].name, " ", extent_text(bucket.axes[axis]));
  }
  return text;
}

}  // namespace ecr
