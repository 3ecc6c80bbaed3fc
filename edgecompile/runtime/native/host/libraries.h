// Native libraries, hashed before they are loaded.
//
// The dynamic loader is given /proc/self/fd/N of the very descriptor that was hashed, so a file
// that is exchanged between the two steps isn't what gets loaded. It recognises a library by the
// name it was opened with: a descriptor number that was closed and used again would name the old
// library. Therefore descriptors stay open for the life of the process, one per distinct content.
#pragma once

#include <string>

#include "files.h"

namespace ecr {

// A library whose content was checked.
struct PinnedLibrary {
  std::string sha256;
  std::string path;   // what to dlopen
  std::string label;  // what to print
};

// Opens and hashes a library of a bundle, once per process and content. The result lives as long as
// the process. Throws Error ECR_DAMAGED.
const PinnedLibrary& pin_library(const BundleFolder& folder, const std::string& name);

// dlopens it, its symbols visible to nobody else. Throws Error ECR_NATIVE: rule native-load.
void* load_library(const PinnedLibrary& library);

}  // namespace ecr
