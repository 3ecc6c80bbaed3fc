// This machine, and which variant of a bundle fits it best.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bundle/files.h"

namespace ecr {

struct Host {
  std::string system;  // "Linux"
  std::string arch;
  std::set<std::string> features;  // of the CPU and the system: what the bundle's probe says
  std::optional<Version> glibc;    // none where the C library is another one
  int32_t cpus = 1;                // that this process may use
  int64_t memory = 0;              // bytes; 0 if unknown
};

// A variable of the environment; "" where it isn't set.
std::string variable(const char* name);

// How many CPUs the calling thread may use.
int32_t count_cpus();

// A variant that can't run here, and why.
struct Refusal {
  std::string name;
  std::vector<std::string> reasons;
};

// Describes this machine with the bundle's probe for it. Throws Error ECR_DAMAGED or ECR_NATIVE.
Host describe_host(const BundleFolder& folder);

// Why `host` can't run `variant`; empty if it can.
std::vector<std::string> find_lacks(const Variant& variant, const Host& host);

// The variant of the highest rank that the host can run, the first of equals, or the one named
// `wanted` where a name is given; its position. `without` has the backends and the variants that
// can't be used, each with the reason. What can't run goes to `refused`. Throws Error ECR_HOST
// where there is none.
size_t choose_variant(const Manifest& manifest, const Host& host,
                      const std::optional<std::string>& wanted, const Strings& without,
                      std::vector<Refusal>* refused);

}  // namespace ecr
