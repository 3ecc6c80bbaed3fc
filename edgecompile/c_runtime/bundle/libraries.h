// Native libraries, hashed before they are loaded.
//
// The dynamic loader is given /proc/self/fd/N of the very descriptor that was hashed, so a file
// that is exchanged between the two steps isn't what gets loaded; just before it is, the file's
// times tell whether it was written to since, and then it is hashed again. The dynamic loader
// recognises a library by the name it was opened with: a descriptor number that was closed and used
// again would name the old library. Therefore descriptors stay open for the life of the process,
// one per distinct content.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bundle/files.h"

namespace ecr {

// A library whose content was checked.
struct PinnedLibrary {
  std::string path;   // what to dlopen
  std::string label;  // what to print
  FileEntry entry;
  Descriptor file;                 // none where /proc isn't mounted
  std::optional<FileState> state;  // of the file, from before it was hashed

  // To be called just before loading: the content is still what was hashed. Throws Error
  // ECR_DAMAGED: rules file-hash, file-size-differs.
  void check_again() const;
  Damage find_damage() const;
};

// Opens and hashes a library of a bundle, once per process and content. The result lives as long as
// the process. Throws Error ECR_DAMAGED.
const PinnedLibrary& pin_library(const BundleFolder& folder, const std::string& name);

// dlopens it, its symbols visible to nobody else. Throws Error ECR_NATIVE: rule native-load,
// and what check_again throws.
void* load_library(const PinnedLibrary& library);

// The library that the dynamic loader binds later ones to that need this SONAME, or null. Of
// several it is the one that was loaded first.
void* find_loaded(const std::string& soname);

// The last part of a path, which of a runtime library is its SONAME.
std::string file_name(const std::string& path);

// Functions of a loaded library by their names.
class Functions {
 public:
  explicit Functions(void* library) : library_(library) {}
  // Null, and noted, where there is none.
  template <class Function>
  void find(Function* function, const char* name) {
    void* const address = find_symbol(name);
    static_assert(sizeof *function == sizeof address);
    std::memcpy(function, &address, sizeof address);
  }
  const std::vector<std::string>& absent() const { return absent_; }
  // Throws Error ECR_NATIVE: rule native-functions; it names all that are absent.
  void check(const std::string& label) const;

 private:
  void* find_symbol(const char* name);
  void* library_;
  std::vector<std::string> absent_;
};

// Throws Error ECR_NATIVE: rule native-abi.
void check_abi(const std::string& label, int32_t version, int32_t known);

// A runtime library of the class `Library`, made of its handle, its label and the arguments: loads
// it, or finds the one of its SONAME that is loaded already, by whomever: programs are bound to
// that one. Throws what load_library and the constructor do.
template <class Library, class... Arguments>
const Library* load_runtime(const PinnedLibrary& pinned, const std::string& soname,
                            const Arguments&... arguments) {
  static std::mutex& mutex = *new std::mutex;
  static auto& loaded = *new std::map<void*, std::unique_ptr<const Library>>;
  const std::lock_guard<std::mutex> lock(mutex);
  void* handle = find_loaded(soname);
  if (handle == nullptr) handle = load_library(pinned);
  std::unique_ptr<const Library>& found = loaded[handle];
  if (found == nullptr) found = std::make_unique<const Library>(handle, pinned.label, arguments...);
  return found.get();
}

}  // namespace ecr
