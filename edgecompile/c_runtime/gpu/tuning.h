// Which of a variant's programs run on this GPU: its first ones, or those that Python's `tune`
// found faster and recorded in the cache, as tuned/<key>/choice.json. Nothing is written here.
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

// Reads what a record, or who measures, says of a variant: the keys "choice" and "cublaslt". Throws
// Error.
Tuned read_choice(const std::string& text, const std::string& source, const Variant& variant);

// Writes both keys, and "failure" with what failed of cuBLASLt.
void write_choice(const Tuned& tuned, JsonWriter* out, const std::string& failure = "");

// Everything about the record of a variant on a device.
struct TuningRecord {
  std::string content, device;  // JSON: what a choice depends on
  std::string key;              // the SHA-256 of both
  std::string path;
  std::string text;            // of the file, where it is used
  std::string why;             // it isn't used; "": it is
  std::optional<Tuned> tuned;  // its choice, of programs of the bundle alone; each is hashed later
};
TuningRecord read_record(const Manifest& manifest, const Variant& variant, const Device& device);

// The choice in the record; none where there is nothing to choose from.
std::optional<Tuned> find_tuned(const Manifest& manifest, const Variant& variant,
                                const Device& device);

// For each program the one that runs unless it was tuned, and its alternatives.
std::vector<std::vector<std::string>> list_candidates(const Variant& variant);

}  // namespace ecr
