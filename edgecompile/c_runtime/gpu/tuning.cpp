// The record of `tune`: where it lies, what it holds for, what it says. The folder of the cache is
// that of Python's gpu/cache.py.
#include "gpu/tuning.h"

#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/text.h"
#include "bundle/files.h"
#include "bundle/host.h"
#include "bundle/sha256.h"
#include "json/field.h"

namespace ecr {
namespace {

constexpr int64_t kRecordVersion = 1;
constexpr size_t kMaxRecordBytes = 4u << 20;
constexpr size_t kMaxSystemBytes = 1u << 16;
constexpr size_t kMaxName = 200;
constexpr size_t kMaxProducts = 4096;
constexpr int64_t kMostRows = int64_t{1} << 62;
constexpr const char* kCacheVariable = "EDGECOMPILE_CACHE";
constexpr const char* kRootVariable = "EDGECOMPILE_DEVICE_ROOT";

// At most so many bytes of a file; none where it can't be read.
std::optional<std::string> read_start(const std::string& path, size_t most) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  std::string data(most, '\0');
  size_t size = 0;
  while (size < most) {
    const ssize_t count = read(file.get(), &data[size], most - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  data.resize(size);
  return data;
}

std::string read_system(const char* path) {
  return read_start(variable(kRootVariable) + path, kMaxSystemBytes).value_or("");
}

std::string printable(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (letter >= ' ' && letter <= '~') result += letter;
  }
  const size_t first = std::min(result.find_first_not_of(' '), result.size());
  return result.substr(first, result.find_last_not_of(' ') + 1 - first).substr(0, kMaxName);
}

// NVIDIA's release of Linux, "36.4.3"; "" where it isn't that.
std::string find_release() {
  const std::string text = read_system("/etc/nv_tegra_release");
  size_t at = 0;
  const auto skip = [&](const std::string& wanted) {
    if (text.compare(at, wanted.size(), wanted) != 0) return false;
    at += wanted.size();
    return true;
  };
  const auto take_digits = [&] {
    std::string digits;
    while (digits.size() < 4 && at < text.size() && text[at] >= '0' && text[at] <= '9') {
      digits += text[at++];
    }
    return digits;
  };
  if (!skip("# R")) return "";
  const std::string major = take_digits();
  if (major.empty() || !skip(" (release), REVISION: ")) return "";
  std::string revision = take_digits();
  if (revision.empty()) return "";
  for (int part = 0; part < 3 && skip("."); ++part) {
    const std::string digits = take_digits();
    if (digits.empty()) break;
    revision += "." + digits;
  }
  return major + "." + revision;
}

std::string home() {
  if (const char* const value = std::getenv("HOME")) {
    const std::string text = value;
    const size_t end = text.find_last_not_of('/');
    return end == std::string::npos ? "/" : text.substr(0, end + 1);
  }
  passwd entry = {};
  passwd* found = nullptr;
  char buffer[4096];
  getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &found);
  return found == nullptr ? "~" : found->pw_dir;
}

// As Python's os.path.abspath.
std::string absolute(const std::string& given) {
  std::string path = given;
  if (path[0] != '/') {
    char folder[4096] = "";
    path = join_paths(getcwd(folder, sizeof folder) == nullptr ? "/" : folder, given);
  }
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.push_back(part);
    }
    begin = end + 1;
  }
  return "/" + join(parts, "/");
}

std::string cache_root() {
  const std::string given = variable(kCacheVariable);
  if (!given.empty()) return absolute(given);
  std::string base = variable("XDG_CACHE_HOME");
  if (base.empty() || base[0] != '/') base = join_paths(home(), ".cache");
  return join_paths(base, "edgecompile");
}

// JSON with sorted keys: hashes of all that a choice is made from.
std::string describe_content(const Manifest& manifest, const Variant& variant) {
  const auto sha256 = [&manifest](const std::string& path) {
    return manifest.files.at(path).sha256;
  };
  JsonWriter out;
  out.open('{').key("programs").open('[');
  for (const std::vector<std::string>& paths : list_candidates(variant)) {
    out.open('[');
    for (const std::string& path : paths) out.string(sha256(path));
    out.close(']');
  }
  out.close(']').key("runtime").string(sha256(variant.runtime));
  out.key("weights").string(sha256(manifest.weights.at(variant.gpu->precision))).close('}');
  return out.text();
}

std::string describe_device(const Device& device) {
  JsonWriter out;
  out.open('{');
  out.key("compute_capability").string(version_text(device.capability));
  out.key("driver").string(cuda_version_text(device.driver));
  out.key("integrated").raw(device.integrated ? "true" : "false");
  out.key("l4t").string(find_release());
  out.key("model").string(printable(read_system("/proc/device-tree/model")));
  out.key("name").string(printable(device.raw_name));
  out.key("sm_count").raw(cat(device.sm_count)).close('}');
  return out.text();
}

std::string make_key(const TuningRecord& record) {
  JsonWriter out;
  out.open('{').key("content").raw(record.content).key("device").raw(record.device);
  out.key("version").raw(cat(kRecordVersion)).close('}');
  Sha256 hash;
  hash.update(reinterpret_cast<const uint8_t*>(out.text().data()), out.text().size());
  return hash.finish();
}

int64_t read_rows(const Field& entry) {
  const int64_t rows = entry.integer();
  if (rows < -1 || rows > kMostRows) entry.refuse("number-range", "is outside of its range");
  return rows;
}

Tuned read_choice(const Field& document, const Variant& variant) {
  const std::vector<std::vector<std::string>> lists = list_candidates(variant);
  const size_t count = lists.size();
  Tuned tuned;
  for (const Field& item : document.at("choice").list(count, count)) {
    const int64_t number = item.integer();
    if (number < 0 || number >= static_cast<int64_t>(lists[tuned.choice.size()].size())) {
      item.refuse("number-range", "is no candidate");
    }
    tuned.choice.push_back(static_cast<size_t>(number));
  }
  const std::optional<Field> cublaslt = document.find("cublaslt");
  if (!cublaslt) return tuned;
  bool any = false;
  for (const Field& item : cublaslt->at("rows").list(count, count)) {
    tuned.rows.emplace_back();
    for (const Field& rows : item.list(0, kMaxProducts)) {
      tuned.rows.back().push_back(read_rows(rows));
      any = any || tuned.rows.back().back() >= 0;
    }
  }
  tuned.cublaslt = read_rows(cublaslt->at("version"));
  if (!any) tuned.rows.clear();
  return tuned;
}

}  // namespace

std::vector<std::vector<std::string>> list_candidates(const Variant& variant) {
  std::vector<std::vector<std::string>> lists;
  const auto add = [&lists](const std::string& program, const std::vector<std::string>& others) {
    lists.push_back({program});
    lists.back().insert(lists.back().end(), others.begin(), others.end());
  };
  for (size_t i = 0; i < variant.programs.size(); ++i) {
    add(variant.programs[i],
        variant.alternatives.empty() ? std::vector<std::string>() : variant.alternatives[i]);
  }
  return lists;
}

void write_choice(const Tuned& tuned, JsonWriter* out, const std::string& failure) {
  out->key("choice").open('[');
  for (const size_t number : tuned.choice) out->raw(cat(number));
  out->close(']').key("cublaslt");
  if (tuned.rows.empty()) {
    out->raw("null");
    return;
  }
  out->open('{').key("version").raw(cat(tuned.cublaslt)).key("rows").open('[');
  for (const std::vector<int64_t>& products : tuned.rows) {
    out->open('[');
    for (const int64_t rows : products) out->raw(cat(rows));
    out->close(']');
  }
  out->close(']').key("failure").string(failure).close('}');
}

Tuned read_choice(const std::string& text, const std::string& source, const Variant& variant) {
  const Value value = parse_json(text, source);
  return read_choice(Field(value, source), variant);
}

TuningRecord read_record(const Manifest& manifest, const Variant& variant, const Device& device) {
  TuningRecord record;
  record.content = describe_content(manifest, variant);
  record.device = describe_device(device);
  record.key = make_key(record);
  record.path = join_paths(cache_root(), "tuned/" + record.key + "/choice.json");
  const std::optional<std::string> data = read_start(record.path, kMaxRecordBytes + 1);
  if (!data) {
    const int number = errno;
    record.why = number == ENOENT ? "not tuned on this device"
                                  : cat(record.path, " can't be read: ", system_text(number));
    return record;
  }
  try {
    if (data->size() > kMaxRecordBytes) fail(ECR_BUNDLE, record.path + ": is too long");
    const Value value = parse_json(*data, record.path);
    const Field document(value, record.path);
    if (document.at("record_version").integer() != kRecordVersion ||
        document.at("key").string() != record.key) {
      fail(ECR_BUNDLE, record.path + ": belongs to something else");
    }
    record.tuned = read_choice(document, variant);
    record.tuned->path = record.path;
    record.text = *data;
  } catch (const Error& error) {  // It is no record, or was cut.
    record.why = error.what();
  }
  return record;
}

std::optional<Tuned> find_tuned(const Manifest& manifest, const Variant& variant,
                                const Device& device) {
  const std::vector<std::vector<std::string>> lists = list_candidates(variant);
  const auto chosen_from = [](const std::vector<std::string>& items) { return items.size() > 1; };
  if (!variant.gpu->cublaslt && std::none_of(lists.begin(), lists.end(), chosen_from)) {
    return std::nullopt;
  }
  return read_record(manifest, variant, device).tuned;
}

}  // namespace ecr
