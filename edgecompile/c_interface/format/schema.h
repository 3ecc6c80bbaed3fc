// What a manifest says; FORMAT.md is normative. Axes are named by their position.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "format/dtypes.h"

namespace ecr {

constexpr int64_t kFormatVersion = 1;
constexpr const char* kManifestName = "manifest.json";
constexpr const char* kBackend = "aoti-cpu";
constexpr const char* kTensorRtBackend = "tensorrt";
constexpr const char* kTorchBackend = "torch";
constexpr size_t kMaxDims = ECR_MAX_DIMS;

// One dimension of a shape.
struct Dim {
  enum class Kind : uint8_t { kFixed, kAxis, kAny };
  Kind kind = Kind::kAny;
  int64_t size = 0;  // of kFixed
  size_t axis = 0;   // of kAxis
};

// One input or output; outputs have neither pad nor bounds.
struct TensorSpec {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<Dim> shape;
  std::optional<Number> pad;
  std::optional<std::pair<Number, Number>> bounds;
  std::optional<Number> fallback;  // the manifest's "default": what it has where it isn't given
};

// The sizes that an axis may have, inclusive; only a bucket's has a hint.
struct Extent {
  int64_t lo = 0;
  int64_t hi = 0;
  int64_t hint = 0;
  bool contains(int64_t size) const { return lo <= size && size <= hi; }
};

struct Axis {
  std::string name;
  Extent extent;
};

// The sizes that one program serves.
struct Bucket {
  bool padded = false;           // its mode
  std::vector<Extent> axes;      // one for each axis of the manifest
  std::vector<size_t> pad_axes;  // what inputs are filled up along; none in exact mode
};

struct Variant {
  std::string name;
  std::string arch;
  std::string backend;
  std::vector<std::string> requires_;
  std::optional<std::string> glibc;
  int64_t rank = 0;
  std::string runtime;
  std::vector<std::string> programs;
};

struct FileEntry {
  int64_t size = 0;
  std::string sha256;
};

struct GoldenCase {
  int64_t bucket = 0;
  std::string name;
  std::string file;
};

using Strings = std::map<std::string, std::string>;

// How a language model's programs are called in turn.
struct Generation {
  std::string input;
  std::string position;
  std::string last;
  std::string logits;
  std::string length_axis;
  std::string context_axis;
  size_t length = 0;  // the axes' positions
  size_t context = 0;
  int64_t max_context = 0;
  std::vector<std::string> caches;
  std::vector<int64_t> eos;
  std::optional<int64_t> bos;
  int64_t pad = 0;
  std::optional<bool> do_sample;  // of the defaults, as the others
  std::vector<std::pair<std::string, Number>> defaults;
  // Where texts go on from a source: the bundle within that reads it, that one's input, what it
  // makes, the tokens that a text begins with, and those that are never chosen, or not as the first
  // one.
  bool has_source = false;
  std::string encoder;
  std::string source;
  std::vector<std::string> cross;
  std::vector<int64_t> start;
  std::vector<int64_t> suppress;
  std::vector<int64_t> suppress_first;

  bool is_cache(const std::string& name) const;
};

// How texts become inputs. This library takes token ids: it checks this, and tells it.
struct TextSpec {
  std::string tokenizer;
  int64_t max_length = 0;
  int64_t pad_id = 0;
  std::vector<std::pair<std::string, std::string>> inputs;  // names and what they get
  std::vector<std::string> prepare;
  Strings prompts;
  std::optional<std::string> default_prompt;
};

struct Manifest {
  std::string name;
  std::string precision;
  Strings built_by;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<Axis> axes;
  std::optional<size_t> length_axis;
  std::vector<Bucket> buckets;
  std::vector<Variant> variants;
  Strings probes;
  Strings weights;
  std::vector<GoldenCase> golden;
  double atol = 0;
  double rtol = 0;
  std::map<std::string, FileEntry> files;
  std::optional<Generation> generation;
  std::optional<TextSpec> text;
  std::vector<std::pair<std::string, std::vector<std::string>>> labels;  // by output
};

// Reads and checks the bytes of a manifest; `source` is what to call them. Throws Error ECR_VERSION
// for an unknown format version, else ECR_BUNDLE with every broken rule.
Manifest parse_manifest(const std::string& data, const std::string& source);

constexpr size_t kMaxManifestBytes = 4u << 20;

// Inputs, outputs, axes and buckets, into `manifest`; what is wrong goes to the reader.
void read_signature(const Object& document, Reader* reader, Manifest* manifest);

// The optional "generation", which is judged by the rest of the manifest if nothing is wrong there.
void read_generation(const Object& document, Reader* reader, Manifest* manifest);
// How texts become inputs, and labels of outputs, into `manifest`, whose signature is read; what is
// wrong goes to the reader.
void read_texts(const Object& document, Reader* reader, Manifest* manifest);

// "1..64", or "7" where both ends are one.
std::string extent_text(const Extent& extent);
// "exact batch 1, length 1..64".
std::string bucket_text(const Manifest& manifest, const Bucket& bucket);

}  // namespace ecr
