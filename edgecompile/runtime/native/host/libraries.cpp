#include "libraries.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>

#include "text.h"

namespace ecr {
namespace {

std::string absolute(const std::string& path) {
  char* const found = realpath(path.c_str(), nullptr);
  if (found == nullptr) return path;
  const std::string result = found;
  free(found);
  return result;
}

}  // namespace

const PinnedLibrary& pin_library(const BundleFolder& folder, const std::string& name) {
  // Never destroyed: other threads may still run when a process ends.
  static std::mutex& mutex = *new std::mutex;
  static auto& pinned = *new std::map<std::string, std::unique_ptr<const PinnedLibrary>>;

  const std::string& sha256 = folder.manifest().files.at(name).sha256;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = pinned.find(sha256);
  if (found != pinned.end()) return *found->second;

  Descriptor file = folder.open(name);
  folder.check_hash(name, file);
  auto library = std::make_unique<PinnedLibrary>();
  library->sha256 = sha256;
  library->label = folder.label(name);
  library->path = cat("/proc/self/fd/", file.get());
  // Without /proc the library is loaded by its name, and the folder has to be trusted not to change
  // in between.
  const bool has_proc = access(library->path.c_str(), F_OK) == 0;
  if (!has_proc) library->path = absolute(library->label);
  const PinnedLibrary& result = *pinned.emplace(sha256, std::move(library)).first->second;
  if (has_proc) file.release();
  return result;
}

void* load_library(const PinnedLibrary& library) {
  void* const handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    fail(ECR_NATIVE,
         cat(library.label, ": can't be loaded: ", reason == nullptr ? "no reason given" : reason,
             " [native-load]"),
         "the library was built for another system");
  }
  return handle;
}

}  // namespace ecr
