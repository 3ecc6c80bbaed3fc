// The weights file: its header, checked, and its tensors, mapped.
#include "bundle/weights.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <numeric>
#include <tuple>

#include "base/text.h"
#include "bundle/limits.h"

namespace ecr {
namespace {

constexpr int64_t kAlignment = 64;
constexpr uint64_t kMaxHeaderBytes = 16u << 20;
constexpr size_t kMaxNameLength = 1024;
constexpr const char* kPaddingPrefix = "__pad.";
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kHint = "the weights were written wrongly or changed; build the bundle again";

bool is_padding(const std::string& name) { return name.rfind(kPaddingPrefix, 0) == 0; }

class HeaderReader {
 public:
  HeaderReader(const Descriptor& file, int64_t size, const std::string& source)
      : file_(file), size_(size), source_(source), problems_(source), reader_(&problems_) {}

  std::vector<Constant> read() {
    uint8_t head[8] = {};
    uint64_t length = 0;
    if (read_at(file_, head, sizeof head, 0, source_) == sizeof head) {
      for (int i = 7; i >= 0; --i) length = length << 8 | head[i];
    }
    const uint64_t room = size_ < 8 ? 0 : static_cast<uint64_t>(size_) - 8;
    if (length < 2 || length > std::min(kMaxHeaderBytes, room)) {
      reader_.add("weights-header", "header",
                  cat("the header has ", length, " bytes, must have 2 to ", kMaxHeaderBytes,
                      " within a file of ", size_, " bytes"));
      problems_.raise_if_any(ECR_BUNDLE, kHint);
    }
    std::string text(length, '\0');
    text.resize(read_at(file_, text.data(), text.size(), 8, source_));
    const Value header = parse_json(text.data(), text.size(), source_, kMaxHeaderBytes);
    for (const Member& member : reader_.mapping(header.object(), kMetadata, "", true).members()) {
      reader_.as_string(member.value, place_of(kMetadata, member.key));
    }
    start_ = 8 + static_cast<int64_t>(length);
    if (start_ % kAlignment != 0) {
      reader_.add("weights-alignment", "header",
                  cat("the data begins at byte ", start_, ", must be a multiple of ", kAlignment));
    }
    for (const Member& member : header.object().members()) {
      if (member.key != kMetadata) read_entry(member.key, member.value);
    }
    if (problems_.empty()) check_layout();
    problems_.raise_if_any(ECR_BUNDLE, kHint);
    for (Constant& item : constants_) item.offset += start_;
    constants_.erase(std::remove_if(constants_.begin(), constants_.end(),
                                    [](const Constant& item) { return is_padding(item.name); }),
                     constants_.end());
    return std::move(constants_);
  }

 private:
  // A position behind the header as one in the file, for a message.
  uint64_t from_start(int64_t position) const {
    return static_cast<uint64_t>(start_) + static_cast<uint64_t>(position);
  }

  void read_entry(const std::string& name, const Value& value) {
    const std::string where = shorten(name);
    if (name.empty() || count_code_points(name) > kMaxNameLength || !is_printable(name)) {
      reader_.add("weights-name", where, "names are 1 to 1024 printable characters");
    }
    const Object* const entry = reader_.as_object(value, where);
    if (entry == nullptr) return;
    Constant constant;
    constant.name = name;
    const std::string* const dtype = reader_.string(*entry, "dtype", where);
    if (dtype != nullptr) {
      constant.type = find_container(*dtype);
      if (constant.type == nullptr) {
        reader_.add("weights-dtype", where + ".dtype",
                    cat(quoted(*dtype), " isn't one of ", list_containers()));
      }
    }
    std::vector<int64_t> span;
    const bool has_shape = read_sizes(*entry, "shape", where, 0, kMaxDims, &constant.shape);
    const bool has_span = read_sizes(*entry, "data_offsets", where, 2, 2, &span);
    if (constant.type == nullptr || !has_shape || !has_span) return;

    // More than 2^63 bytes can't be: the offsets are integers of 64 bits.
    bool fits = true;
    bool empty = false;
    int64_t nbytes = constant.type->size;
    for (const int64_t dim : constant.shape) empty = empty || dim == 0;
    for (const int64_t dim : constant.shape) {
      fits = fits && (empty || !__builtin_mul_overflow(nbytes, dim, &nbytes));
    }
    if (empty) nbytes = 0;
    if (!fits || span[0] > span[1] || span[1] - span[0] != nbytes) {
      reader_.add("weights-offsets", where,
                  cat("from ", span[0], " to ", span[1], ", but ", *dtype, "[",
                      join(constant.shape), "] has another number of bytes"));
      return;
    }
    // From the end of the header until the layout was checked: no sum can overflow.
    constant.offset = span[0];
    constant.nbytes = nbytes;
    if ((start_ % kAlignment + span[0] % kAlignment) % kAlignment != 0 && !is_padding(name)) {
      reader_.add(
          "weights-alignment", where,
          cat("begins at byte ", from_start(span[0]), ", must be a multiple of ", kAlignment));
    }
    constants_.push_back(std::move(constant));
  }

  // Whether there is a list of so many integers, none negative.
  bool read_sizes(const Object& entry, const char* key, const std::string& where, size_t least,
                  size_t most, std::vector<int64_t>* out) {
    const Items items = reader_.items(entry, key, where, least, most);
    for (const Value& item : items) {
      const std::optional<int64_t> value = reader_.as_integer(item, place_of(where, key));
      if (value) out->push_back(*value);
    }
    const Value* const value = entry.find(key);
    if (value == nullptr || !value->is(Value::Type::kList) || out->size() != value->list().size()) {
      return false;
    }
    if (std::any_of(out->begin(), out->end(), [](int64_t size) { return size < 0; })) {
      reader_.add("weights-offsets", place_of(where, key),
                  cat("[", join(*out), "] has a negative number"));
      return false;
    }
    return least <= out->size() && out->size() <= most;
  }

  // Tensors follow each other without holes or overlaps, and the last ends with the file.
  void check_layout() {
    std::vector<const Constant*> order;
    for (const Constant& item : constants_) order.push_back(&item);
    std::stable_sort(order.begin(), order.end(), [](const Constant* a, const Constant* b) {
      return std::tie(a->offset, a->nbytes) < std::tie(b->offset, b->nbytes);
    });
    int64_t position = 0;
    std::string previous = "the header";
    for (const Constant* item : order) {
      if (item->offset != position) {
        reader_.add("weights-layout", shorten(item->name),
                    cat("begins at byte ", from_start(item->offset), ", but ", shorten(previous),
                        " ends at byte ", from_start(position)));
      }
      position = item->offset + item->nbytes;
      previous = item->name;
    }
    if (position != size_ - start_) {
      reader_.add("weights-layout", "file",
                  cat("the tensors end at byte ", from_start(position), ", the file has ", size_,
                      " bytes"));
    }
  }

  const Descriptor& file_;
  const int64_t size_;
  const std::string source_;
  Problems problems_;
  Reader reader_;
  int64_t start_ = 0;
  std::vector<Constant> constants_;
};

}  // namespace

Weights::Weights(const Descriptor& file, int64_t size, const std::string& source)
    : constants_(HeaderReader(file, size, source).read()), size_(size) {
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
  folder.check_hash(name, file);
  known_sha256_ = recorded;
}

std::shared_ptr<Weights> map_weights(const BundleFolder& folder, const std::string& name,
                                     bool check_hash) {
  static std::mutex& mutex = *new std::mutex;
  static auto& shared = *new std::map<FileState, std::weak_ptr<Weights>>;

  const Descriptor file = folder.open(name);
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) fail(ECR_DAMAGED, folder.label(name) + ": can't be read");
  const FileState key = file_state(info);
  std::shared_ptr<Weights> weights;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    for (auto at = shared.begin(); at != shared.end();) {
      at = at->second.expired() ? shared.erase(at) : std::next(at);
    }
    weights = shared[key].lock();
    if (weights == nullptr) {
      weights = std::make_shared<Weights>(file, info.st_size, folder.label(name));
      shared[key] = weights;
    }
  }
  if (check_hash) weights->check_hash(folder, name, file);
  return weights;
}

}  // namespace ecr
