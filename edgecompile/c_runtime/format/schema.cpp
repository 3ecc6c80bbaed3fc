// Looks up names in a manifest, and writes texts about it.
#include "format/schema.h"

#include <algorithm>

#include "base/text.h"

namespace ecr {
namespace {

template <class Items>
std::optional<size_t> find_name(const Items& items, const std::string& name) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].name == name) return i;
  }
  return std::nullopt;
}

}  // namespace

bool Dim::follows(size_t other) const {
  const auto is_other = [other](const auto& term) { return term.first == other; };
  return (kind == Kind::kAxis && axis == other) ||
         (kind == Kind::kSum && std::any_of(sum.terms.begin(), sum.terms.end(), is_other));
}

std::optional<size_t> Manifest::find_axis(const std::string& key) const {
  return find_name(axes, key);
}

std::optional<size_t> Manifest::find_input(const std::string& key) const {
  return find_name(inputs, key);
}

int64_t context_rows(const Manifest& manifest) {
  const Generation& spec = *manifest.generation;
  return spec.context ? manifest.axes[*spec.context].extent.hi : spec.max_context;
}

bool Generation::is_cache(const std::string& name) const {
  return std::find(caches.begin(), caches.end(), name) != caches.end();
}

std::string version_text(const Version& version) { return cat(version.first, ".", version.second); }

std::string extent_text(const Extent& extent) {
  if (extent.lo == extent.hi) return cat(extent.lo);
  const std::string steps = extent.step == 1 ? "" : cat(" in steps of ", extent.step);
  return cat(extent.lo, "..", extent.hi, steps);
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
