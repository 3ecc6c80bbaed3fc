// Which of a variant's programs run on this GPU: its first ones, or those that Python's `tune`
// found faster and recorded in the cache. Nothing is written here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gpu/driver.h"

namespace ecr {

// What was recorded: for each bucket's program 0 or the number of an alternative, from 1 on.
struct Tuned {
  std::vector<size_t> choice;
  std::string path;  // of the record
  // From how many rows on cuBLASLt of this version computes each product of each program; negative:
  // never. Empty where it computes none.
  int64_t cublaslt = 0;
  std::vector<std::vector<int64_t>> rows;
};

// The record of this variant, device and driver; none where there isn't one, it can't be read, or
// isn't what `tune` writes for them. A choice is of programs of the bundle alone, whose hashes are
// compared before they are loaded.
std::optional<Tuned> find_tuned(const Manifest& manifest, const Variant& variant,
                                const Device& device);

// For each program the one that runs unless it was tuned, and its alternatives.
std::vector<std::vector<std::string>> list_candidates(const Variant& variant);

}  // namespace ecr
