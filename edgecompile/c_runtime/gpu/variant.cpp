// Variants of Triton kernels, held against this machine's GPU and the mode that was asked for.
#include "gpu/variant.h"

#include <algorithm>
#include <set>

#include "base/text.h"

namespace ecr {
namespace {

GpuError refusal(const std::string& text, const std::string& hint) {
  return {text, hint, 0, "", ECR_NO_GPU};
}

bool fits(const GpuSpec& spec, const Version& device) {
  const auto runs = [&device](const Version& item) {
    return item.first == device.first && item.second <= device.second;
  };
  return std::any_of(spec.capabilities.begin(), spec.capabilities.end(), runs) ||
         (spec.ptx && *spec.ptx <= device);
}

std::set<size_t> pad_axes(const Manifest& manifest, const Bucket& bucket) {
  std::set<size_t> axes(bucket.pad_axes.begin(), bucket.pad_axes.end());
  for (size_t axis = 0; axis < bucket.axes.size(); ++axis) {
    const bool is_wide = bucket.axes[axis].lo < bucket.axes[axis].hi;
    if (is_wide && (!manifest.generation || manifest.generation->length == axis)) axes.insert(axis);
  }
  return axes;
}

}  // namespace

std::optional<GpuError> find_refusal(const Variant& variant) {
  const Driver* driver = nullptr;
  try {
    driver = &Driver::load();
  } catch (const GpuError& error) {
    if (error.code() != ECR_NO_GPU) throw;
    return error;
  }
  const GpuSpec& spec = *variant.gpu;
  const Device device = driver->describe();
  if (!fits(spec, device.capability)) {
    std::string known = join(spec.capabilities, version_text);
    if (spec.ptx) {
      known += cat(known.empty() ? "" : ", ", version_text(*spec.ptx), " and later");
    }
    return refusal(cat("its kernels are for compute capability ", known, ", ", device.name, " has ",
                       version_text(device.capability)),
                   "build the bundle for a target that includes this GPU, such as cuda-any");
  }
  if (device.driver < spec.driver) {
    return refusal(
        cat("it needs a driver for CUDA ", cuda_version_text(spec.driver), " or newer, that of ",
            device.name, " is for ", cuda_version_text(device.driver)),
        "update NVIDIA's driver");
  }
  return std::nullopt;
}

Strings judge_variants(const Manifest& manifest, const Host& host) {
  std::vector<const Variant*> found;
  for (const Variant& item : manifest.variants) {
    if (item.backend == kTritonBackend && find_lacks(item, host).empty()) found.push_back(&item);
  }
  Strings refused;
  if (found.size() < 2) return refused;
  for (const Variant* item : found) {
    if (const std::optional<GpuError> error = find_refusal(*item)) {
      refused[item->name] = error->message;
    }
  }
  return refused.size() < found.size() ? refused : Strings();
}

std::vector<Bucket> pad_everything(const Manifest& manifest, bool verified) {
  std::vector<Bucket> buckets = manifest.buckets;
  std::set<size_t> padded;
  bool added = false;
  for (Bucket& bucket : buckets) {
    const std::set<size_t> axes = pad_axes(manifest, bucket);
    padded.insert(axes.begin(), axes.end());
    added = added || axes.size() > bucket.pad_axes.size();
    bucket.pad_axes.assign(axes.begin(), axes.end());
    bucket.padded = bucket.padded || !axes.empty();
  }
  std::vector<std::string> problems;
  if (added && !verified && !manifest.generation) {
    problems.push_back("its builder didn't verify that padding changes nothing");
  }
  for (const TensorSpec& spec : manifest.inputs) {
    const auto follows = [&](const Dim& dim) {
      // What is computed from a padded axis isn't padded with it.
      return (!spec.pad || dim.kind == Dim::Kind::kSum) &&
             std::any_of(padded.begin(), padded.end(),
                         [&dim](size_t axis) { return dim.follows(axis); });
    };
    if (std::any_of(spec.shape.begin(), spec.shape.end(), follows)) {
      problems.push_back(cat("the input ", spec.name, " has no pad value"));
    }
  }
  const auto is_any = [](const Dim& dim) { return dim.kind == Dim::Kind::kAny; };
  for (const TensorSpec& spec : manifest.outputs) {
    if (!padded.empty() && std::any_of(spec.shape.begin(), spec.shape.end(), is_any)) {
      problems.push_back(cat("the shape of ", spec.name, " doesn't follow from the inputs'"));
    }
  }
  if (!problems.empty()) {
    fail(ECR_MODE,
         cat("the mode \"", kReduceOverhead,
             "\" pads every bucket to its upper end, which this bundle doesn't allow: ",
             join(problems, "; ")),
         "open it with mode=\"default\", or build it with buckets of one size each");
  }
  return buckets;
}

}  // namespace ecr
