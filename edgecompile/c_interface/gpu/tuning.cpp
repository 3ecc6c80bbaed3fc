// Python's runtime/triton/tuning.py and what it needs of gpu/cache.py and gpu/device.py: the key
// has to be the same to the byte.
#include "gpu/tuning.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/text.h"
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
  std::ifstream stream(path, std::ios::binary);
  std::string data(most, '\0');
  if (!stream.read(data.data(), static_cast<std::streamsize>(most)) && !stream.eof()) {
    return std::nullopt;
  }
  data.resize(static_cast<size_t>(stream.gcount()));
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

std::string cache_root() {
  const std::string given = variable(kCacheVariable);
  if (!given.empty()) {
    std::error_code unused;
    const std::string path = std::filesystem::absolute(given, unused).lexically_normal().string();
    const size_t end = path.find_last_not_of('/');
    return path.substr(0, end == std::string::npos ? 1 : end + 1);
  }
  std::string base = variable("XDG_CACHE_HOME");
  if (base.empty() || base[0] != '/') base = join_paths(home(), ".cache");
  return join_paths(base, "edgecompile");
}

// The SHA-256 of everything that a choice depends on, as JSON with sorted keys.
std::string make_key(const Manifest& manifest, const Variant& variant, const Device& device) {
  const auto sha256 = [&manifest](const std::string& path) {
    return manifest.files.at(path).sha256;
  };
  JsonWriter out;
  out.open('{').key("content").open('{').key("programs").open('[');
  for (const std::vector<std::string>& paths : list_candidates(variant)) {
    out.open('[');
    for (const std::string& path : paths) out.string(sha256(path));
    out.close(']');
  }
  out.close(']').key("runtime").string(sha256(variant.runtime));
  out.key("weights").string(sha256(manifest.weights.at(variant.gpu->precision))).close('}');
  out.key("device").open('{');
  out.key("compute_capability").string(version_text(device.capability));
  out.key("driver").string(cuda_version_text(device.driver));
  out.key("integrated").raw(device.integrated ? "true" : "false");
  out.key("l4t").string(find_release());
  out.key("model").string(printable(read_system("/proc/device-tree/model")));
  out.key("name").string(printable(device.raw_name));
  out.key("sm_count").raw(cat(device.sm_count)).close('}');
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

void read_cublaslt(const Field& entry, Tuned* tuned) {
  const size_t count = tuned->choice.size();
  bool any = false;
  for (const Field& item : entry.at("rows").list(count, count)) {
    tuned->rows.emplace_back();
    for (const Field& rows : item.list(0, kMaxProducts)) {
      tuned->rows.back().push_back(read_rows(rows));
      any = any || tuned->rows.back().back() >= 0;
    }
  }
  tuned->cublaslt = read_rows(entry.at("version"));
  if (!any) tuned->rows.clear();
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

std::optional<Tuned> find_tuned(const Manifest& manifest, const Variant& variant,
                                const Device& device) {
  const std::vector<std::vector<std::string>> lists = list_candidates(variant);
  const auto chosen_from = [](const std::vector<std::string>& items) { return items.size() > 1; };
  if (!variant.gpu->cublaslt && std::none_of(lists.begin(), lists.end(), chosen_from)) {
    return std::nullopt;
  }
  const std::string key = make_key(manifest, variant, device);
  Tuned tuned;
  tuned.path = join_paths(cache_root(), "tuned/" + key + "/choice.json");
  const std::optional<std::string> data = read_start(tuned.path, kMaxRecordBytes + 1);
  if (!data || data->size() > kMaxRecordBytes) return std::nullopt;
  try {
    const Value value = parse_json(*data, tuned.path);
    const Field document(value, tuned.path);
    if (document.at("record_version").integer() != kRecordVersion ||
        document.at("key").string() != key) {
      return std::nullopt;
    }
    const size_t count = lists.size();
    for (const Field& item : document.at("choice").list(count, count)) {
      const int64_t number = item.integer();
      const auto most = static_cast<int64_t>(lists[tuned.choice.size()].size());
      if (number < 0 || number >= most) return std::nullopt;
      tuned.choice.push_back(static_cast<size_t>(number));
    }
    if (document.has("cublaslt") && !document.at("cublaslt").is_null()) {
      read_cublaslt(document.at("cublaslt"), &tuned);
    }
  } catch (const Error&) {  // It is no record, or was cut.
    return std::nullopt;
  }
  return tuned;
}

}  // namespace ecr
