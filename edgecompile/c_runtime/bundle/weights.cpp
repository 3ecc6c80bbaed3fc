// The weights file: its header, checked, and its tensors, mapped.
#include "bundle/weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "base/text.h"
#include "bundle/limits.h"

namespace ecr {
namespace {

constexpr int64_t kAlignment = 64;
constexpr uint64_t kMaxHeaderBytes = 16u << 20;
constexpr const char* kPaddingPrefix = "__pad.";
constexpr const char* kMetadata = "__metadata__";

std::vector<int64_t> read_sizes(const Field& entry, size_t least, size_t most) {
  std::vector<int64_t> sizes;
  for (const Field& item : entry.list(least, most)) {
    sizes.push_back(item.integer());
    if (sizes.back() < 0) item.refuse("weights-offsets", cat(sizes.back(), " is negative"));
  }
  return sizes;
}

bool is_padding(const std::string& name) { return name.rfind(kPaddingPrefix, 0) == 0; }

// A tensor, its offset from the end of the header. Until the layout was checked no sum of it can be
// built: it might overflow.
Constant read_constant(const std::string& name, const Field& entry) {
  Constant constant;
  constant.name = name;
  const Field dtype = entry.at("dtype");
  constant.type = find_container(dtype.string());
  if (constant.type == nullptr) {
    dtype.refuse("weights-dtype", quoted(dtype.string()) + " isn't known");
  }
  constant.shape = read_sizes(entry.at("shape"), 0, kMaxDims);
  const std::vector<int64_t> span = read_sizes(entry.at("data_offsets"), 2, 2);
  constant.nbytes = constant.type->size;
  bool fits = true;
  const bool is_empty = std::count(constant.shape.begin(), constant.shape.end(), 0) != 0;
  for (const int64_t dim : constant.shape) {
    fits = fits && (is_empty || !__builtin_mul_overflow(constant.nbytes, dim, &constant.nbytes));
  }
  if (is_empty) constant.nbytes = 0;
  if (!fits || span[0] > span[1] || span[1] - span[0] != constant.nbytes) {
    entry.refuse("weights-offsets",
                 cat("from ", span[0], " to ", span[1], ", but ", dtype.string(), "[",
                     join(constant.shape), "] has another number of bytes"));
  }
  constant.offset = span[0];
  // So is the end of the header.
  if (constant.offset % kAlignment != 0 && !is_padding(name)) {
    entry.refuse("weights-alignment",
                 cat("begins ", constant.offset, " bytes behind the header, must be a multiple of ",
                     kAlignment));
  }
  return constant;
}

// Tensors follow each other without holes or overlaps, and the last ends with the `size` bytes
// behind the header.
void check_layout(const Field& header, const std::vector<Constant>& constants, int64_t size) {
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const Constant& item : constants) spans.emplace_back(item.offset, item.nbytes);
  std::sort(spans.begin(), spans.end());
  spans.emplace_back(size, 0);
  int64_t position = 0;
  for (const auto& [offset, nbytes] : spans) {
    if (offset != position) {
      header.refuse("weights-layout",
                    cat("a tensor or the file has its edge at byte ", offset,
                        " behind the header, but what comes before ends at byte ", position));
    }
    position = offset + nbytes;
  }
}

std::vector<Constant> read_constants(const Descriptor& file, int64_t size,
                                     const std::string& source) {
  uint8_t head[8] = {};
  uint64_t length = 0;
  if (read_at(file, head, sizeof head, 0, source) == sizeof head) {
    for (int i = 7; i >= 0; --i) length = length << 8 | head[i];
  }
  const uint64_t room = size < 8 ? 0 : static_cast<uint64_t>(size) - 8;
  if (length < 2 || length > std::min(kMaxHeaderBytes, room)) {
    fail(ECR_BUNDLE, cat(source, ": the header has ", length, " bytes, must have 2 to ",
                         kMaxHeaderBytes, " within a file of ", size, " bytes [weights-header]"));
  }
  std::string text(length, '\0');
  text.resize(read_at(file, text.data(), text.size(), 8, source));
  const Value value = parse_json(text, source);
  const Field header(value, source);
  const int64_t start = 8 + static_cast<int64_t>(length);
  if (start % kAlignment != 0) {
    header.refuse("weights-alignment",
                  cat("the data begins at byte ", start, ", must be a multiple of ", kAlignment));
  }
  if (header.has(kMetadata)) header.at(kMetadata).check_strings();
  std::vector<Constant> constants;
  for (const Member& member : header.object()) {
    if (member.key == kMetadata) continue;
    constants.push_back(read_constant(member.key, header.child(member)));
  }
  check_layout(header, constants, size - start);
  for (Constant& item : constants) item.offset += start;
  constants.erase(std::remove_if(constants.begin(), constants.end(),
                                 [](const Constant& item) { return is_padding(item.name); }),
                  constants.end());
  return constants;
}

}  // namespace

Weights::Weights(const Descriptor& file, int64_t size, const std::string& source)
    : constants_(read_constants(file, size, source)), size_(size) {
  void* const mapping =
      mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) {
    const int number = errno;
    fail_if_limit(number, source, size);
    fail(ECR_DAMAGED, cat(source, ": can't be mapped: ", system_text(number)));
  }
  data_ = static_cast<const uint8_t*>(mapping);
}

Weights::~Weights() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_));
}

void Weights::check_hash(const BundleFolder& folder, const std::string& name,
                         const Descriptor& file) {
  const std::string& recorded = folder.manifest().files.at(name).sha256;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (known_sha256_ == recorded) return;
  folder.check_large(name, file);
  known_sha256_ = recorded;
}

std::shared_ptr<Weights> map_weights(const BundleFolder& folder, const std::string& name,
                                     bool check_hash) {
  static std::mutex& mutex = *new std::mutex;
  static auto& shared = *new std::map<FileState, std::weak_ptr<Weights>>;

  const Descriptor file = folder.open(name);
  const std::optional<FileState> key = state_of_file(file);
  if (!key) fail(ECR_DAMAGED, folder.label(name) + ": can't be read");
  std::shared_ptr<Weights> weights;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto at = shared.begin(); at != shared.end();) {
      at = at->second.expired() ? shared.erase(at) : std::next(at);
    }
    weights = shared[*key].lock();
    if (weights == nullptr) {
      const int64_t size = folder.manifest().files.at(name).size;
      weights = std::make_shared<Weights>(file, size, folder.label(name));
      shared[*key] = weights;
    }
  }
  if (check_hash) weights->check_hash(folder, name, file);
  return weights;
}

}  // namespace ecr
