// The part of a manifest that says how a model is called.
#include <algorithm>
#include <set>

#include "base/text.h"
#include "format/schema.h"

namespace ecr {
namespace {

constexpr int64_t kMaxSize = 2147483647;
constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 40;
constexpr size_t kMaxAxes = 16;
constexpr size_t kMaxInputs = 512;  // a generative program has two caches for each layer
constexpr size_t kMaxOutputs = 64;

bool contains(const std::vector<size_t>& axes, size_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

Extent read_extent(const Field& entry, const char* rule, bool has_hint) {
  Extent extent{entry.at("lo").integer(), entry.at("hi").integer()};
  if (has_hint) extent.hint = entry.at("hint").integer();
  if (extent.lo < 1 || extent.lo > extent.hi || extent.hi > kMaxSize) {
    entry.refuse(
        rule, cat("lo ", extent.lo, " and hi ", extent.hi, " must be 1 <= lo <= hi <= ", kMaxSize));
  }
  if (has_hint && !extent.contains(extent.hint)) {
    entry.refuse(rule, cat("the hint ", extent.hint, " isn't within ", extent_text(extent)));
  }
  return extent;
}

class SignatureReader {
 public:
  SignatureReader(const Field& document, Manifest* manifest)
      : document_(document), manifest_(*manifest) {}

  // In the order in which the keys depend on each other.
  void read() {
    const Field axes = document_.at("axes");
    for (const Member& member : axes.object(0, kMaxAxes)) {
      const Field entry = axes.child(member);
      entry.check_name(member.key);
      manifest_.axes.push_back({member.key, read_extent(entry, "axis-range", false)});
    }
    read_tensors(document_.at("inputs").list(1, kMaxInputs), true, &manifest_.inputs);
    check_axes_used(axes);
    read_tensors(document_.at("outputs").list(1, kMaxOutputs), false, &manifest_.outputs);
    const Field length = document_.at("length_axis");
    if (!length.is_null()) manifest_.length_axis = read_axis(length, "length-axis");
    for (const Field& entry : document_.at("buckets").list(1, 256)) read_bucket(entry);
    check_reach(axes);
  }

 private:
  size_t read_axis(const Field& entry, const char* rule) const {
    const std::optional<size_t> axis = manifest_.find_axis(entry.string());
    if (!axis) entry.refuse(rule, quoted(entry.string()) + " isn't one of the axes");
    return *axis;
  }

  void read_tensors(const std::vector<Field>& entries, bool is_input,
                    std::vector<TensorSpec>* tensors) {
    std::set<std::string> names;
    for (const Field& entry : entries) {
      TensorSpec spec;
      const Field name = entry.at("name");
      spec.name = name.name();
      if (!names.insert(spec.name).second) {
        name.refuse("name-unique", quoted(spec.name) + " occurs twice");
      }
      const Field dtype = entry.at("dtype");
      spec.type = find_type(dtype.string());
      const bool is_half = spec.type != nullptr && spec.type->code == ECR_BFLOAT16;
      if (spec.type == nullptr || (is_half && !(is_input && document_.has("generation")))) {
        dtype.refuse("dtype-known", quoted(dtype.string()) + " isn't a type of inputs or outputs");
      }
      spec.shape = read_shape(entry.at("shape"), is_input);
      check_bytes(entry, spec);
      for (const char* const key : {"pad", "bounds", "default"}) {
        if (const auto value = entry.find(key); is_half && value) {
          value->refuse("dtype-cache", "must be null, as it is bfloat16");
        }
      }
      if (is_input) read_values(entry, &spec);
      tensors->push_back(std::move(spec));
    }
  }

  Sum read_sum(const Field& item, const char* rule, int64_t lowest) const {
    const std::optional<Sum> sum = parse_sum(manifest_.axes, item.string());
    if (!sum) {
      item.refuse(rule, quoted(item.string()) + " isn't one of the axes, nor a sum of them");
    }
    const Extent span = sum->span(manifest_.axes);
    if (span.lo < lowest || span.hi > kMaxSize) {
      item.refuse(rule, cat(quoted(item.string()), " is ", span.lo, " to ", span.hi,
                            ", not within ", lowest, "..", kMaxSize));
    }
    return *sum;
  }

  std::vector<Dim> read_shape(const Field& entry, bool is_input) const {
    std::vector<Dim> shape;
    for (const Field& item : entry.list(0, kMaxDims, "shape-rank")) {
      Dim dim;
      if (item.value().type() == Value::Type::kString) {
        const std::optional<size_t> axis = manifest_.find_axis(item.string());
        dim.kind = axis ? Dim::Kind::kAxis : Dim::Kind::kSum;
        if (axis) dim.axis = *axis;
        if (!axis) dim.sum = read_sum(item, "shape-axis", 1);
      } else if (is_input || !item.is_null()) {
        dim.kind = Dim::Kind::kFixed;
        dim.size = item.integer();
        if (dim.size < 1 || dim.size > kMaxSize) {
          item.refuse("shape-size", cat("the size ", dim.size, " isn't within 1..", kMaxSize));
        }
      }
      shape.push_back(dim);
    }
    return shape;
  }

  void check_bytes(const Field& entry, const TensorSpec& spec) const {
    // Factors have at most 31 bits, and are looked at one by one before they can overflow.
    auto bytes = static_cast<uint64_t>(spec.type->size);
    for (const Dim& dim : spec.shape) {
      if (dim.kind == Dim::Kind::kAny) continue;
      const int64_t size = dim.kind == Dim::Kind::kAxis  ? manifest_.axes[dim.axis].extent.hi
                           : dim.kind == Dim::Kind::kSum ? dim.sum.span(manifest_.axes).hi
                                                         : dim.size;
      if (static_cast<uint64_t>(size) > kMaxTensorBytes / bytes) {
        entry.refuse("tensor-bytes", cat("has more than ", kMaxTensorBytes, " bytes"));
      }
      bytes *= static_cast<uint64_t>(size);
    }
  }

  void read_values(const Field& entry, TensorSpec* spec) const {
    const auto read = [spec](const Field& field, const char* rule) {
      const Number number = field.number();
      if (!holds(*spec->type, number)) {
        field.refuse(rule, cat(number.text(), " isn't a value of ", spec->type->name));
      }
      return number;
    };
    const auto check_bounds = [spec](const Field& field, const Number& number, const char* rule) {
      if (spec->bounds &&
          (number.value < spec->bounds->first.value || number.value > spec->bounds->second.value)) {
        field.refuse(rule, number.text() + " isn't within the bounds");
      }
    };
    const std::optional<Field> pad = entry.find("pad");
    if (pad) spec->pad = read(*pad, "pad-value");
    if (const std::optional<Field> bounds = entry.find("bounds")) {
      if (bounds->value().type() != Value::Type::kList || bounds->value().list().size() != 2) {
        bounds->refuse("bounds-form", "must be null or [smallest, largest]");
      }
      const std::vector<Field> ends = bounds->list(2, 2);
      const auto is_text = [](const Field& end) {
        return end.value().type() == Value::Type::kString;
      };
      const auto read_reach = [&](const Field& end) -> std::optional<Sum> {
        if (!is_text(end)) {
          end.number();  // Types count first, as in Python.
          return std::nullopt;
        }
        return read_sum(end, "bounds-form", -kMaxSize);
      };
      spec->reach = {read_reach(ends[0]), read_reach(ends[1])};
      const auto widest = [&](const Field& end, const std::optional<Sum>& sum, bool is_low) {
        if (!sum) return read(end, "bounds-form");
        const Extent span = sum->span(manifest_.axes);
        const Number number{static_cast<long double>(is_low ? span.lo : span.hi)};
        if (!holds(*spec->type, number)) {
          end.refuse("bounds-form", cat(number.text(), " isn't a value of ", spec->type->name));
        }
        return number;
      };
      const Number low = widest(ends[0], spec->reach.first, true);
      const Number high = widest(ends[1], spec->reach.second, false);
      if (low.value > high.value) bounds->refuse("bounds-form", "must ascend");
      spec->bounds = {low, high};
    }
    if (pad) check_bounds(*pad, *spec->pad, "pad-bounds");
    if (const std::optional<Field> fallback = entry.find("default")) {
      spec->fallback = read(*fallback, "default-value");
      check_bounds(*fallback, *spec->fallback, "default-value");
      // Of a bound that follows axes, the narrowest counts.
      const auto& [low, high] = spec->reach;
      if ((low && spec->fallback->value < low->span(manifest_.axes).hi) ||
          (high && spec->fallback->value > high->span(manifest_.axes).lo)) {
        fallback->refuse("default-value", "isn't within the bounds at every size");
      }
    }
  }

  void check_axes_used(const Field& entry) const {
    // 0 for an axis whose size an input gives.
    std::vector<int64_t> sizes(manifest_.axes.size(), -1);
    for (bool is_new = true; is_new;) {
      is_new = false;
      for (const TensorSpec& spec : manifest_.inputs) {
        for (const Dim& dim : spec.shape) {
          std::optional<size_t> axis;
          if (dim.kind == Dim::Kind::kAxis) axis = dim.axis;
          if (dim.kind == Dim::Kind::kSum) axis = dim.sum.unknown(sizes);
          if (!axis || sizes[*axis] == 0) continue;
          sizes[*axis] = 0;
          is_new = true;
        }
      }
    }
    if (std::count(sizes.begin(), sizes.end(), 0) != static_cast<int64_t>(sizes.size())) {
      entry.refuse("axis-used", "no input gives the size of one");
    }
  }

  void read_bucket(const Field& entry) {
    Bucket bucket;
    const Field mode = entry.at("mode");
    bucket.padded = mode.string() == "pad";
    const bool is_stepped = mode.string() == "stepped";
    if (!bucket.padded && !is_stepped && mode.string() != "exact") {
      mode.refuse("bucket-mode", quoted(mode.string()) + " isn't one of exact, pad, stepped");
    }
    read_pad_axes(entry, &bucket);
    if (bucket.padded) check_paddable(entry, bucket.pad_axes);
    const Field axes = entry.at("axes");
    // Both are sorted by their names.
    const Object& members = axes.object();
    for (size_t i = 0; i < std::max(members.size(), manifest_.axes.size()); ++i) {
      if (members.size() != manifest_.axes.size() || members[i].key != manifest_.axes[i].name) {
        axes.refuse("bucket-axes", "must have all axes of the bundle and no other");
      }
      bucket.axes.push_back(read_extent(axes.child(members[i]), "bucket-range", true));
    }
    if (is_stepped) {
      if (!manifest_.length_axis) {
        entry.refuse("bucket-step", "the mode stepped needs a length_axis");
      }
      const size_t length = *manifest_.length_axis;
      read_step(axes.child(members[length]), &bucket.axes[length]);
    }
    manifest_.buckets.push_back(std::move(bucket));
  }

  static void read_step(const Field& entry, Extent* extent) {
    constexpr const char* kRule = "bucket-step";
    const Field field = entry.at("step");
    const int64_t step = field.integer();
    if (step < 2 || step > kMaxSize) {
      field.refuse(kRule, cat(step, " isn't within 2..", kMaxSize));
    }
    for (const int64_t size : {extent->hi, extent->hint}) {
      if ((size - extent->lo) % step == 0) continue;
      field.refuse(kRule, cat(size, " isn't reached from lo ", extent->lo, " in steps of ", step));
    }
    extent->step = step;
  }

  void read_pad_axes(const Field& entry, Bucket* bucket) const {
    constexpr const char* kRule = "bucket-pad-axes";
    const std::optional<size_t> length = manifest_.length_axis;
    if (!entry.has("pad_axes")) {
      if (bucket->padded && length) bucket->pad_axes.push_back(*length);
      return;
    }
    const Field axes = entry.at("pad_axes");
    for (const Field& item : axes.list(1, kMaxAxes)) {
      const size_t axis = read_axis(item, kRule);
      if (contains(bucket->pad_axes, axis)) item.refuse(kRule, "occurs twice");
      bucket->pad_axes.push_back(axis);
    }
    if (!bucket->padded) axes.refuse(kRule, "a bucket of this mode pads no axis");
    if (length && !contains(bucket->pad_axes, *length)) {
      axes.refuse(kRule, "must have the length axis among them");
    }
  }

  void check_paddable(const Field& entry, const std::vector<size_t>& pad_axes) const {
    constexpr const char* kRule = "bucket-pad";
    if (!manifest_.length_axis) entry.refuse(kRule, "pad mode needs a length_axis");
    for (const TensorSpec& spec : manifest_.inputs) {
      for (const Dim& dim : spec.shape) {
        const bool is_along = std::any_of(pad_axes.begin(), pad_axes.end(),
                                          [&dim](size_t axis) { return dim.follows(axis); });
        if (is_along && !spec.pad) {
          entry.refuse(kRule, "pad mode needs a pad value for the input " + quoted(spec.name));
        }
        if (is_along && dim.kind == Dim::Kind::kSum) {
          entry.refuse(kRule, "the input " + quoted(spec.name) +
                                  " has a size that follows from a padded axis");
        }
      }
    }
    for (const TensorSpec& spec : manifest_.outputs) {
      for (const Dim& dim : spec.shape) {
        if (dim.kind == Dim::Kind::kAny) {
          entry.refuse(kRule, "padding can't be cut from the output " + quoted(spec.name));
        }
      }
    }
  }

  // The buckets reach exactly as far as the axes: the bytes of a tensor were checked up to there.
  void check_reach(const Field& entry) const {
    for (size_t i = 0; i < manifest_.axes.size(); ++i) {
      const Axis& axis = manifest_.axes[i];
      Extent reach = manifest_.buckets[0].axes[i];
      for (const Bucket& bucket : manifest_.buckets) {
        reach.lo = std::min(reach.lo, bucket.axes[i].lo);
        reach.hi = std::max(reach.hi, bucket.axes[i].hi);
      }
      if (reach.lo != axis.extent.lo || reach.hi != axis.extent.hi) {
        entry.refuse("axis-buckets",
                     cat(axis.name, " is ", extent_text(axis.extent),
                         ", but the buckets reach from ", reach.lo, " to ", reach.hi));
      }
    }
  }

  const Field& document_;
  Manifest& manifest_;
};

}  // namespace

void read_signature(const Field& document, Manifest* manifest) {
  SignatureReader(document, manifest).read();
}

}  // namespace ecr
