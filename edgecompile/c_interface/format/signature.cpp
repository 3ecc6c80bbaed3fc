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
      if (spec.type == nullptr) {
        dtype.refuse("dtype-known", quoted(dtype.string()) + " isn't a type of inputs or outputs");
      }
      spec.shape = read_shape(entry.at("shape"), is_input);
      check_bytes(entry, spec);
      if (is_input) read_values(entry, &spec);
      tensors->push_back(std::move(spec));
    }
  }

  std::vector<Dim> read_shape(const Field& entry, bool is_input) const {
    std::vector<Dim> shape;
    for (const Field& item : entry.list(0, kMaxDims, "shape-rank")) {
      Dim dim;
      if (item.value().type() == Value::Type::kString) {
        dim.kind = Dim::Kind::kAxis;
        dim.axis = read_axis(item, "shape-axis");
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
      const bool is_axis = dim.kind == Dim::Kind::kAxis;
      const int64_t size = is_axis ? manifest_.axes[dim.axis].extent.hi : dim.size;
      if (static_cast<uint64_t>(size) > kMaxTensorBytes / bytes) {
        entry.refuse("tensor-bytes", cat("has more than ", kMaxTensorBytes, " bytes"));
      }
      bytes *= static_cast<uint64_t>(size);
    }
  }

  static void read_values(const Field& entry, TensorSpec* spec) {
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
      for (const Field& end : ends) end.number();  // Types count first, as in Python.
      const Number low = read(ends[0], "bounds-form");
      const Number high = read(ends[1], "bounds-form");
      if (low.value > high.value) bounds->refuse("bounds-form", "must ascend");
      spec->bounds = {low, high};
    }
    if (pad) check_bounds(*pad, *spec->pad, "pad-bounds");
    if (const std::optional<Field> fallback = entry.find("default")) {
      spec->fallback = read(*fallback, "default-value");
      check_bounds(*fallback, *spec->fallback, "default-value");
    }
  }

  void check_axes_used(const Field& entry) const {
    std::set<size_t> used;
    for (const TensorSpec& spec : manifest_.inputs) {
      for (const Dim& dim : spec.shape) {
        if (dim.kind == Dim::Kind::kAxis) used.insert(dim.axis);
      }
    }
    if (used.size() != manifest_.axes.size()) entry.refuse("axis-used", "one is in no input");
  }

  void read_bucket(const Field& entry) {
    Bucket bucket;
    const Field mode = entry.at("mode");
    bucket.padded = mode.string() == "pad";
    if (!bucket.padded && mode.string() != "exact") {
      mode.refuse("bucket-mode", quoted(mode.string()) + " isn't one of exact, pad");
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
    manifest_.buckets.push_back(std::move(bucket));
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
    if (!bucket->padded) axes.refuse(kRule, "a bucket of mode exact pads no axis");
    if (length && !contains(bucket->pad_axes, *length)) {
      axes.refuse(kRule, "must have the length axis among them");
    }
  }

  void check_paddable(const Field& entry, const std::vector<size_t>& pad_axes) const {
    constexpr const char* kRule = "bucket-pad";
    if (!manifest_.length_axis) entry.refuse(kRule, "pad mode needs a length_axis");
    for (const TensorSpec& spec : manifest_.inputs) {
      for (const Dim& dim : spec.shape) {
        if (dim.kind == Dim::Kind::kAxis && contains(pad_axes, dim.axis) && !spec.pad) {
          entry.refuse(kRule, "pad mode needs a pad value for the input " + quoted(spec.name));
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
