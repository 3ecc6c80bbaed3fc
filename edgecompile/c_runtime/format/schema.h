// The contents of a manifest; FORMAT.md is normative. Axes are named by their position.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "format/dtypes.h"
#include "format/sums.h"

namespace ecr {

constexpr int64_t kFormatVersion = 1;
constexpr const char* kManifestName = "manifest.json";
constexpr const char* kBackend = "aoti-cpu";
constexpr const char* kTensorRtBackend = "tensorrt";
constexpr const char* kTritonBackend = "triton";
constexpr const char* kTorchBackend = "torch";
constexpr size_t kMaxDims = ECR_MAX_DIMS;

// One dimension of a shape.
struct Dim {
  enum class Kind : uint8_t { kFixed, kAxis, kSum, kAny };
  Kind kind = Kind::kAny;
  int64_t size = 0;  // of kFixed
  size_t axis = 0;   // of kAxis
  Sum sum;           // of kSum

  bool follows(size_t other) const;  // whether the size depends on this axis
};

// One input or output; outputs have neither pad nor bounds.
struct TensorSpec {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<Dim> shape;
  std::optional<Number> pad;
  std::optional<std::pair<Number, Number>> bounds;
  // The sum of sizes that a bound follows in each run; `bounds` then has the widest bound.
  std::pair<std::optional<Sum>, std::optional<Sum>> reach;
  std::optional<Number> fallback;  // the manifest's "default": its value if a run leaves it out
};

// The sizes that one program serves.
struct Bucket {
  bool padded = false;           // its mode
  std::vector<Extent> axes;      // one for each axis of the manifest
  std::vector<size_t> pad_axes;  // axes along which inputs are padded; none in exact mode
};

using Version = std::pair<int64_t, int64_t>;       // of glibc, or a compute capability
std::string version_text(const Version& version);  // "2.34"

// An output agrees with the expected one if |got - want| <= atol + rtol * max|want|.
struct Tolerance {
  double atol = 0;
  double rtol = 0;
};

// The requirements of programs with Triton kernels, and how they compute.
struct GpuSpec {
  std::vector<Version> capabilities;  // compute capabilities with cubins
  std::optional<Version> ptx;         // the least compute capability for the PTX
  int64_t driver = 0;                 // CUDA's number of the oldest driver, 12060 for 12.6
  std::string precision;              // of the weights
  Tolerance tolerance;
  std::optional<double> min_cosine;
  bool padding = false;   // it was verified that padding changes nothing
  bool graphs = true;     // CUDA graphs can hold runs: no program reads sizes from the GPU
  bool cublaslt = false;  // programs have products that cuBLASLt may compute
};

struct Variant {
  std::string name;
  std::string arch;
  std::string backend;
  std::vector<std::string> requires_;
  std::optional<Version> glibc;
  int64_t rank = 0;
  // Empty for backends that this library doesn't run.
  std::string runtime;
  std::vector<std::string> programs;
  std::optional<GpuSpec> gpu;  // of Triton kernels
  // For each bucket, programs with other tiles that compute the same; or empty.
  std::vector<std::vector<std::string>> alternatives;
};

struct FileEntry {
  int64_t size = 0;
  std::string sha256;
};

using Strings = std::map<std::string, std::string>;

// The special inputs of a language model, and the positions of its two axes.
struct Generation {
  std::string position;
  std::string last;
  size_t length = 0;
  std::optional<size_t> context;  // absent: no cache has a row for each token
  int64_t max_context = 0;        // the limit of a text if `context` is absent
  bool has_states = false;        // states of a fixed size, which each run replaces
  std::vector<std::string> caches;

  bool is_cache(const std::string& name) const;
};

// An output that is an input of a stream's next run, by their positions.
struct StateSpec {
  size_t output = 0;
  size_t input = 0;
  std::vector<Number> start;  // of the first run: one number for all elements, or one for each
};

struct Manifest {
  Value document;  // the whole JSON document
  std::string name;
  std::string precision;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<Axis> axes;  // sorted by their names
  std::optional<size_t> length_axis;
  std::vector<Bucket> buckets;
  std::vector<Variant> variants;
  Strings probes;
  Strings weights;
  Tolerance tolerance;
  std::map<std::string, FileEntry> files;
  std::optional<Generation> generation;
  std::vector<StateSpec> states;

  std::optional<size_t> find_axis(const std::string& key) const;
  std::optional<size_t> find_input(const std::string& key) const;
};

constexpr size_t kMaxManifestBytes = 4u << 20;

// Whether a text is a path as the manifest's files have it: relative, and in the bundle.
bool is_path(const std::string& path);

// Reads the bytes of a manifest and checks what a run depends on; `source` is the name of the file
// in messages. Throws Error ECR_VERSION for an unknown format version, else ECR_BUNDLE with the
// first broken rule.
Manifest parse_manifest(const std::string& data, const std::string& source);

// Inputs, outputs, axes and buckets, into `manifest`.
void read_signature(const Field& document, Manifest* manifest);

// The rows of a cache for a text of the greatest length.
int64_t context_rows(const Manifest& manifest);

// The manifest's "generation", once the rest has been read.
void read_generation(const Field& entry, Manifest* manifest);

// The manifest's "state", once the rest has been read.
void read_state(const Field& entries, Manifest* manifest);

// "1..64", or "7" where both ends are one, or "1..63 in steps of 2".
std::string extent_text(const Extent& extent);
// "exact batch 1, length 1..64".
std::string bucket_text(const Manifest& manifest, const Bucket& bucket);

}  // namespace ecr
