// Reads manifest.json: the rules of FORMAT.md that running a program depends on.
#include <algorithm>

#include "base/text.h"
#include "format/schema.h"

namespace ecr {
namespace {

constexpr size_t kMaxPath = 1024;
constexpr size_t kMaxSegment = 255;
constexpr char kPathLetters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+@=,~-";
constexpr char kDigits[] = "0123456789abcdef";

bool consists_of(const std::string& text, const std::string& letters) {
  return text.find_first_not_of(letters) == std::string::npos;
}

// Relative, and within the folder.
Version read_version(const Field& entry) {
  const std::string& text = entry.string();
  const size_t dot = std::min(text.find('.'), text.size());
  const std::string parts[2] = {text.substr(0, dot), text.substr(std::min(dot + 1, text.size()))};
  for (const std::string& part : parts) {
    if (part.empty() || part.size() > 3 || !consists_of(part, std::string(kDigits, 10))) {
      entry.refuse("variant-glibc", quoted(text) + " must look like 2.34");
    }
  }
  return {std::stoi(parts[0]), std::stoi(parts[1])};
}

class ManifestReader {
 public:
  explicit ManifestReader(const Field& document) : document_(document) {}

  // In the order in which the keys depend on each other.
  Manifest read() {
    manifest_.name = document_.at("name").name();
    manifest_.precision = document_.at("precision").name();
    if (document_.has("built_by")) document_.at("built_by").check_strings();
    read_files();
    read_signature(document_, &manifest_);
    manifest_.probes = read_paths(document_.at("probes"));
    manifest_.weights = read_paths(document_.at("weights"));
    if (manifest_.weights.count(manifest_.precision) == 0) {
      document_.at("weights").refuse("weights-precision",
                                     "has none for the precision " + quoted(manifest_.precision));
    }
    for (const Field& entry : document_.at("variants").list(1, 64)) read_variant(entry);
    manifest_.tolerance = read_tolerance(document_.at("tolerance"));
    if (document_.has("generation")) read_generation(document_.at("generation"), &manifest_);
    if (document_.has("state")) read_state(document_.at("state"), &manifest_);
    return std::move(manifest_);
  }

 private:
  void read_files() {
    const Field files = document_.at("files");
    for (const Member& member : files.object(1, 65536)) {
      const Field entry = files.child(member);
      if (!is_path(member.key)) entry.refuse("path-form", "isn't a path within the bundle");
      if (member.key == kManifestName) {
        entry.refuse("path-manifest", "the manifest can't list itself");
      }
      const Field size = entry.at("size");
      const Field digest = entry.at("sha256");
      if (size.integer() < 0) size.refuse("file-size", "is negative");
      if (digest.string().size() != 64 || !consists_of(digest.string(), kDigits)) {
        digest.refuse("file-sha256",
                      quoted(digest.string(), 80) + " isn't 64 lower-case hex digits");
      }
      manifest_.files[member.key] = {size.integer(), digest.string()};
    }
  }

  // A path of a listed file.
  std::string read_path(const Field& entry) const {
    const std::string& path = entry.string();
    if (manifest_.files.count(path) == 0) {
      entry.refuse("path-listed", quoted(path) + " isn't listed in files");
    }
    return path;
  }

  Strings read_paths(const Field& entries) const {
    Strings result;
    for (const Member& member : entries.object(1, 64)) {
      const Field entry = entries.child(member);
      entry.string();  // A wrong type counts before a wrong name, as in Python.
      entry.check_name(member.key);
      result[member.key] = read_path(entry);
    }
    return result;
  }

  void read_variant(const Field& entry) {
    Variant variant;
    variant.name = entry.at("name").name();
    for (const Variant& other : manifest_.variants) {
      if (other.name == variant.name) {
        entry.refuse("name-unique", quoted(variant.name) + " occurs twice");
      }
    }
    variant.arch = entry.at("arch").name();
    variant.backend = entry.at("backend").name();
    for (const Field& feature : entry.at("requires").list(0, 256)) {
      variant.requires_.push_back(feature.name());
    }
    const Field glibc = entry.at("glibc");
    if (!glibc.is_null()) variant.glibc = read_version(glibc);
    variant.rank = entry.at("rank").integer();
    if (variant.backend == kTensorRtBackend) read_path(entry.at("recipe"));
    const bool is_triton = variant.backend == kTritonBackend;
    if (variant.backend == kBackend || variant.backend == kTorchBackend || is_triton) {
      if (manifest_.probes.count(variant.arch) == 0) {
        entry.refuse("variant-probe", "no probe for the architecture " + quoted(variant.arch));
      }
      if (variant.backend == kTorchBackend) {
        entry.at("torch").name();
      } else {
        variant.runtime = read_path(entry.at("runtime"));
      }
      const Field programs = entry.at("programs");
      for (const Field& program : programs.list(0, 256)) {
        variant.programs.push_back(read_path(program));
      }
      if (variant.programs.size() != manifest_.buckets.size()) {
        programs.refuse("variant-programs", cat(variant.programs.size(), " programs for ",
                                                manifest_.buckets.size(), " buckets"));
      }
      if (is_triton) {
        variant.gpu = read_gpu(entry.at("gpu"));
        if (const std::optional<Field> lists = entry.find("alternatives"))
          variant.alternatives = read_alternatives(*lists);
      }
    }
    manifest_.variants.push_back(std::move(variant));
  }

  std::vector<std::vector<std::string>> read_alternatives(const Field& entry) const {
    std::vector<std::vector<std::string>> lists;
    for (const Field& item : entry.list(0, 256)) {
      lists.emplace_back();
      for (const Field& program : item.list(0, 8)) lists.back().push_back(read_path(program));
    }
    if (lists.size() != manifest_.buckets.size()) {
      entry.refuse("variant-programs", cat(lists.size(), " lists of alternatives for ",
                                           manifest_.buckets.size(), " buckets"));
    }
    return lists;
  }

  GpuSpec read_gpu(const Field& entry) const {
    GpuSpec spec;
    for (const Field& item : entry.at("compute_capabilities").list(0, 32)) {
      spec.capabilities.push_back(read_capability(item));
    }
    if (!entry.at("ptx").is_null()) spec.ptx = read_capability(entry.at("ptx"));
    if (!spec.ptx && spec.capabilities.empty()) {
      entry.refuse("variant-gpu", "has neither machine code nor PTX");
    }
    spec.driver = entry.at("driver").integer();
    if (spec.driver < 11000 || spec.driver > 99999) {
      entry.at("driver").refuse("variant-gpu", cat(spec.driver, " isn't within 11000..99999"));
    }
    spec.precision = entry.at("precision").name();
    if (manifest_.weights.count(spec.precision) == 0) {
      entry.at("precision")
          .refuse("weights-precision", "no weights for the precision " + quoted(spec.precision));
    }
    spec.tolerance = read_tolerance(entry.at("tolerance"));
    if (const std::optional<Field> cosine = entry.find("min_cosine")) {
      const Number number = cosine->number();
      if (number.value < -1 || number.value > 1) {
        cosine->refuse("tolerance-range", number.text() + " isn't within -1..1");
      }
      spec.min_cosine = static_cast<double>(number.value);
    }
    spec.padding = entry.at("padding").boolean();
    if (entry.has("checks")) {
      for (const Field& item : entry.at("checks").list(0, 16)) item.name();
    }
    if (entry.has("graphs")) spec.graphs = entry.at("graphs").boolean();
    if (entry.has("cublaslt")) spec.cublaslt = entry.at("cublaslt").boolean();
    return spec;
  }

  static Version read_capability(const Field& entry) {
    const std::string& text = entry.string();
    const size_t dot = text.size() < 3 ? 0 : text.size() - 2;
    if (dot < 1 || dot > 2 || text[dot] != '.' || text[0] == '0' ||
        !consists_of(text.substr(0, dot) + text.substr(dot + 1), std::string(kDigits, 10))) {
      entry.refuse("variant-gpu", quoted(text) + " must look like 8.7");
    }
    return {std::stoi(text), text.back() - '0'};
  }

  static Tolerance read_tolerance(const Field& entry) {
    const auto read = [](const Field& item) {
      const Number number = item.number();
      if (number.value < 0) item.refuse("tolerance-range", number.text() + " is negative");
      return static_cast<double>(number.value);
    };
    return {read(entry.at("atol")), read(entry.at("rtol"))};
  }

  const Field document_;
  Manifest manifest_;
};

}  // namespace

bool is_path(const std::string& path) {
  if (path.size() > kMaxPath) return false;
  for (size_t begin = 0, end = 0; end != path.size(); begin = end + 1) {
    end = std::min(path.find('/', begin), path.size());
    const std::string segment = path.substr(begin, end - begin);
    if (segment.empty() || segment == "." || segment == ".." || segment.size() > kMaxSegment ||
        !consists_of(segment, kPathLetters)) {
      return false;
    }
  }
  return !path.empty();
}

Manifest parse_manifest(const std::string& data, const std::string& source) {
  Value value = parse_json(data, source);
  const Field document(value, source);
  const int64_t version = document.at("format_version").integer();
  if (version != kFormatVersion) {
    fail(ECR_VERSION,
         cat(source, ": the bundle has format version ", version, ", this library knows version ",
             kFormatVersion, " [version-known]"),
         "use the library of the edgecompile that built the bundle, or build the bundle again with "
         "the edgecompile that this library belongs to");
  }
  Manifest manifest = ManifestReader(document).read();
  manifest.document = std::move(value);
  return manifest;
}

}  // namespace ecr
