// Checks a bundle's signatures: first over the manifest's bytes, then over what the manifest lists.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "format/schema.h"
#include "trust/policy.h"

namespace ecr {

constexpr const char* kReleaseName = "release.json";

// A manifest that a trusted key signed, which nobody has parsed yet.
struct Signed {
  std::string path;  // of the bundle, for messages
  Policy policy;
  // What the signatures state, by the name of the key: of each, digest by path.
  std::map<std::string, std::vector<std::map<std::string, std::string>>> statements;
  std::vector<std::string> faults;     // why each other signature doesn't count
  std::optional<std::string> release;  // bytes of release.json
  std::string sha256;                  // of the manifest

  // Compares the parsed manifest with the statements and the policy. Throws Error ECR_UNTRUSTED,
  // ECR_REFUSED, ECR_EXPIRED, or ECR_BUNDLE where the release is malformed.
  void judge(const Manifest& manifest) const;
};

// Checks that a trusted key signed the manifest of this SHA-256, in the folder of this descriptor.
// Throws Error ECR_BUNDLE, ECR_UNSIGNED, ECR_UNTRUSTED or ECR_NO_CRYPTO.
Signed check_signatures(int folder, const std::string& path, const std::string& sha256,
                        Policy policy);

}  // namespace ecr
