// The trust folder of a device: public keys, and which of them a model needs.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trust/keys.h"

namespace ecr {

// The keys that may sign a model, how many of them have to, and the least release, 0 for any.
struct ModelRule {
  std::vector<std::string> keys;
  int64_t threshold = 0;
  int64_t floor = 0;
};

struct Policy {
  std::string path;
  std::map<std::string, PublicKey> keys;    // without the refused ones
  std::map<std::string, ModelRule> models;  // by a name, or by its beginning and an asterisk
  bool expires = false;                     // a release's expiry counts
  std::set<std::string> refused;            // names of keys, and SHA-256 of manifests
  std::map<std::string, std::string> refused_hints;  // name of each refused key, by its hint
  bool locked = false;                               // the environment can't choose another folder

  // The rule of a model, by its name, else by the longest beginning of it; null: there is none.
  const ModelRule* find_rule(const std::string& name) const;
};

// The policy of this process: EDGECOMPILE_TRUST's, or the system's where its folder exists; none:
// signatures aren't checked. Throws Error ECR_UNTRUSTED where the folder can't be trusted or read.
std::optional<Policy> find_policy();

}  // namespace ecr
