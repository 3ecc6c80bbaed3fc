// Limits that the system sets to a sound bundle: open files, permission, memory, running code from
// a mount. Told apart from damage, whose cure, another copy of the bundle, helps against none of
// these.
#pragma once

#include <cstdint>
#include <string>

namespace ecr {

// Throws the Error for an errno of a failed open, read or map, ECR_FILES to ECR_MEMORY; returns
// where it isn't about a limit. `where` names the file or folder; `needed` are the bytes that it
// takes at least, 0 if that isn't known.
void fail_if_limit(int number, const std::string& where, int64_t needed = 0);

// The same for what the dynamic loader said of the library at `path`.
void fail_if_loading_limit(const std::string& text, const std::string& where,
                           const std::string& path);

// Whether that is what native code said.
bool is_out_of_memory(const std::string& text);

// Throws Error ECR_MEMORY: `doing` says what takes the memory.
[[noreturn]] void fail_for_memory(const std::string& doing, int64_t needed = 0);

}  // namespace ecr
