// The part of a manifest that says how a model is called.
#include <algorithm>
#include <map>
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
constexpr size_t kMaxListed = 32;

// Sorted, for a message.
std::string names_text(std::vector<std::string> names) {
  if (names.empty()) return "none";
  std::sort(names.begin(), names.end());
  const size_t more = names.size() - std::min(names.size(), kMaxListed);
  names.resize(names.size() - more);
  return join(names) + (more == 0 ? "" : cat(", ... and ", more, " more"));
}

class SignatureReader {
 public:
  SignatureReader(const Object& document, Reader* reader, Manifest* manifest)
      : document_(document), reader_(*reader), manifest_(*manifest) {}

  // In the order in which the keys depend on each other.
  void read() {
    read_axes();
    manifest_.inputs = read_tensors("inputs", true);
    manifest_.outputs = read_tensors("outputs", false);
    read_length_axis();
    read_buckets();
  }

 private:
  std::optional<size_t> find_axis(const std::string& name) const {
    const auto found = axis_index_.find(name);
    if (found == axis_index_.end()) return std::nullopt;
    return found->second;
  }

  void read_axes() {
    const Object& entries = reader_.mapping(document_, "axes", "");
    reader_.count(entries.size(), "axes", 0, kMaxAxes);
    for (const Member& member : entries.members()) {
      const std::string where = place_of("axes", member.key);
      const std::optional<Extent> extent = read_extent(member.value, where, false);
      if (reader_.check_name(member.key, where) && extent) {
        axis_index_[member.key] = manifest_.axes.size();
        manifest_.axes.push_back({member.key, *extent});
      }
    }
  }

  std::optional<Extent> read_extent(const Value& value, const std::string& where, bool of_bucket) {
    const Object* const entry = reader_.as_object(value, where);
    if (entry == nullptr) return std::nullopt;
    const char* const rule = of_bucket ? "bucket-range" : "axis-range";
    const std::optional<int64_t> lo = reader_.integer(*entry, "lo", where);
    const std::optional<int64_t> hi = reader_.integer(*entry, "hi", where);
    const std::optional<int64_t> hint =
        of_bucket ? reader_.integer(*entry, "hint", where) : std::optional<int64_t>(0);
    if (!lo || !hi || !hint) return std::nullopt;
    if (*lo < 1 || *lo > *hi || *hi > kMaxSize) {
      reader_.add(rule, where,
                  cat("lo ", *lo, " and hi ", *hi, " must be 1 <= lo <= hi <= ", kMaxSize));
      return std::nullopt;
    }
    if (of_bucket && (*hint < *lo || *hint > *hi)) {
      reader_.add(rule, where, cat("the hint ", *hint, " isn't within ", *lo, "..", *hi));
      return std::nullopt;
    }
    return Extent{*lo, *hi, *hint};
  }

  std::vector<TensorSpec> read_tensors(const char* key, bool is_input) {
    std::vector<TensorSpec> result;
    std::set<size_t> used;
    const size_t most = is_input ? kMaxInputs : kMaxOutputs;
    size_t index = 0;
    for (const Value& value : reader_.items(document_, key, "", 1, most)) {
      const std::string where = cat(key, "[", index++, "]");
      const Object* const entry = reader_.as_object(value, where);
      if (entry == nullptr) continue;
      TensorSpec spec;
      if (const std::string* const name = reader_.name(*entry, "name", where)) {
        spec.name = *name;
        if (std::any_of(result.begin(), result.end(),
                        [name](const TensorSpec& item) { return item.name == *name; })) {
          reader_.add("name-unique", where + ".name", quoted(*name) + " occurs twice");
        }
      }
      if (const std::string* const dtype = reader_.string(*entry, "dtype", where)) {
        spec.type = find_type(*dtype);
        if (spec.type == nullptr) {
          reader_.add("dtype-known", where + ".dtype",
                      cat(quoted(*dtype), " isn't one of ", list_input_types()));
        }
      }
      spec.shape = read_shape(*entry, where, is_input);
      if (is_input) {
        read_values(*entry, where, &spec);
        read_default(*entry, where, &spec);
      }
      for (const Dim& dim : spec.shape) {
        if (dim.kind == Dim::Kind::kAxis) used.insert(dim.axis);
      }
      if (spec.type != nullptr) check_bytes(where, spec);
      result.push_back(std::move(spec));
    }
    for (size_t axis = 0; is_input && axis < manifest_.axes.size(); ++axis) {
      if (used.count(axis) == 0) {
        reader_.add("axis-used", place_of("axes", manifest_.axes[axis].name),
                    "no input has this axis");
      }
    }
    return result;
  }

  std::vector<Dim> read_shape(const Object& entry, const std::string& parent, bool is_input) {
    const std::string where = parent + ".shape";
    const Value* const dims = reader_.key(entry, "shape", parent);
    if (dims == nullptr) return {};
    if (!dims->is(Value::Type::kList)) {
      reader_.add("key-type", where, "must be a list");
      return {};
    }
    if (dims->list().size() > kMaxDims) {
      reader_.add("shape-rank", where, cat(dims->list().size(), " dimensions, at most ", kMaxDims));
      return {};
    }
    std::vector<Dim> result;
    size_t index = 0;
    for (const Value& value : dims->list()) {
      const std::string place = cat(where, "[", index++, "]");
      Dim dim;
      if (value.is(Value::Type::kString)) {
        const std::optional<size_t> axis = find_axis(value.string());
        if (!axis) {
          reader_.add("shape-axis", place, quoted(value.string()) + " isn't one of the axes");
          dim.kind = Dim::Kind::kFixed;  // one problem is enough
          dim.size = 1;
        } else {
          dim.kind = Dim::Kind::kAxis;
          dim.axis = *axis;
        }
      } else if (value.is(Value::Type::kInteger)) {
        dim.kind = Dim::Kind::kFixed;
        dim.size = value.integer();
        if (dim.size < 1 || dim.size > kMaxSize) {
          reader_.add("shape-size", place,
                      cat("the size ", dim.size, " isn't within 1..", kMaxSize));
        }
      } else if (!value.is(Value::Type::kNull) || is_input) {
        reader_.add("key-type", place, "must be a size or the name of an axis");
        continue;
      }
      result.push_back(dim);
    }
    return result;
  }

  void check_bytes(const std::string& where, const TensorSpec& spec) {
    // Factors have at most 63 bits, and are looked at one by one before they can overflow.
    auto bytes = static_cast<uint64_t>(spec.type->size);
    bool fits = true;
    for (const Dim& dim : spec.shape) {
      int64_t size = 1;
      if (dim.kind == Dim::Kind::kFixed) size = std::max<int64_t>(dim.size, 1);
      if (dim.kind == Dim::Kind::kAxis) size = manifest_.axes[dim.axis].extent.hi;
      fits = fits && static_cast<uint64_t>(size) <= kMaxTensorBytes / bytes;
      if (fits) bytes *= static_cast<uint64_t>(size);
    }
    if (!fits) {
      reader_.add("tensor-bytes", where + ".shape",
                  cat("too many bytes, at most ", kMaxTensorBytes));
    }
  }

  void read_values(const Object& entry, const std::string& where, TensorSpec* spec) {
    const Value* const pad = entry.find("pad");
    if (pad != nullptr && !pad->is(Value::Type::kNull)) {
      spec->pad = reader_.as_number(*pad, where + ".pad");
      if (spec->pad && spec->type != nullptr && !holds(*spec->type, *spec->pad)) {
        reader_.add("pad-value", where + ".pad",
                    cat(spec->pad->text(), " isn't a value of ", spec->type->name));
      }
    }
    const Value* const limits = entry.find("bounds");
    if (limits == nullptr || limits->is(Value::Type::kNull)) return;
    const std::string place = where + ".bounds";
    if (!limits->is(Value::Type::kList) || limits->list().size() != 2) {
      reader_.add("bounds-form", place, "must be null or [smallest, largest]");
      return;
    }
    const std::optional<Number> low = reader_.as_number(limits->list()[0], place + "[0]");
    const std::optional<Number> high = reader_.as_number(limits->list()[1], place + "[1]");
    if (!low || !high) return;
    if (low->value() > high->value() ||
        (spec->type != nullptr && !(holds(*spec->type, *low) && holds(*spec->type, *high)))) {
      reader_.add(
          "bounds-form", place,
          cat("[", low->text(), ", ", high->text(), "] isn't an ascending pair of values of ",
              spec->type == nullptr ? "its dtype" : spec->type->name));
    } else if (spec->pad &&
               (spec->pad->value() < low->value() || spec->pad->value() > high->value())) {
      reader_.add(
          "pad-bounds", where + ".pad",
          cat(spec->pad->text(), " isn't within the bounds ", low->text(), "..", high->text()));
    }
    spec->bounds = {*low, *high};
  }

  void read_default(const Object& entry, const std::string& where, TensorSpec* spec) {
    const Value* const value = entry.find("default");
    if (value == nullptr || value->is(Value::Type::kNull)) return;
    spec->fallback = reader_.as_number(*value, where + ".default");
    if (!spec->fallback || spec->type == nullptr) return;
    const double number = spec->fallback->value();
    const bool inside = !spec->bounds || (spec->bounds->first.value() <= number &&
                                          number <= spec->bounds->second.value());
    if (!holds(*spec->type, *spec->fallback) || !inside) {
      reader_.add("default-value", where + ".default",
                  cat(spec->fallback->text(), " isn't a value of ", spec->type->name,
                      " within its bounds"));
    }
  }

  void read_length_axis() {
    const Value* const value = reader_.key(document_, "length_axis", "");
    if (value == nullptr || value->is(Value::Type::kNull)) return;
    const std::string* const name = reader_.as_string(*value, "length_axis");
    if (name == nullptr) return;
    manifest_.length_axis = find_axis(*name);
    if (!manifest_.length_axis) {
      reader_.add("length-axis", "length_axis", quoted(*name) + " isn't one of the axes");
    }
  }

  void read_buckets() {
    size_t index = 0;
    bool complete = true;
    for (const Value& value : reader_.items(document_, "buckets", "", 1, 256)) {
      const std::string where = cat("buckets[", index++, "]");
      const Object* const entry = reader_.as_object(value, where);
      if (entry == nullptr) continue;
      Bucket bucket;
      const std::string* const mode = reader_.string(*entry, "mode", where);
      if (mode != nullptr && *mode != "exact" && *mode != "pad") {
        reader_.add("bucket-mode", where + ".mode", quoted(*mode) + " isn't one of exact, pad");
      }
      bucket.padded = mode != nullptr && *mode == "pad";
      const bool is_exact = mode != nullptr && *mode == "exact";
      bucket.pad_axes = read_pad_axes(*entry, where, bucket.padded, is_exact);
      if (bucket.padded) check_paddable(where, bucket.pad_axes);
      complete = read_bucket_axes(*entry, where, &bucket) && complete;
      manifest_.buckets.push_back(std::move(bucket));
    }
    if (complete && !manifest_.buckets.empty()) check_coverage();
  }

  // Whether there is a good extent for every axis.
  bool read_bucket_axes(const Object& entry, const std::string& where, Bucket* bucket) {
    const std::string place = where + ".axes";
    const Object& axes = reader_.mapping(entry, "axes", where);
    // A document of many axes is refused; 256 buckets needn't have room for all of them.
    const bool keeps = manifest_.axes.size() <= kMaxAxes;
    std::vector<bool> found(keeps ? manifest_.axes.size() : 1, false);
    if (keeps) bucket->axes.resize(manifest_.axes.size());
    for (const Member& member : axes.members()) {
      const std::optional<Extent> extent =
          read_extent(member.value, place_of(place, member.key), true);
      const std::optional<size_t> axis = find_axis(member.key);
      if (keeps && extent && axis) {
        bucket->axes[*axis] = *extent;
        found[*axis] = true;
      }
    }
    const bool same =
        axes.size() == manifest_.axes.size() &&
        std::all_of(manifest_.axes.begin(), manifest_.axes.end(),
                    [&axes](const Axis& axis) { return axes.find(axis.name) != nullptr; });
    if (!same && entry.find("axes") != nullptr) {
      std::vector<std::string> names;
      for (const Member& member : axes.members()) names.push_back(shorten(member.key));
      reader_.add("bucket-axes", place,
                  cat("has ", names_text(std::move(names)), ", must have ", wanted_axes()));
    }
    return std::all_of(found.begin(), found.end(), [](bool item) { return item; });
  }

  const std::string& wanted_axes() {
    if (wanted_axes_.empty()) {
      std::vector<std::string> names;
      for (const Axis& axis : manifest_.axes) names.push_back(axis.name);
      wanted_axes_ = names_text(std::move(names));
    }
    return wanted_axes_;
  }

  std::vector<size_t> read_pad_axes(const Object& entry, const std::string& where, bool is_pad,
                                    bool is_exact) {
    const std::optional<size_t> length = manifest_.length_axis;
    std::vector<size_t> result;
    if (entry.find("pad_axes") == nullptr) {
      if (is_pad && length) result.push_back(*length);
      return result;
    }
    const std::string place = where + ".pad_axes";
    size_t index = 0;
    for (const Value& value : reader_.items(entry, "pad_axes", where, 1, 16)) {
      const std::string* const name = reader_.as_string(value, cat(place, "[", index++, "]"));
      if (name == nullptr) continue;
      const std::optional<size_t> axis = find_axis(*name);
      if (!axis) {
        reader_.add("bucket-pad-axes", place, quoted(*name) + " isn't one of the axes");
      } else if (std::find(result.begin(), result.end(), *axis) != result.end()) {
        reader_.add("bucket-pad-axes", place, quoted(*name) + " occurs twice");
      } else {
        result.push_back(*axis);
      }
    }
    if (is_exact) {
      reader_.add("bucket-pad-axes", place, "a bucket of mode exact pads no axis");
    } else if (length && std::find(result.begin(), result.end(), *length) == result.end()) {
      reader_.add(
          "bucket-pad-axes", place,
          cat("must have the length axis ", quoted(manifest_.axes[*length].name), " among them"));
    }
    return result;
  }

  void check_paddable(const std::string& where, const std::vector<size_t>& pad_axes) {
    if (!manifest_.length_axis) {
      reader_.add("bucket-pad", where, "pad mode needs a length_axis");
    }
    for (const TensorSpec& spec : manifest_.inputs) {
      const bool is_padded =
          std::any_of(spec.shape.begin(), spec.shape.end(), [&pad_axes](const Dim& dim) {
            return dim.kind == Dim::Kind::kAxis &&
                   std::find(pad_axes.begin(), pad_axes.end(), dim.axis) != pad_axes.end();
          });
      if (is_padded && !spec.pad) {
        reader_.add("bucket-pad", where,
                    cat("pad mode needs a pad value for the input ", quoted(spec.name)));
      }
    }
    for (const TensorSpec& spec : manifest_.outputs) {
      if (std::any_of(spec.shape.begin(), spec.shape.end(),
                      [](const Dim& dim) { return dim.kind == Dim::Kind::kAny; })) {
        reader_.add(
            "bucket-pad", where,
            cat("the output ", quoted(spec.name), " has a size that can't be cut after padding"));
      }
    }
  }

  void check_coverage() {
    for (size_t axis = 0; axis < manifest_.axes.size(); ++axis) {
      Extent reach = manifest_.buckets[0].axes[axis];
      for (const Bucket& bucket : manifest_.buckets) {
        reach.lo = std::min(reach.lo, bucket.axes[axis].lo);
        reach.hi = std::max(reach.hi, bucket.axes[axis].hi);
      }
      const Axis& item = manifest_.axes[axis];
      if (reach.lo != item.extent.lo || reach.hi != item.extent.hi) {
        reader_.add("axis-buckets", place_of("axes", item.name),
                    cat("is ", extent_text(item.extent), ", but the buckets reach from ", reach.lo,
                        " to ", reach.hi));
      }
    }
  }

  const Object& document_;
  Reader& reader_;
  Manifest& manifest_;
  std::map<std::string, size_t> axis_index_;
  std::string wanted_axes_;
};

}  // namespace

void read_signature(const Object& document, Reader* reader, Manifest* manifest) {
  SignatureReader(document, reader, manifest).read();
}

}  // namespace ecr
