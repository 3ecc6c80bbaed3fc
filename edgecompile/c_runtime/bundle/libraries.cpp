// Shared libraries of a bundle, loaded from the very bytes that were hashed.
#include "bundle/libraries.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/text.h"
#include "bundle/limits.h"

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

Damage PinnedLibrary::find_damage() const {
  const std::optional<FileState> now = state_of_path(path);
  if (!now) return {"file-hash", "can't be read"};
  if (now == state) return {};
  if (!file.valid()) return {"file-hash", "isn't the file that was hashed"};
  // A new name or mode changes the state too. A descriptor that somebody else closed and that names
  // another file now has another content.
  return find_hash_damage(file, entry, label);
}

void PinnedLibrary::check_again() const {
  const Damage damage = find_damage();
  if (damage.rule == nullptr) return;
  fail(ECR_DAMAGED,
       cat(label, ": ", damage.text, " [", damage.rule, "]; it changed since it was checked"),
       "replace a bundle's files by renaming, don't write into them");
}

const PinnedLibrary& pin_library(const BundleFolder& folder, const std::string& name) {
  // Never destroyed: other threads may still run when a process ends, and a library that was
  // replaced may still be in use.
  static std::mutex& mutex = *new std::mutex;
  static auto& pinned = *new std::map<std::string, const PinnedLibrary*>;
  static auto& kept = *new std::vector<std::unique_ptr<const PinnedLibrary>>;

  const FileEntry& entry = folder.manifest().files.at(name);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = pinned.find(entry.sha256);
  // Of one hash and two sizes, one is wrong: folder.open says so.
  if (found != pinned.end() && found->second->entry.size == entry.size &&
      found->second->find_damage().rule == nullptr) {
    return *found->second;
  }

  auto library = std::make_unique<PinnedLibrary>();
  library->file = folder.open(name);
  library->state = state_of_file(library->file);
  folder.check_hash(name, library->file);
  library->entry = entry;
  library->label = folder.label(name);
  library->path = cat("/proc/self/fd/", library->file.get());
  // Without /proc the library is loaded by its name, and the folder has to be trusted not to change
  // in between. By its name it may be another file the next time.
  const bool has_proc = access(library->path.c_str(), F_OK) == 0;
  if (!has_proc) {
    library->path = absolute(library->label);
    library->file = Descriptor();
  }
  kept.push_back(std::move(library));
  if (has_proc) pinned[entry.sha256] = kept.back().get();
  return *kept.back();
}

void* load_library(const PinnedLibrary& library) {
  library.check_again();
  void* const handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const told = dlerror();
    const std::string reason = told == nullptr ? "no reason given" : told;
    fail_if_loading_limit(reason, library.label, library.path);
    fail(ECR_NATIVE, cat(library.label, ": can't be loaded: ", reason, " [native-load]"),
         "the library was built for another system");
  }
  return handle;
}

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void* Functions::find_symbol(const char* name) {
  void* const address = dlsym(library_, name);
  if (address == nullptr) absent_.push_back(name);
  return address;
}

void Functions::check(const std::string& label) const {
  if (absent_.empty()) return;
  fail(ECR_NATIVE, cat(label, ": has no ", join(absent_), " [native-functions]"),
       "a bundle built before edgecompile 0.2.0 runs with the Python runtime inside it, `python3 "
       "BUNDLE COMMAND`; or build it again");
}

void check_abi(const std::string& label, int32_t version, int32_t known) {
  if (version == known) return;
  fail(ECR_NATIVE,
       cat(label, ": has ABI version ", version, ", this library knows version ", known,
           " [native-abi]"),
       "use the library of the edgecompile that built the bundle");
}

void* find_loaded(const std::string& soname) {
  void* const handle = dlopen(soname.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle == nullptr) dlerror();  // of no interest to whoever asks next
  return handle;
}

}  // namespace ecr
