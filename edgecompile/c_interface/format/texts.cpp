// Reads the manifest's `text` and `labels`. This library is given token ids and hands back numbers,
// but refuses a malformed bundle wherever Python does.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/text.h"
#include "format/schema.h"

namespace ecr {
namespace {

constexpr int64_t kMaxTokenizerBytes = 64 << 20;
constexpr size_t kMaxPrompts = 64;
constexpr size_t kMaxLabels = 65536;
constexpr size_t kMaxLabel = 200;
const char* const kParts[] = {"ids", "attention_mask", "type_ids"};
const char* const kSteps[] = {"strip", "lower"};

template <size_t Count>
bool is_one_of(const char* const (&words)[Count], const std::string& text) {
  return std::any_of(words, words + Count, [&](const char* word) { return text == word; });
}

class TextReader {
 public:
  TextReader(const Object& document, Reader* reader, Manifest* manifest)
      : document_(document), reader_(*reader), manifest_(*manifest) {}

  void read() {
    const Value* const value = document_.find("text");
    if (value == nullptr) return;
    const bool sound = reader_.clean();
    const Object* const entry = reader_.as_object(*value, "text");
    if (entry == nullptr) return;
    const std::string* const tokenizer = reader_.string(*entry, "tokenizer", "text");
    if (tokenizer != nullptr) check_file(*tokenizer);
    const std::optional<int64_t> max_length = reader_.integer(*entry, "max_length", "text");
    const std::optional<int64_t> pad_id = reader_.integer(*entry, "pad_id", "text");
    spec_.tokenizer = tokenizer != nullptr ? *tokenizer : std::string();
    spec_.max_length = max_length.value_or(0);
    spec_.pad_id = pad_id.value_or(0);
    read_inputs(*entry);
    read_steps(*entry);
    read_prompts(*entry);
    if (sound && reader_.clean()) check_inputs();
    if (reader_.clean()) manifest_.text = std::move(spec_);
  }

 private:
  void check_file(const std::string& path) {
    const auto found = manifest_.files.find(path);
    if (found == manifest_.files.end()) {
      reader_.add("path-listed", "text.tokenizer", quoted(path) + " isn't listed in files");
    } else if (found->second.size > kMaxTokenizerBytes) {
      reader_.add("text-size", "text.tokenizer",
                  cat("has ", found->second.size, " bytes, at most ", kMaxTokenizerBytes));
    }
  }

  void read_inputs(const Object& entry) {
    const Object& found = reader_.mapping(entry, "inputs", "text");
    const Value* const value = entry.find("inputs");
    if (value != nullptr && value->is(Value::Type::kObject)) {
      reader_.count(found.size(), "text.inputs", 1, std::size(kParts));
    }
    std::set<std::string> seen;
    for (const Member& member : found.members()) {
      const std::string where = place_of("text.inputs", member.key);
      const std::string* const part = reader_.as_string(member.value, where);
      if (part == nullptr) continue;
      if (!is_one_of(kParts, *part)) {
        reader_.add("text-inputs", where,
                    quoted(*part) + " isn't one of ids, attention_mask, type_ids");
      } else if (!seen.insert(*part).second) {
        reader_.add("text-inputs", where, *part + " goes twice");
      }
      spec_.inputs.emplace_back(member.key, *part);
    }
  }

  void read_steps(const Object& entry) {
    if (entry.find("prepare") == nullptr) return;
    size_t index = 0;
    for (const Value& value : reader_.items(entry, "prepare", "text", 0, std::size(kSteps))) {
      const std::string where = cat("text.prepare[", index++, "]");
      const std::string* const step = reader_.as_string(value, where);
      if (step != nullptr && !is_one_of(kSteps, *step)) {
        reader_.add("text-prepare", where, quoted(*step) + " isn't one of strip, lower");
      }
      if (step != nullptr) spec_.prepare.push_back(*step);
    }
  }

  void read_prompts(const Object& entry) {
    const Object& prompts = reader_.mapping(entry, "prompts", "text", true);
    reader_.count(prompts.size(), "text.prompts", 0, kMaxPrompts);
    for (const Member& member : prompts.members()) {
      const std::string* const prompt =
          reader_.as_string(member.value, place_of("text.prompts", member.key));
      if (prompt != nullptr) spec_.prompts[member.key] = *prompt;
    }
    const Value* const chosen = entry.find("default_prompt");
    if (chosen == nullptr || chosen->is(Value::Type::kNull)) return;
    const std::string* const name = reader_.as_string(*chosen, "text.default_prompt");
    if (name != nullptr && prompts.find(*name) == nullptr) {
      reader_.add("text-prompts", "text.default_prompt",
                  quoted(*name) + " isn't one of the prompts");
    }
    if (name != nullptr) spec_.default_prompt = *name;
  }

  // Holds the inputs that texts feed against the signature, which is sound.
  void check_inputs() {
    std::vector<const TensorSpec*> fed;
    const TensorSpec* ids = nullptr;
    bool has_ids = false;
    for (const auto& [name, part] : spec_.inputs) {
      const std::string where = place_of("text.inputs", name);
      has_ids = has_ids || part == "ids";
      const auto item =
          std::find_if(manifest_.inputs.begin(), manifest_.inputs.end(),
                       [&name = name](const TensorSpec& spec) { return spec.name == name; });
      if (item == manifest_.inputs.end()) {
        reader_.add("text-inputs", where, "there is no such input");
      } else if (item->type->kind != Kind::kSigned || item->shape.size() != 2) {
        reader_.add("text-inputs", where,
                    "must be an input of signed integers with two dimensions");
      } else {
        fed.push_back(&*item);
        if (part == "ids") ids = &*item;
      }
    }
    if (!has_ids) reader_.add("text-inputs", "text.inputs", "none of them gets the ids");
    if (std::any_of(fed.begin(), fed.end(),
                    [&](const TensorSpec* item) { return !same_shape(*item, *fed[0]); })) {
      reader_.add("text-inputs", "text.inputs", "they must have one shape");
    }
    if (ids != nullptr) check_ids(*ids);
  }

  static bool same_shape(const TensorSpec& one, const TensorSpec& other) {
    return std::equal(one.shape.begin(), one.shape.end(), other.shape.begin(), other.shape.end(),
                      [](const Dim& a, const Dim& b) {
                        return a.kind == b.kind && a.size == b.size && a.axis == b.axis;
                      });
  }

  void check_ids(const TensorSpec& ids) {
    const Dim& dim = ids.shape[1];
    const int64_t longest =
        dim.kind == Dim::Kind::kAxis ? manifest_.axes[dim.axis].extent.hi : dim.size;
    if (spec_.max_length < 1 || spec_.max_length > longest) {
      reader_.add("text-length", "text.max_length",
                  cat(spec_.max_length, " isn't within 1..", longest, ", what ", quoted(ids.name),
                      " takes"));
    }
    const Number pad{true, spec_.pad_id, 0};
    const bool outside = ids.bounds && (pad.value() < ids.bounds->first.value() ||
                                        pad.value() > ids.bounds->second.value());
    if (outside || !holds(*ids.type, pad)) {
      reader_.add("text-pad", "text.pad_id",
                  cat(spec_.pad_id, " isn't a value of ", quoted(ids.name)));
    }
  }

  const Object& document_;
  Reader& reader_;
  Manifest& manifest_;
  TextSpec spec_;
};

void read_labels(const Object& document, Reader* reader, Manifest* manifest) {
  const bool sound = reader->clean();
  const Object& entries = reader->mapping(document, "labels", "", true);
  for (const Member& member : entries.members()) {
    const std::string where = place_of("labels", member.key);
    const Items items = reader->items(entries, member.key.c_str(), "labels", 1, kMaxLabels);
    std::vector<std::string>& labels =
        manifest->labels.emplace_back(member.key, std::vector<std::string>()).second;
    size_t index = 0;
    for (const Value& value : items) {
      const std::string place = cat(where, "[", index++, "]");
      const std::string* const label = reader->as_string(value, place);
      if (label == nullptr) continue;
      if (label->empty() || count_code_points(*label) > kMaxLabel || !is_printable(*label)) {
        reader->add("label-form", place, quoted(*label) + " must be 1 to 200 printable characters");
      }
      labels.push_back(*label);
    }
    if (!sound) continue;
    const auto output =
        std::find_if(manifest->outputs.begin(), manifest->outputs.end(),
                     [&](const TensorSpec& spec) { return spec.name == member.key; });
    if (output == manifest->outputs.end()) {
      reader->add("label-output", where, "there is no such output");
    } else if (output->shape.empty() || output->shape.back().kind != Dim::Kind::kFixed ||
               output->shape.back().size != static_cast<int64_t>(items.count)) {
      reader->add("label-output", where,
                  cat(items.count, " labels, but the output's last dimension is another size"));
    }
  }
}

}  // namespace

void read_texts(const Object& document, Reader* reader, Manifest* manifest) {
  TextReader(document, reader, manifest).read();
  read_labels(document, reader, manifest);
}

}  // namespace ecr
