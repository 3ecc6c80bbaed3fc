// Stamps: files whose hash was compared since this machine's boot, so that the next process
// needn't.
//
// They are those of edgecompile/runtime/format/files/stamps.py, whose text says which files have
// one and why: each runtime finds those that the other one kept.
#pragma once

#include <sys/stat.h>

#include <string>

namespace ecr {

// Whether the open file with these facts had this SHA-256, in hex, since the boot.
bool find_stamp(const struct stat& info, const std::string& sha256);
// Writes the stamp of a file that had this SHA-256; `info` is from before it was hashed. Where it
// can't be written there is none.
void keep_stamp(const struct stat& info, const std::string& sha256);

}  // namespace ecr
