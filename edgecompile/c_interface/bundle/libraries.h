// Native libraries, hashed before they are loaded.
//
// The dynamic loader is given /proc/self/fd/N of the very descriptor that was hashed, so a file
// that is exchanged between the two steps isn't what gets loaded; just before it is, the file's
// times tell whether it was written to since, and then it is hashed again. The dynamic loader
// recognises a library by the name it was opened with: a descriptor number that was closed and used
// again would name the old library. Therefore descriptors stay open for the life of the process,
// one per distinct content.
#pragma once

#include <optional>
#include <string>

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

}  // namespace ecr
