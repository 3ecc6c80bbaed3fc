// The manifest's "generation", as far as running one program depends on it: which inputs are caches
// that the program writes, and which numbers say where. The loop over tokens is its caller's, and
// so is the rest of the section.
#include <algorithm>

#include "base/text.h"
#include "format/schema.h"

namespace ecr {
namespace {

constexpr const char* kKey = "generation";
constexpr size_t kMaxCaches = 509;

bool is_axis(const Dim& dim, size_t axis) {
  return dim.kind == Dim::Kind::kAxis && dim.axis == axis;
}

class GenerationReader {
 public:
  GenerationReader(const Object& entry, Reader* reader, Manifest* manifest)
      : entry_(entry), reader_(*reader), manifest_(*manifest), before_(reader->count_problems()) {}

  // Keys first; then, if the rest of the manifest is `sound`, what they say about it.
  void read(bool sound) {
    const std::string kind = text("kind");
    spec_.position = text("position");
    spec_.last = text("last");
    const std::string length_axis = text("length_axis");
    const std::string context_axis = text("context_axis");
    size_t index = 0;
    for (const Value& value : reader_.items(entry_, "caches", kKey, 1, kMaxCaches)) {
      const std::string* const name = reader_.as_string(value, cat(kKey, ".caches[", index++, "]"));
      if (name != nullptr) spec_.caches.push_back(*name);
    }
    if (failed()) return;
    if (kind != "causal-lm" && kind != "seq2seq") {
      add("generation-kind", "kind", quoted(kind) + " is neither causal-lm nor seq2seq");
    }
    if (sound) check(length_axis, context_axis);
    if (!failed()) manifest_.generation = std::move(spec_);
  }

 private:
  void add(const char* rule, const char* key, const std::string& message) {
    reader_.add(rule, place_of(kKey, key), message);
  }

  bool failed() const { return reader_.count_problems() > before_; }

  std::string text(const char* key) {
    const std::string* const found = reader_.string(entry_, key, kKey);
    return found == nullptr ? "" : *found;
  }

  std::optional<size_t> find_axis(const std::string& name) const {
    for (size_t i = 0; i < manifest_.axes.size(); ++i) {
      if (manifest_.axes[i].name == name) return i;
    }
    return std::nullopt;
  }

  void check(const std::string& length_axis, const std::string& context_axis) {
    const std::optional<size_t> length = find_axis(length_axis);
    const std::optional<size_t> context = find_axis(context_axis);
    if (!length || length != manifest_.length_axis) {
      add("generation-axes", "length_axis", quoted(length_axis) + " isn't the length_axis");
    }
    if (!context || context == length) {
      add("generation-axes", "context_axis",
          quoted(context_axis) + " isn't another one of the axes");
    }
    if (failed()) return;
    spec_.length = *length;
    spec_.context = *context;
    for (const auto& [key, name] :
         {std::pair("position", &spec_.position), std::pair("last", &spec_.last)}) {
      check_input(key, *name, ECR_INT64, [](const std::vector<Dim>& shape) {
        return shape.size() == 1 && shape[0].kind == Dim::Kind::kFixed && shape[0].size == 1;
      });
    }
    for (const std::string& name : spec_.caches) {
      check_input("caches", name, ECR_FLOAT32, [this](const std::vector<Dim>& shape) {
        return shape.size() >= 2 && is_axis(shape[0], spec_.context) &&
               std::all_of(shape.begin() + 1, shape.end(),
                           [](const Dim& dim) { return dim.kind == Dim::Kind::kFixed; });
      });
    }
    for (size_t i = 0; i < manifest_.buckets.size(); ++i) {
      const std::vector<size_t>& padded = manifest_.buckets[i].pad_axes;
      if (std::count(padded.begin(), padded.end(), spec_.context) != 0) {
        add("generation-buckets", "context_axis",
            cat("bucket ", i, " pads the context, which caches don't bear"));
      }
    }
  }

  // Whether there is such an input, of this type and of a shape that `has_shape` takes.
  template <class HasShape>
  void check_input(const char* key, const std::string& name, int32_t dtype,
                   const HasShape& has_shape) {
    const auto item = std::find_if(manifest_.inputs.begin(), manifest_.inputs.end(),
                                   [&name](const TensorSpec& spec) { return spec.name == name; });
    if (item == manifest_.inputs.end()) {
      add("generation-inputs", key, quoted(name) + " isn't an input");
    } else if (item->type->code != dtype || !has_shape(item->shape)) {
      add("generation-shape", key, quoted(name) + " has another type or shape");
    }
  }

  const Object& entry_;
  Reader& reader_;
  Manifest& manifest_;
  size_t before_;
  Generation spec_;
};

}  // namespace

void read_generation(const Object& document, Reader* reader, Manifest* manifest) {
  const Value* const value = document.find(kKey);
  if (value == nullptr) return;
  const bool sound = reader->count_problems() == 0;
  const Object* const entry = reader->as_object(*value, kKey);
  if (entry != nullptr) GenerationReader(*entry, reader, manifest).read(sound);
}

}  // namespace ecr
