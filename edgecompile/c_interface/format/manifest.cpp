// Reads manifest.json: every rule of FORMAT.md about it has one check and one id.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "format/schema.h"

namespace ecr {
namespace {

constexpr size_t kMaxPath = 1024;
constexpr size_t kMaxSegment = 255;

bool is_path_letter(char letter) {
  return ('A' <= letter && letter <= 'Z') || ('a' <= letter && letter <= 'z') ||
         ('0' <= letter && letter <= '9') ||
         (letter != '\0' && std::strchr("._+@=,~-", letter) != nullptr);
}

// What is wrong with a path of a bundle; empty if nothing is.
std::string check_path(const std::string& path) {
  const size_t length = count_code_points(path);
  if (length > kMaxPath) return cat("has ", length, " characters, at most ", kMaxPath);
  size_t begin = 0;
  while (true) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string segment = path.substr(begin, end - begin);
    if (segment.empty() || segment == "." || segment == ".." || segment.size() > kMaxSegment ||
        !std::all_of(segment.begin(), segment.end(), is_path_letter)) {
      return cat("has the segment ", quoted(segment));
    }
    if (end == path.size()) return "";
    begin = end + 1;
  }
}

bool is_glibc(const std::string& text) {
  const size_t dot = text.find('.');
  const auto is_number = [](const std::string& part) {
    return !part.empty() && part.size() <= 3 &&
           part.find_first_not_of("0123456789") == std::string::npos;
  };
  return dot != std::string::npos && is_number(text.substr(0, dot)) &&
         is_number(text.substr(dot + 1));
}

class ManifestReader {
 public:
  ManifestReader(const Object& document, Reader* reader) : document_(document), reader_(*reader) {}

  // In the order in which the keys depend on each other.
  Manifest read() {
    if (const std::string* const name = reader_.name(document_, "name", "")) manifest_.name = *name;
    manifest_.built_by = read_strings("built_by", true);
    const std::string* const precision = reader_.name(document_, "precision", "");
    read_files();
    read_signature(document_, &reader_, &manifest_);
    manifest_.probes = read_paths("probes");
    manifest_.weights = read_paths("weights");
    if (precision != nullptr) {
      manifest_.precision = *precision;
      if (manifest_.weights.count(*precision) == 0) {
        reader_.add("weights-precision", "weights",
                    cat("no weights for the precision ", quoted(*precision)));
      }
    }
    read_variants();
    read_tolerance();
    read_generation(document_, &reader_, &manifest_);
    for (const char* const key : {"generation", "text", "labels"}) {
      const Value* const value = document_.find(key);
      if (value == nullptr) continue;
      JsonWriter out;
      manifest_.passed_on.emplace_back(key, out.value(*value).text());
    }
    return std::move(manifest_);
  }

 private:
  Strings read_strings(const char* key, bool optional) {
    Strings result;
    for (const Member& member : reader_.mapping(document_, key, "", optional).members()) {
      if (const std::string* const text =
              reader_.as_string(member.value, place_of(key, member.key))) {
        result[member.key] = *text;
      }
    }
    return result;
  }

  Strings read_paths(const char* key) {
    Strings result;
    for (const auto& [name, path] : read_strings(key, false)) {
      const std::string where = place_of(key, name);
      if (!reader_.check_name(name, where)) continue;
      check_listed(path, where);
      result[name] = path;
    }
    const Value* const value = document_.find(key);
    if (value != nullptr && value->is(Value::Type::kObject)) {
      reader_.count(value->object().size(), key, 1, 64);
    }
    return result;
  }

  void check_listed(const std::string& path, const std::string& where) {
    if (manifest_.files.count(path) == 0) {
      reader_.add("path-listed", where, quoted(path) + " isn't listed in files");
    }
  }

  void read_files() {
    const Object& entries = reader_.mapping(document_, "files", "");
    if (document_.find("files") != nullptr) reader_.count(entries.size(), "files", 1, 65536);
    for (const Member& member : entries.members()) {
      const std::string where = place_of("files", member.key);
      const std::string wrong = check_path(member.key);
      if (!wrong.empty()) reader_.add("path-form", where, wrong);
      if (member.key == kManifestName) {
        reader_.add("path-manifest", where, "the manifest can't list itself");
      }
      const Object* const entry = reader_.as_object(member.value, where);
      if (entry == nullptr) continue;
      const std::optional<int64_t> size = reader_.integer(*entry, "size", where);
      if (size && *size < 0) reader_.add("file-size", where + ".size", cat(*size, " is negative"));
      const std::string* const digest = reader_.string(*entry, "sha256", where);
      if (digest != nullptr &&
          (digest->size() != 64 ||
           digest->find_first_not_of("0123456789abcdef") != std::string::npos)) {
        reader_.add("file-sha256", where + ".sha256",
                    quoted(*digest, 80) + " isn't 64 lower-case hex digits");
      }
      // A broken entry still counts as listed: its own problem is enough.
      manifest_.files[member.key] = {size.value_or(0), digest == nullptr ? "" : *digest};
    }
  }

  void read_variants() {
    size_t index = 0;
    for (const Value& value : reader_.items(document_, "variants", "", 1, 64)) {
      const std::string where = cat("variants[", index++, "]");
      const Object* const entry = reader_.as_object(value, where);
      if (entry == nullptr) continue;
      Variant variant;
      if (const std::string* const name = reader_.name(*entry, "name", where)) {
        variant.name = *name;
        if (std::any_of(manifest_.variants.begin(), manifest_.variants.end(),
                        [name](const Variant& item) { return item.name == *name; })) {
          reader_.add("name-unique", where + ".name", quoted(*name) + " occurs twice");
        }
      }
      const std::string* const arch = reader_.name(*entry, "arch", where);
      const std::string* const backend = reader_.name(*entry, "backend", where);
      if (arch != nullptr) variant.arch = *arch;
      if (backend != nullptr) variant.backend = *backend;
      read_features(*entry, where, &variant);
      read_glibc(*entry, where, &variant);
      variant.rank = reader_.integer(*entry, "rank", where).value_or(0);
      if (variant.backend == kBackend || variant.backend == kTorchBackend) {
        if (arch != nullptr && manifest_.probes.count(*arch) == 0) {
          reader_.add("variant-probe", where, cat("no probe for the architecture ", quoted(*arch)));
        }
        if (variant.backend == kTorchBackend) {  // Not run here, but judged as in Python.
          reader_.name(*entry, "torch", where);
        } else if (const std::string* const runtime = reader_.string(*entry, "runtime", where)) {
          variant.runtime = *runtime;
          check_listed(*runtime, where + ".runtime");
        }
        read_programs(*entry, where, &variant);
      } else if (variant.backend == kTensorRtBackend) {
        if (const std::string* const recipe = reader_.string(*entry, "recipe", where)) {
          check_listed(*recipe, where + ".recipe");
        }
      }
      manifest_.variants.push_back(std::move(variant));
    }
  }

  void read_features(const Object& entry, const std::string& where, Variant* variant) {
    size_t index = 0;
    for (const Value& value : reader_.items(entry, "requires", where, 0, 256)) {
      const std::string* const feature =
          reader_.as_string(value, cat(where, ".requires[", index++, "]"));
      if (feature != nullptr && reader_.check_name(*feature, where + ".requires")) {
        variant->requires_.push_back(*feature);
      }
    }
  }

  void read_glibc(const Object& entry, const std::string& where, Variant* variant) {
    const Value* const value = reader_.key(entry, "glibc", where);
    if (value == nullptr || value->is(Value::Type::kNull)) return;
    const std::string* const text = reader_.as_string(*value, where + ".glibc");
    if (text == nullptr) return;
    if (!is_glibc(*text)) {
      reader_.add("variant-glibc", where + ".glibc", quoted(*text) + " must look like 2.34");
    }
    variant->glibc = *text;
  }

  void read_programs(const Object& entry, const std::string& where, Variant* variant) {
    const std::string place = where + ".programs";
    const Items items = reader_.items(entry, "programs", where, 0, 256);
    size_t index = 0;
    for (const Value& value : items) {
      const std::string item_place = cat(place, "[", index++, "]");
      if (const std::string* const path = reader_.as_string(value, item_place)) {
        check_listed(*path, item_place);
        variant->programs.push_back(*path);
      }
    }
    const Value* const programs = entry.find("programs");
    if (programs != nullptr && programs->is(Value::Type::kList) &&
        items.count != manifest_.buckets.size()) {
      reader_.add("variant-programs", place,
                  cat(items.count, " programs for ", manifest_.buckets.size(), " buckets"));
    }
  }

  void read_tolerance() {
    const Value* const value = reader_.key(document_, "tolerance", "");
    const Object* const entry = value == nullptr ? nullptr : reader_.as_object(*value, "tolerance");
    if (entry == nullptr) return;
    const auto read = [&](const char* key) {
      const std::optional<Number> number = reader_.number(*entry, key, "tolerance");
      if (number && number->value() < 0) {
        reader_.add("tolerance-range", place_of("tolerance", key), number->text() + " is negative");
      }
      return number ? static_cast<double>(number->value()) : 0.0;
    };
    manifest_.atol = read("atol");
    manifest_.rtol = read("rtol");
  }

  const Object& document_;
  Reader& reader_;
  Manifest manifest_;
};

}  // namespace

Manifest parse_manifest(const std::string& data, const std::string& source) {
  const Value document = parse_json(data.data(), data.size(), source, kMaxManifestBytes);
  Problems problems(source);
  Reader reader(&problems);
  const std::optional<int64_t> version = reader.integer(document.object(), "format_version", "");
  problems.raise_if_any();
  if (*version != kFormatVersion) {
    fail(ECR_VERSION,
         cat(source, ": the bundle has format version ", *version, ", this library knows version ",
             kFormatVersion, " [version-known]"),
         "use the library of the edgecompile that built the bundle, or build the bundle again with "
         "the edgecompile that this library belongs to");
  }
  Manifest manifest = ManifestReader(document.object(), &reader).read();
  problems.raise_if_any(ECR_BUNDLE, "the bundle was written wrongly or changed; build it again");
  return manifest;
}

}  // namespace ecr
