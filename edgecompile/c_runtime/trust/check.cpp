// Which signatures of a bundle count, and which release it is.
#include "trust/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <set>

#include "base/status.h"
#include "base/text.h"
#include "bundle/files.h"
#include "bundle/limits.h"
#include "bundle/sha256.h"
#include "json/field.h"
#include "trust/statement.h"

namespace ecr {
namespace {

using Digests = std::map<std::string, std::string>;

constexpr size_t kMaxReleaseBytes = 64 << 10;
constexpr int64_t kMaxNumber = int64_t{1} << 53;
// O_NONBLOCK: opening a FIFO that lies where a file should be must not hang.
constexpr int kFileFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
constexpr int kFolderFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_DIRECTORY;

struct CloseFolder {
  void operator()(DIR* list) const { closedir(list); }
};

// The bytes of a file; none where there is none.
std::optional<std::string> read_file(int folder, const std::string& place, const std::string& name,
                                     size_t limit, const char* rule) {
  const Descriptor file(openat(folder, name.c_str(), kFileFlags));
  if (!file.valid() && errno == ENOENT) return std::nullopt;
  if (!file.valid()) {
    const int number = errno;
    fail_if_limit(number, place);
    fail(ECR_BUNDLE,
         cat(place, ": is a link, or can't be opened: ", system_text(number), " [", rule, "]"));
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    fail(ECR_BUNDLE, cat(place, ": isn't a regular file [", rule, "]"));
  }
  if (info.st_size > static_cast<off_t>(limit)) {
    fail(ECR_BUNDLE, cat(place, ": ", info.st_size, " bytes, at most ", limit, " [", rule, "]"));
  }
  std::string data(static_cast<size_t>(info.st_size) + 1, '\0');
  data.resize(read_at(file, data.data(), data.size(), 0, place));
  return data;
}

Digests read_signatures(int folder, const std::string& path) {
  const std::string place = join_paths(path, kSignaturesName);
  Descriptor opened(openat(folder, kSignaturesName, kFolderFlags));
  if (!opened.valid() && errno == ENOENT) return {};
  if (!opened.valid()) {
    const int number = errno;
    fail_if_limit(number, place);
    fail(ECR_BUNDLE, cat(place, ": isn't a folder, or can't be opened: ", system_text(number),
                         " [signature-folder]"));
  }
  const std::unique_ptr<DIR, CloseFolder> list(fdopendir(opened.get()));
  if (list == nullptr) fail(ECR_BUNDLE, place + ": can't be listed [signature-folder]");
  opened.release();
  std::set<std::string> names;
  size_t count = 0;
  while (const dirent* const entry = readdir(list.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (++count > kMaxSignatures) {
      fail(ECR_BUNDLE,
           cat(place, ": holds more than ", kMaxSignatures, " files [signature-count]"));
    }
    if (is_signature_name(name)) names.insert(name);
  }
  Digests found;
  size_t rest = kMaxSignatureBytes;  // all of it is parsed before any key is asked
  for (const std::string& name : names) {
    const std::string file = join_paths(place, name);
    const auto data = read_file(dirfd(list.get()), file, name, rest, "signature-file");
    if (!data) fail(ECR_BUNDLE, file + ": is missing [signature-file]");
    found[name] = *data;
    rest -= std::min(rest, data->size());
  }
  return found;
}

[[noreturn]] void fail_untrusted(const std::string& path, size_t count, int64_t wanted,
                                 const std::vector<std::string>& faults) {
  std::string text =
      cat(path, ": ", count, " of its signatures count, ", wanted, " must [signature-trusted]");
  for (const std::string& fault : faults) text += "\n  " + fault;
  fail(ECR_UNTRUSTED, text);
}

// The first file that is stated otherwise than it is.
std::string difference(const Digests& stated, const Digests& wanted) {
  for (const auto& [name, digest] : wanted) {
    const auto found = stated.find(name);
    if (found == stated.end()) return "signed nothing of " + shorten(name, 200);
    if (found->second != digest) return "signed another content of " + shorten(name, 200);
  }
  for (const auto& item : stated) {
    if (wanted.count(item.first) == 0) return "signed besides " + shorten(item.first, 200);
  }
  return "";
}

// The time that the device knows of, as releases have it; texts of this form are in order.
std::string now() {
  const std::time_t seconds = std::time(nullptr);
  struct tm parts = {};
  char text[32] = "";
  if (gmtime_r(&seconds, &parts) != nullptr) {
    std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  }
  return text;
}

std::string read_time(const Field& field) {
  static const char kForm[] = "dddd-1d-3dT2d:5d:5dZ";  // a digit stands for those up to it
  const std::string& text = field.string();
  bool fits = text.size() == sizeof kForm - 1;
  for (size_t i = 0; fits && i < text.size(); ++i) {
    const char most = kForm[i] == 'd' ? '9' : kForm[i];
    const bool is_digit = kForm[i] == 'd' || ('0' <= kForm[i] && kForm[i] <= '9');
    fits = is_digit ? '0' <= text[i] && text[i] <= most : text[i] == kForm[i];
  }
  if (!fits) field.refuse("release-time", quoted(text) + " isn't a time");
  return text;
}

struct Release {
  std::string name, created, expires;  // the last is empty where it never does
  int64_t number = 0;
};

int64_t read_number(const Field& field, int64_t most) {
  const int64_t value = field.integer();
  if (value < 0 || value > most) {
    field.refuse("release-number", cat(value, " isn't within 0..", most));
  }
  return value;
}

Release parse_release(const std::string& data, const std::string& source) {
  const Value document = parse_json(data, source);
  const Field top(document, source);
  if (top.at("release_version").integer() != 1) {
    top.at("release_version").refuse("release-version", "this runtime knows version 1");
  }
  Release release;
  release.name = top.at("name").name();
  release.number = read_number(top.at("number"), kMaxNumber);
  read_number(top.at("floor"), release.number);
  release.created = read_time(top.at("created"));
  if (const auto expires = top.find("expires")) release.expires = read_time(*expires);
  if (const auto note = top.find("note")) note->string();
  return release;
}

}  // namespace

Signed check_signatures(int folder, const std::string& path, const std::string& sha256,
                        Policy policy) {
  const Digests files = read_signatures(folder, path);
  if (files.empty()) {
    fail(ECR_UNSIGNED,
         cat(path, ": isn't signed, and ", policy.path, " wants signatures [signature-missing]"),
         "sign it where it is built (edgecompile sign)");
  }
  need_libcrypto();
  std::map<std::string, PublicKey> by_hint;
  for (const auto& item : policy.keys) by_hint.emplace(item.second.hint, item.second);
  Signed result;
  std::map<std::string, Digests> parsed;  // each signer states the same, as a rule
  for (const auto& [name, data] : files) {
    try {
      const Envelope envelope = parse_envelope(data);
      const auto key = by_hint.find(envelope.hint);
      if (key == by_hint.end()) {
        const auto refused = policy.refused_hints.find(envelope.hint);
        if (refused != policy.refused_hints.end()) {
          throw Fault{cat("is by the key ", refused->second, ", which ", policy.path,
                          " refuses [signature-key]")};
        }
        throw Fault{cat("is by a key that ", policy.path, " doesn't hold [signature-key]")};
      }
      if (!is_signature(key->second, encode_payload(envelope.payload), envelope.signature)) {
        throw Fault{"isn't what its key signed [signature-value]"};
      }
      auto known = parsed.find(envelope.payload);
      if (known == parsed.end()) {
        known = parsed.emplace(envelope.payload, parse_statement(envelope.payload)).first;
      }
      const auto manifest = known->second.find("manifest.json");
      if (manifest == known->second.end() || manifest->second != sha256) {
        throw Fault{"states another manifest.json [statement-files]"};
      }
      for (const auto& other : policy.keys) {  // the model's rule may know it by another name
        if (other.second.der == key->second.der) {
          result.statements[other.first].push_back(known->second);
        }
      }
    } catch (const Fault& fault) {
      result.faults.push_back(cat(kSignaturesName, "/", name, ": ", fault.text));
    }
  }
  if (result.statements.empty()) fail_untrusted(path, 0, 1, result.faults);
  result.release = read_file(folder, join_paths(path, kReleaseName), kReleaseName, kMaxReleaseBytes,
                             "release-file");
  result.path = path;
  result.policy = std::move(policy);
  result.sha256 = sha256;
  return result;
}

void Signed::judge(const Manifest& manifest) const {
  const ModelRule* const rule = policy.find_rule(manifest.name);
  if (rule == nullptr) {
    fail(ECR_UNTRUSTED, cat(path, ": ", policy.path, " has no rule for the model ", manifest.name,
                            " [signature-trusted]"));
  }
  Digests wanted;
  for (const auto& [name, entry] : manifest.files) wanted[name] = entry.sha256;
  wanted["manifest.json"] = sha256;
  if (release) wanted[kReleaseName] = hash_text(*release);
  std::vector<std::string> problems = faults;
  std::set<std::string> signers;  // a key of two names counts once
  for (const auto& [name, stated] : statements) {
    if (std::find(rule->keys.begin(), rule->keys.end(), name) == rule->keys.end()) {
      problems.push_back(name + ": isn't a key of this model");
    } else if (std::find(stated.begin(), stated.end(), wanted) != stated.end()) {
      signers.insert(policy.keys.at(name).der);
    } else {
      for (const Digests& one : stated) {
        problems.push_back(cat(name, ": ", difference(one, wanted), " [statement-files]"));
      }
    }
  }
  if (static_cast<int64_t>(signers.size()) < rule->threshold) {
    fail_untrusted(path, signers.size(), rule->threshold, problems);
  }
  if (policy.refused.count(sha256) != 0) {
    fail(ECR_REFUSED, cat(path, ": ", policy.path, " refuses this bundle [bundle-refused]"));
  }
  Release known;
  if (release) {
    known = parse_release(*release, join_paths(path, kReleaseName));
    if (known.name != manifest.name) {
      fail(ECR_BUNDLE, cat(path, ": ", kReleaseName, " is of the model ", known.name,
                           ", the manifest of ", manifest.name, " [release-name]"));
    }
  }
  if (rule->floor > 0 && (!release || known.number < rule->floor)) {
    const std::string which = release ? cat("release ", known.number) : "no release";
    fail(ECR_REFUSED,
         cat(path, ": is ", which, ", must be ", rule->floor, " or later [release-floor]"));
  }
  if (policy.expires && !known.expires.empty()) {
    // A device without a clock is in 1970: the release wasn't made before it was.
    const std::string time = std::max(now(), known.created);
    if (time >= known.expires) {
      fail(ECR_EXPIRED, cat(path, ": release ", known.number, " expired at ", known.expires,
                            ", it is ", time, " [release-expired]"));
    }
  }
}

}  // namespace ecr
