// Reads a trust folder; whatever is wrong with it, nothing is opened.
#include "trust/policy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "base/status.h"
#include "base/text.h"
#include "bundle/files.h"
#include "bundle/host.h"
#include "json/field.h"
#include "trust/statement.h"

namespace ecr {
namespace {

constexpr const char* kSystemFolder = "/etc/edgecompile/trust";
constexpr const char* kVariable = "EDGECOMPILE_TRUST";
constexpr const char* kPolicyName = "policy.json";
constexpr size_t kMaxPolicyBytes = 1 << 20, kMaxKeyBytes = 4096;
constexpr int64_t kMaxKeys = 64, kMaxNumber = int64_t{1} << 53;
constexpr char kNameLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
constexpr char kPatternLetters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:+-";

[[noreturn]] void refuse(const char* rule, const std::string& place, const std::string& text) {
  fail(ECR_UNTRUSTED, cat(place, ": ", text, " [", rule, "]"));
}

void check_owner(int fd, const std::string& path, struct stat* info) {
  struct statvfs mount = {};
  // The mode says nothing on a read-only mount: the folder of a Kubernetes secret has 1777.
  if (fstat(fd, info) != 0 || (info->st_uid != 0 && info->st_uid != geteuid()) ||
      ((info->st_mode & 022) != 0 &&
       (fstatvfs(fd, &mount) != 0 || (mount.f_flag & ST_RDONLY) == 0))) {
    fail(ECR_UNTRUSTED, path + ": others may change it [trust-folder]",
         "only root, or this user, may be able to write it: chmod go-w, and chown");
  }
}

std::string read_file(int folder, const std::string& path, const std::string& name, size_t limit,
                      const char* rule) {
  const std::string place = join_paths(path, name);
  // Links are followed: such a folder may be a mounted secret.
  const Descriptor file(openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) refuse(rule, place, "can't be opened: " + system_text(errno));
  struct stat info = {};
  check_owner(file.get(), place, &info);
  if (!S_ISREG(info.st_mode)) refuse(rule, place, "isn't a regular file");
  std::string data(limit + 1, '\0');
  data.resize(read_at(file, data.data(), data.size(), 0, place));
  if (data.size() > limit) refuse(rule, place, cat("has more than ", limit, " bytes"));
  return data;
}

// A policy of a later version mustn't be followed in part.
void refuse_others(const Field& field, const std::set<std::string>& known) {
  for (const Member& member : field.object()) {
    if (known.count(member.key) == 0) {
      field.child(member).refuse("trust-policy", "isn't a key of a policy");
    }
  }
}

bool is_key_name(const std::string& name) {
  return !name.empty() && name.size() <= 100 && name[0] != '.' && name[0] != '-' &&
         name.find_first_not_of(kNameLetters) == std::string::npos;
}

bool is_pattern(const std::string& text) {
  const std::string letters =
      !text.empty() && text.back() == '*' ? text.substr(0, text.size() - 1) : text;
  return !text.empty() && letters.size() <= 200 &&
         letters.find_first_not_of(kPatternLetters) == std::string::npos;
}

int64_t read_number(const Field& field, int64_t least, int64_t most) {
  const int64_t value = field.integer();
  if (value < least || value > most) {
    field.refuse("trust-policy", cat(value, " isn't within ", least, "..", most));
  }
  return value;
}

ModelRule read_rule(const Field& entry) {
  refuse_others(entry, {"keys", "threshold", "floor"});
  ModelRule rule;
  for (const Field& key : entry.at("keys").list(1, kMaxKeys)) {
    if (!is_key_name(key.string())) entry.refuse("trust-policy", "names what can't be a key");
    rule.keys.push_back(key.string());
  }
  rule.threshold = read_number(entry.at("threshold"), 1, kMaxKeys);
  if (const auto floor = entry.find("floor")) rule.floor = read_number(*floor, 0, kMaxNumber);
  return rule;
}

bool names_key(const Policy& policy, const std::string& name) {
  for (const auto& item : policy.models) {
    const std::vector<std::string>& keys = item.second.keys;
    if (std::find(keys.begin(), keys.end(), name) != keys.end()) return true;
  }
  return false;
}

void read_document(const Field& top, Policy* policy) {
  refuse_others(top, {"policy_version", "models", "expiry", "refused", "locked"});
  if (top.at("policy_version").integer() != 1) {
    top.at("policy_version").refuse("trust-policy", "isn't 1");
  }
  const Field models = top.at("models");
  for (const Member& member : models.object(1, 256)) {
    const Field entry = models.child(member);
    if (!is_pattern(member.key)) entry.refuse("trust-policy", "isn't a model's name or beginning");
    policy->models[member.key] = read_rule(entry);
  }
  if (const auto expiry = top.find("expiry")) {
    policy->expires = expiry->string() == "enforce";
    if (!policy->expires && expiry->string() != "ignore") {
      expiry->refuse("trust-policy", "isn't enforce or ignore");
    }
  }
  if (const auto refused = top.find("refused")) {
    for (const Field& item : refused->list(0, 4096)) {
      const std::string& name = item.string();
      if (!is_sha256(name) && !names_key(*policy, name)) {
        item.refuse("trust-policy",
                    quoted(name) + " is neither a key of a model nor 64 lower-case hex digits");
      }
      policy->refused.insert(name);
    }
  }
  if (const auto locked = top.find("locked")) policy->locked = locked->boolean();
}

Policy read_policy(const std::string& path) {
  const Descriptor folder(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  if (!folder.valid()) refuse("trust-folder", path, "can't be opened: " + system_text(errno));
  struct stat info = {};
  check_owner(folder.get(), path, &info);
  const std::string source = join_paths(path, kPolicyName);
  const std::string data =
      read_file(folder.get(), path, kPolicyName, kMaxPolicyBytes, "trust-policy");
  Policy policy;
  policy.path = path;
  try {
    const Value document = parse_json(data, source);
    read_document(Field(document, source), &policy);
  } catch (const Error& error) {
    const std::string text = error.what();  // its hint is about bundles
    fail(ECR_UNTRUSTED, text.substr(0, text.find("\nhint: ")));
  }
  for (const auto& [pattern, rule] : policy.models) {
    std::set<std::string> distinct;
    for (const std::string& name : rule.keys) {
      const std::string file = name + ".pem";
      const auto key =
          parse_public_key(read_file(folder.get(), path, file, kMaxKeyBytes, "trust-key"));
      if (!key) {
        refuse("trust-key", join_paths(path, file),
               "isn't a public key of P-256, P-384 or P-521 in PEM");
      }
      distinct.insert(key->der);
      policy.keys[name] = *key;
      if (policy.refused.count(name) != 0) policy.refused_hints[key->hint] = name;
    }
    if (rule.threshold > static_cast<int64_t>(distinct.size())) {
      refuse("trust-policy", source,
             cat("models.", shorten(pattern), ": ", distinct.size(), " distinct keys, of which ",
                 rule.threshold, " have to sign"));
    }
  }
  // A key may have several names: it is refused under each.
  for (auto item = policy.keys.begin(); item != policy.keys.end();) {
    const bool refused = policy.refused_hints.count(item->second.hint) != 0;
    item = refused ? policy.keys.erase(item) : std::next(item);
  }
  return policy;
}

}  // namespace

const ModelRule* Policy::find_rule(const std::string& name) const {
  const auto exact = models.find(name);
  if (exact != models.end()) return &exact->second;
  const ModelRule* best = nullptr;
  size_t longest = 0;
  for (const auto& [pattern, rule] : models) {
    const size_t size = pattern.size() - 1;
    if (pattern.back() == '*' && name.compare(0, size, pattern, 0, size) == 0 &&
        (best == nullptr || size > longest)) {
      best = &rule;
      longest = size;
    }
  }
  return best;
}

std::optional<Policy> find_policy() {
  struct stat info = {};
  std::optional<Policy> system;
  const bool missing = lstat(kSystemFolder, &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
  if (!missing) system = read_policy(kSystemFolder);
  const std::string named = variable(kVariable);
  if (named.empty() || (system && system->locked)) return system;
  if (named == "off") return std::nullopt;
  return read_policy(named);
}

}  // namespace ecr
