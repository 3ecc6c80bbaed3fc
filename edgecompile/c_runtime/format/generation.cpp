// The manifest's "generation", as far as running one program depends on it: which inputs are caches
// that the program writes, and which numbers say where. The loop over tokens is its caller's, and
// so is the rest of the section.
#include <algorithm>

#include "base/text.h"
#include "format/schema.h"

namespace ecr {
namespace {

constexpr size_t kMaxCaches = 509;
constexpr int64_t kMaxContext = (int64_t{1} << 31) - 1;

// A block of a row in int8: a scale in bfloat16, and the numbers that it is of.
constexpr int64_t kScaleBytes = 2, kBlockBytes = kScaleBytes + 32;

bool is_fixed(const Dim& dim) { return dim.kind == Dim::Kind::kFixed; }

}  // namespace

void read_generation(const Field& entry, Manifest* manifest) {
  Generation spec;
  const Field kind = entry.at("kind");
  const Field position = entry.at("position");
  const Field last = entry.at("last");
  const Field length_axis = entry.at("length_axis");
  const Field context_axis = entry.at("context_axis");
  spec.position = position.string();
  spec.last = last.string();
  const std::optional<size_t> length = manifest->find_axis(length_axis.string());
  const bool is_recurrent = kind.string() == "recurrent-lm";
  const bool has_rows = !is_recurrent || !context_axis.is_null();
  if (has_rows) spec.context = manifest->find_axis(context_axis.string());
  const std::vector<Field> caches = entry.at("caches").list(1, kMaxCaches);
  for (const Field& cache : caches) spec.caches.push_back(cache.string());
  if (!is_recurrent && kind.string() != "causal-lm" && kind.string() != "seq2seq") {
    kind.refuse("generation-kind",
                quoted(kind.string()) + " is none of causal-lm, recurrent-lm, seq2seq");
  }
  if (!length || length != manifest->length_axis) {
    length_axis.refuse("generation-axes", "isn't the length_axis");
  }
  if (has_rows && (!spec.context || spec.context == length)) {
    context_axis.refuse("generation-axes", "isn't another one of the axes");
  }
  spec.length = *length;
  if (!has_rows) {
    const Field most = entry.at("max_context");
    spec.max_context = most.integer();
    if (spec.max_context < 1 || spec.max_context > kMaxContext) {
      most.refuse("generation-axes", "isn't within 1..2147483647");
    }
  }

  const auto check_input = [&](const Field& name, const auto& fits) {
    const std::optional<size_t> input = manifest->find_input(name.string());
    if (!input) name.refuse("generation-inputs", quoted(name.string()) + " isn't an input");
    const TensorSpec& item = manifest->inputs[*input];
    if (!fits(item.type->code, item.shape)) {
      name.refuse("generation-shape", quoted(name.string()) + " has another type or shape");
    }
  };
  for (const Field& number : {position, last}) {
    check_input(number, [](int32_t dtype, const std::vector<Dim>& shape) {
      return dtype == ECR_INT64 && shape.size() == 1 && is_fixed(shape[0]) && shape[0].size == 1;
    });
  }
  for (const Field& cache : caches) {
    check_input(cache, [&](int32_t dtype, const std::vector<Dim>& shape) {
      const bool is_state = is_recurrent && !shape.empty() && is_fixed(shape[0]);
      spec.has_states = spec.has_states || is_state;
      const bool grows = shape.size() >= 2 && shape[0].kind == Dim::Kind::kAxis && spec.context &&
                         shape[0].axis == *spec.context;
      const bool is_known =
          dtype == ECR_FLOAT32 || (grows && (dtype == ECR_BFLOAT16 || dtype == ECR_INT8));
      if (grows && dtype == ECR_INT8 && is_fixed(shape.back())) {
        const int64_t left = shape.back().size % kBlockBytes;
        if (left != 0 && left <= kScaleBytes) {
          cache.refuse("generation-scales", quoted(cache.string()) + " has no room for its scales");
        }
      }
      return is_known && (is_state || grows) &&
             std::all_of(shape.begin() + 1, shape.end(), is_fixed);
    });
  }
  for (const TensorSpec& item : manifest->inputs) {
    if (item.type->code == ECR_BFLOAT16 &&
        std::find(spec.caches.begin(), spec.caches.end(), item.name) == spec.caches.end()) {
      entry.refuse("generation-shape", quoted(item.name) + " is no cache, and bfloat16");
    }
  }
  if (is_recurrent && !spec.has_states) {
    entry.at("caches").refuse("generation-states", "all have the context's axis");
  }
  for (const Bucket& bucket : manifest->buckets) {
    if (spec.context &&
        std::count(bucket.pad_axes.begin(), bucket.pad_axes.end(), *spec.context) != 0) {
      entry.refuse("generation-buckets", "a bucket pads the context, which caches don't bear");
    }
  }
  manifest->generation = std::move(spec);
}

}  // namespace ecr
