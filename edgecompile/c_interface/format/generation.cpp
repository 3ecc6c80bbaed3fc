// The manifest's "generation": how the programs of a language model are called in turn. This
// library runs such programs, but leaves the loop over tokens to its caller.
#include <algorithm>
#include <set>

#include "base/text.h"
#include "format/schema.h"

namespace ecr {
namespace {

constexpr const char* kKey = "generation";
constexpr const char* kCausal = "causal-lm";
constexpr size_t kMaxCaches = 509;
constexpr const char* kSeq2Seq = "seq2seq";
constexpr size_t kMaxCross = 508;
constexpr size_t kMaxEos = 64;
constexpr size_t kMaxStart = 64;
constexpr size_t kMaxSuppress = 4096;
constexpr int64_t kMaxSize = 2147483647;

bool is_fixed(const Dim& dim, int64_t size) {
  return dim.kind == Dim::Kind::kFixed && dim.size == size;
}

bool is_axis(const Dim& dim, size_t axis) {
  return dim.kind == Dim::Kind::kAxis && dim.axis == axis;
}

class GenerationReader {
 public:
  GenerationReader(const Object& entry, Reader* reader, Manifest* manifest)
      : entry_(entry), reader_(*reader), manifest_(*manifest), before_(reader->count_problems()) {}

  // Keys first; then, if the rest of the manifest is `sound`, what they say about it.
  void read(bool sound) {
    const std::string* const kind = reader_.string(entry_, "kind", kKey);
    if (kind != nullptr && *kind != kCausal && *kind != kSeq2Seq) {
      add("generation-kind", "kind",
          cat(quoted(*kind), " is neither ", kCausal, " nor ", kSeq2Seq));
    }
    spec_.input = text("input");
    spec_.position = text("position");
    spec_.last = text("last");
    spec_.logits = text("logits");
    spec_.length_axis = text("length_axis");
    spec_.context_axis = text("context_axis");
    spec_.max_context = reader_.integer(entry_, "max_context", kKey).value_or(0);
    spec_.caches = names("caches", kMaxCaches);
    spec_.eos = tokens("eos", 0, kMaxEos);
    const Value* const bos = reader_.key(entry_, "bos", kKey);
    if (bos != nullptr && !bos->is(Value::Type::kNull)) {
      spec_.bos = reader_.as_integer(*bos, place_of(kKey, "bos"));
    }
    spec_.pad = reader_.integer(entry_, "pad", kKey).value_or(0);
    read_defaults();
    spec_.has_source = kind != nullptr && *kind == kSeq2Seq;
    if (spec_.has_source) {
      spec_.encoder = text("encoder");
      spec_.source = text("source");
      spec_.cross = names("cross", kMaxCross);
      spec_.start = tokens("start", 1, kMaxStart);
      spec_.suppress = tokens("suppress", 0, kMaxSuppress);
      spec_.suppress_first = tokens("suppress_first", 0, kMaxSuppress);
    }
    if (failed()) return;
    if (sound) check();
    if (!failed()) manifest_.generation = std::move(spec_);
  }

 private:
  void add(const char* rule, const std::string& key, const std::string& message) {
    reader_.add(rule, key.empty() ? kKey : place_of(kKey, key), message);
  }

  bool failed() const { return reader_.count_problems() > before_; }

  std::string text(const char* key) {
    const std::string* const found = reader_.string(entry_, key, kKey);
    return found == nullptr ? "" : *found;
  }

  std::vector<std::string> names(const char* key, size_t most) {
    std::vector<std::string> result;
    size_t index = 0;
    for (const Value& value : reader_.items(entry_, key, kKey, 1, most)) {
      const std::string* const name =
          reader_.as_string(value, cat(kKey, ".", key, "[", index++, "]"));
      if (name != nullptr) result.push_back(*name);
    }
    return result;
  }

  std::vector<int64_t> tokens(const char* key, size_t least, size_t most) {
    std::vector<int64_t> result;
    size_t index = 0;
    for (const Value& value : reader_.items(entry_, key, kKey, least, most)) {
      const std::optional<int64_t> token =
          reader_.as_integer(value, cat(kKey, ".", key, "[", index++, "]"));
      if (token) result.push_back(*token);
    }
    return result;
  }

  void read_defaults() {
    const Object& entry = reader_.mapping(entry_, "defaults", kKey);
    const std::string where = place_of(kKey, "defaults");
    if (entry.find("do_sample") != nullptr) {
      spec_.do_sample = reader_.boolean(entry, "do_sample", where);
    }
    for (const auto& [key, least] : {std::pair("top_k", 0), std::pair("max_new_tokens", 1)}) {
      if (entry.find(key) == nullptr) continue;
      const std::optional<int64_t> whole = reader_.integer(entry, key, where);
      if (!whole) continue;
      if (*whole < least || *whole > kMaxSize) {
        add("generation-default", cat("defaults.", key),
            cat(*whole, " isn't within ", least, "..", kMaxSize));
      }
      spec_.defaults.emplace_back(key, Number{true, *whole, 0});
    }
    for (const char* const key : {"temperature", "top_p", "repetition_penalty"}) {
      if (entry.find(key) == nullptr) continue;
      const std::optional<Number> number = reader_.number(entry, key, where);
      if (!number) continue;
      if (!is_sensible(key, number->value())) {
        add("generation-default", cat("defaults.", key), number->text() + " makes no sense");
      }
      spec_.defaults.emplace_back(key, *number);
    }
  }

  static bool is_sensible(const std::string& key, long double value) {
    if (key == "top_p") return 0 < value && value <= 1;
    return key == "temperature" ? value >= 0 : value > 0;
  }

  const TensorSpec* find_input(const std::string& name) const {
    const auto found = std::find_if(manifest_.inputs.begin(), manifest_.inputs.end(),
                                    [&name](const TensorSpec& item) { return item.name == name; });
    return found == manifest_.inputs.end() ? nullptr : &*found;
  }

  std::optional<size_t> find_axis(const std::string& name) const {
    for (size_t i = 0; i < manifest_.axes.size(); ++i) {
      if (manifest_.axes[i].name == name) return i;
    }
    return std::nullopt;
  }

  void check() {
    check_axes();
    check_names();
    if (failed()) return;
    const TensorSpec& input = *find_input(spec_.input);
    const TensorSpec& logits = manifest_.outputs[0];
    check_shape("input", input, ECR_INT64,
                input.shape.size() == 2 && is_fixed(input.shape[0], 1) &&
                    is_axis(input.shape[1], spec_.length));
    for (const char* const key : {"position", "last"}) {
      const TensorSpec& item = *find_input(key[0] == 'p' ? spec_.position : spec_.last);
      check_shape(key, item, ECR_INT64, item.shape.size() == 1 && is_fixed(item.shape[0], 1));
    }
    if (logits.shape.size() != 2 || logits.shape[1].kind != Dim::Kind::kFixed) {
      add("generation-shape", "logits", "must be float32 of the shape [1, vocabulary]");
      return;
    }
    check_shape("logits", logits, ECR_FLOAT32, is_fixed(logits.shape[0], 1));
    for (const std::string& name : spec_.caches) {
      const TensorSpec& item = *find_input(name);
      const bool good = item.shape.size() >= 2 && is_axis(item.shape[0], spec_.context) &&
                        std::all_of(item.shape.begin() + 1, item.shape.end(),
                                    [](const Dim& dim) { return dim.kind == Dim::Kind::kFixed; });
      check_shape("caches", item, ECR_FLOAT32, good);
    }
    if (spec_.has_source) check_source();
    check_tokens(input, logits.shape[1].size);
    check_bounds("position", *find_input(spec_.position), spec_.max_context);
    check_bounds("last", *find_input(spec_.last), manifest_.axes[spec_.length].extent.hi);
    check_buckets();
  }

  void check_axes() {
    const std::optional<size_t> length = find_axis(spec_.length_axis);
    const std::optional<size_t> context = find_axis(spec_.context_axis);
    if (!length || length != manifest_.length_axis) {
      add("generation-axes", "length_axis", quoted(spec_.length_axis) + " isn't the length_axis");
    }
    if (!context || spec_.context_axis == spec_.length_axis) {
      add("generation-axes", "context_axis",
          quoted(spec_.context_axis) + " isn't another one of the axes");
    } else if (spec_.max_context != manifest_.axes[*context].extent.hi) {
      add("generation-axes", "max_context",
          cat("is ", spec_.max_context, ", but the axis ", quoted(spec_.context_axis), " reaches ",
              manifest_.axes[*context].extent.hi));
    }
    spec_.length = length.value_or(0);
    spec_.context = context.value_or(0);
  }

  void check_names() {
    std::vector<std::string> used = {spec_.input, spec_.position, spec_.last};
    used.insert(used.end(), spec_.caches.begin(), spec_.caches.end());
    used.insert(used.end(), spec_.cross.begin(), spec_.cross.end());
    for (const std::string& name : used) {
      if (find_input(name) == nullptr) {
        add("generation-inputs", "", quoted(name) + " isn't an input");
      }
    }
    const std::set<std::string> unique(used.begin(), used.end());
    if (unique.size() != used.size()) add("generation-inputs", "", "an input is named twice");
    for (const TensorSpec& item : manifest_.inputs) {
      if (unique.count(item.name) == 0) {
        add("generation-inputs", "", cat("nothing says what the input ", quoted(item.name), " is"));
        break;
      }
    }
    if (manifest_.outputs.size() != 1 || manifest_.outputs[0].name != spec_.logits) {
      add("generation-logits", "logits", "the only output must be " + quoted(spec_.logits));
    }
  }

  // What the bundle within makes of a source: as many rows in each, which no bucket pads or cuts.
  void check_source() {
    const TensorSpec& first = *find_input(spec_.cross[0]);
    const Dim rows = first.shape.empty() ? Dim{} : first.shape[0];
    if (is_axis(rows, spec_.length) || is_axis(rows, spec_.context)) {
      add("generation-shape", "cross", quoted(first.name) + " has another one's axis first");
    }
    for (const std::string& name : spec_.cross) {
      const TensorSpec& item = *find_input(name);
      const bool good = item.shape.size() >= 2 && item.shape[0].kind == rows.kind &&
                        item.shape[0].size == rows.size && item.shape[0].axis == rows.axis &&
                        std::all_of(item.shape.begin() + 1, item.shape.end(),
                                    [](const Dim& dim) { return dim.kind == Dim::Kind::kFixed; });
      check_shape("cross", item, ECR_FLOAT32, good);
    }
    if (manifest_.files.count(spec_.encoder + "/manifest.json") == 0) {
      add("generation-encoder", "encoder",
          quoted(spec_.encoder + "/manifest.json") + " isn't listed in files");
    }
    if (static_cast<int64_t>(spec_.start.size()) >= spec_.max_context) {
      add("generation-tokens", "start",
          cat("has ", spec_.start.size(), " tokens, the context ", spec_.max_context));
    }
    if (rows.kind != Dim::Kind::kAxis) return;
    const Extent& whole = manifest_.axes[rows.axis].extent;
    for (size_t i = 0; i < manifest_.buckets.size(); ++i) {
      const Bucket& bucket = manifest_.buckets[i];
      if (std::count(bucket.pad_axes.begin(), bucket.pad_axes.end(), rows.axis) != 0) {
        add("generation-buckets", "cross",
            cat("bucket ", i, " pads the source, which has no mask"));
      }
      const Extent& extent = bucket.axes[rows.axis];
      if (!extent.contains(whole.lo) || !extent.contains(whole.hi)) {
        add("generation-buckets", "cross",
            cat("bucket ", i, " doesn't take every source of ", extent_text(whole)));
      }
    }
  }

  void check_shape(const char* key, const TensorSpec& item, int32_t dtype, bool has_shape) {
    if (item.type->code == dtype && has_shape) return;
    add("generation-shape", key, quoted(item.name) + " has another type or shape");
  }

  void check_tokens(const TensorSpec& input, int64_t vocabulary) {
    if (!input.bounds || input.bounds->first.value() > 0 ||
        input.bounds->second.value() < vocabulary - 1) {
      add("generation-tokens", "input",
          cat("the bounds of ", quoted(input.name), " must hold every token, 0..", vocabulary - 1));
    }
    if (!input.pad || input.pad->value() != static_cast<long double>(spec_.pad)) {
      add("generation-tokens", "pad",
          cat("is ", spec_.pad, ", but the input ", quoted(input.name),
              " is padded with something else"));
    }
    std::vector<int64_t> tokens = spec_.eos;
    for (const auto* const more : {&spec_.start, &spec_.suppress, &spec_.suppress_first}) {
      tokens.insert(tokens.end(), more->begin(), more->end());
    }
    tokens.push_back(spec_.pad);
    if (spec_.bos) tokens.push_back(*spec_.bos);
    for (const int64_t token : tokens) {
      if (token < 0 || token >= vocabulary) {
        add("generation-tokens", "", cat(token, " isn't a token, 0..", vocabulary - 1));
      }
    }
  }

  void check_bounds(const char* key, const TensorSpec& item, int64_t size) {
    if (item.bounds && (item.bounds->first.value() > 0 || item.bounds->second.value() < size - 1)) {
      add("generation-bounds", key,
          cat("the bounds of ", quoted(item.name), " must be null or hold 0..", size - 1));
    }
  }

  void check_buckets() {
    const Extent& whole = manifest_.axes[spec_.context].extent;
    const auto is_step = [&](const Bucket& bucket) {
      const Extent& rows = bucket.axes[spec_.context];
      return bucket.axes[spec_.length].hi == 1 && rows.contains(whole.lo) &&
             rows.contains(whole.hi);
    };
    if (std::none_of(manifest_.buckets.begin(), manifest_.buckets.end(), is_step)) {
      add("generation-buckets", "length_axis",
          cat("no bucket takes one token at every context ", extent_text(whole)));
    }
    for (size_t i = 0; i < manifest_.buckets.size(); ++i) {
      const Bucket& bucket = manifest_.buckets[i];
      const Extent& length = bucket.axes[spec_.length];
      const Extent& rows = bucket.axes[spec_.context];
      if (std::count(bucket.pad_axes.begin(), bucket.pad_axes.end(), spec_.context) != 0) {
        add("generation-buckets", "context_axis",
            cat("bucket ", i, " pads the context, which caches don't bear"));
      }
      const int64_t needed = bucket.padded ? length.hi : length.hint;
      if (rows.hint < needed) {
        add("generation-buckets", "context_axis",
            cat("bucket ", i, ": the context's hint ", rows.hint, " is less than ", needed,
                " tokens"));
      }
      if (rows.hi < length.hi) {
        add("generation-buckets", "context_axis",
            cat("bucket ", i, " takes more tokens, ", length.hi, ", than context, ", rows.hi));
      }
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
