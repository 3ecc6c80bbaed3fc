// This machine, and which variant of a bundle fits it best.
#include "bundle/host.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <sstream>

#include "base/text.h"
#include "bundle/libraries.h"

namespace ecr {
namespace {

constexpr int32_t kProbeBytes = 8192;

// What this library was built for: that is what it can load.
std::string architecture(const char* machine) {
#if defined(__x86_64__) && defined(__LP64__)
  (void)machine;
  return "x86-64";
#elif defined(__aarch64__) && defined(__LP64__)
  (void)machine;
  return "aarch64";
#else
  return machine;
#endif
}

std::optional<Version> glibc_version() {
#ifdef _CS_GNU_LIBC_VERSION
  char text[64] = "";
  confstr(_CS_GNU_LIBC_VERSION, text, sizeof text);
  long long major = 0, minor = 0;
  if (std::sscanf(text, "glibc %lld.%lld", &major, &minor) == 2) return Version(major, minor);
#endif
  return std::nullopt;
}

std::set<std::string> probe_features(const BundleFolder& folder, const std::string& name) {
  const PinnedLibrary& pinned = pin_library(folder, name);
  Functions functions(load_library(pinned));
  int32_t (*probe)(char*, int32_t) = nullptr;
  functions.find(&probe, "ec_probe");
  functions.check(pinned.label);
  std::string text(kProbeBytes, '\0');
  if (probe(text.data(), kProbeBytes) < 0) {
    fail(ECR_NATIVE, cat(pinned.label, ": the probe needs more than ", kProbeBytes, " bytes"));
  }
  std::istringstream words(text.c_str());
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int32_t count_cpus() {
  // Machines may have more CPUs than cpu_set_t has bits.
  for (int most = 1024; most <= 1 << 20; most *= 4) {
    cpu_set_t* const set = CPU_ALLOC(most);
    if (set == nullptr) break;
    const size_t size = CPU_ALLOC_SIZE(most);
    const int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return 1;
}

Host describe_host(const BundleFolder& folder) {
  utsname names = {};
  uname(&names);
  Host host;
  host.system = names.sysname;
  host.arch = architecture(names.machine);
  host.glibc = glibc_version();
  host.cpus = count_cpus();
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  if (pages > 0) host.memory = pages * sysconf(_SC_PAGESIZE);
  const auto probe = folder.manifest().probes.find(host.arch);
  // No 32-bit process can load the probe, and no variant is for one anyway.
  if (probe != folder.manifest().probes.end() && sizeof(void*) == 8) {
    host.features = probe_features(folder, probe->second);
  }
  return host;
}

// Why only Python, with torch, runs a variant.
constexpr const char* kNeedsTorch = "needs the backend torch, which this library doesn't have";
constexpr const char* kTorchHint =
    "run python -m edgecompile.torch_runtime with torch, or build without --backend torch";

std::vector<std::string> find_lacks(const Variant& variant, const Host& host) {
  std::vector<std::string> reasons;
  if (host.system != "Linux") {
    reasons.push_back("needs Linux, this is " + (host.system.empty() ? "unknown" : host.system));
  }
  if (sizeof(void*) != 8 || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__) {
    reasons.push_back("needs a 64-bit little-endian process");
  }
  if (variant.arch != host.arch) {
    reasons.push_back(cat("is for ", variant.arch, ", this is ", host.arch));
    return reasons;
  }
  std::vector<std::string> absent;
  for (const std::string& feature : variant.requires_) {
    if (host.features.count(feature) == 0) absent.push_back(feature);
  }
  if (!absent.empty()) reasons.push_back("the CPU or the system lacks " + join(absent));
  if (variant.glibc) {
    const std::string needed = "needs glibc " + version_text(*variant.glibc);
    if (!host.glibc) {
      reasons.push_back(needed + ", this C library isn't glibc");
    } else if (*host.glibc < *variant.glibc) {
      reasons.push_back(cat(needed, ", this is ", version_text(*host.glibc)));
    }
  }
  // Last, and alone: what fits the machine otherwise is a matter of the loader.
  if (reasons.empty() && variant.backend == kTorchBackend) {
    reasons.push_back(kNeedsTorch);
  } else if (reasons.empty() && variant.backend == kTensorRtBackend) {
    reasons.push_back("needs the backend tensorrt of a GPU, which Python's runtime alone has");
  } else if (reasons.empty() && variant.backend != kBackend && variant.backend != kTritonBackend) {
    reasons.push_back(cat("needs the backend ", variant.backend, ", unknown here"));
  }
  return reasons;
}

size_t choose_variant(const Manifest& manifest, const Host& host,
                      const std::optional<std::string>& wanted, const Strings& without,
                      std::vector<Refusal>* refused) {
  const std::vector<Variant>& variants = manifest.variants;
  std::optional<size_t> best;
  std::optional<size_t> named;
  for (size_t i = 0; i < variants.size(); ++i) {
    std::vector<std::string> reasons = find_lacks(variants[i], host);
    for (const std::string& key : {variants[i].backend, variants[i].name}) {
      const auto reason = without.find(key);
      if (reason != without.end() && reasons.empty()) reasons.push_back(reason->second);
    }
    if (!reasons.empty()) {
      refused->push_back({variants[i].name, std::move(reasons)});
      continue;
    }
    if (variants[i].name == wanted) named = i;
    if (!best || variants[i].rank > variants[*best].rank) best = i;
  }
  if (const std::optional<size_t> chosen = wanted ? named : best) return *chosen;
  std::string text = wanted ? cat("the variant ", *wanted, " can't run here")
                            : "no variant of this bundle can run here";
  bool is_known = !wanted, lacks_torch = false;
  for (const Refusal& item : *refused) {
    if (wanted && item.name != *wanted) continue;
    is_known = true;
    const std::string reasons = join(item.reasons, "; ");
    // A variant that lacks nothing but torch.
    lacks_torch = lacks_torch || reasons == kNeedsTorch;
    text += wanted ? cat(": ", reasons) : cat("\n  ", item.name, ": ", reasons);
  }
  if (!is_known) {
    const auto name = [](const Variant& item) { return item.name; };
    fail(ECR_HOST, cat("there is no variant ", quoted(*wanted)),
         "the bundle has: " + join(variants, name));
  }
  if (lacks_torch) fail(ECR_LOADER, text, kTorchHint);
  fail(ECR_HOST, text,
       wanted ? "leave the choice to the library, or build for this machine"
              : "build the bundle for a target that includes this machine");
}

}  // namespace ecr
