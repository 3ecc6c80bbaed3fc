// Weights on the GPU, the memory through which inputs and outputs pass, the caches of a text.
#include "gpu/memory.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/text.h"
#include "call/inputs.h"

namespace ecr {
namespace {

constexpr unsigned kPortable = 1, kMapped = 2;  // CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP

}  // namespace

DeviceWeights::DeviceWeights(const Driver& driver, const Weights& weights)
    : constants_(weights.constants()) {
  if (constants_.empty()) return;
  int64_t end = 0;
  start_ = constants_[0].offset;
  for (const Constant& item : constants_) {
    start_ = std::min(start_, item.offset);
    end = std::max(end, item.offset + item.nbytes);
  }
  nbytes_ = end - start_;
  if (nbytes_ == 0) return;
  try {
    memory_ = allocate(driver, nbytes_);
    driver.upload(memory_.get(), weights.data() + start_, static_cast<size_t>(nbytes_));
  } catch (const GpuError& error) {
    throw error.retold(cat(nbytes_, " bytes of weights: ", error.message));
  }
}

std::shared_ptr<const DeviceWeights> DeviceWeights::share(const Driver& driver,
                                                          const Weights& weights,
                                                          const std::string& sha256) {
  static std::mutex& mutex = *new std::mutex;
  using Key = std::pair<const Driver*, std::string>;
  static auto& shared = *new std::map<Key, std::weak_ptr<const DeviceWeights>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<const DeviceWeights>& slot = shared[{&driver, sha256}];
  std::shared_ptr<const DeviceWeights> found = slot.lock();
  if (found == nullptr) {
    found.reset(new DeviceWeights(driver, weights));
    slot = found;
  }
  return found;
}

Staging::Staging(const Driver& driver, int64_t nbytes, bool zero_copy)
    : driver_(driver), nbytes_(nbytes) {
  void* host = nullptr;
  driver.pin(&host, static_cast<size_t>(nbytes), kPortable | kMapped);
  pinned_ = {driver, driver.unpin, host};
  if (zero_copy) {
    driver.find_pinned(&device_, host, 0);
  } else {
    memory_ = allocate(driver, nbytes);
    device_ = memory_.get();
  }
}

void Staging::send(int64_t start, int64_t end, void* stream) const {
  if (memory_.get() == 0 || start == end) return;
  driver_.send(device_ + static_cast<Address>(start), host() + start,
               static_cast<size_t>(end - start), stream);
}

void Staging::fetch(int64_t start, int64_t end, void* stream) const {
  if (memory_.get() == 0 || start == end) return;
  driver_.fetch(host() + start, device_ + static_cast<Address>(start),
                static_cast<size_t>(end - start), stream);
}

CacheMemory::CacheMemory(const Driver& driver, const Manifest& manifest) : driver_(driver) {
  const int64_t rows = context_rows(manifest);
  for (const TensorSpec& spec : manifest.inputs) {
    const bool is_cache = manifest.generation->is_cache(spec.name);
    offsets_.push_back(is_cache ? nbytes_ : -1);
    if (!is_cache) continue;
    const int64_t nbytes = count_elements(own_cache(manifest, spec, rows).sizes) * spec.type->size;
    nbytes_ += (nbytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  try {
    memory_ = allocate(driver, nbytes_);
  } catch (const GpuError& error) {
    throw error.retold(cat(nbytes_, " bytes for the caches of a text: ", error.message),
                       "build the bundle with a smaller max_context, or keep fewer sessions");
  }
}

void CacheMemory::clear(void* stream) const {
  driver_.fill(memory_.get(), 0, static_cast<size_t>(nbytes_), stream);
  driver_.synchronize(stream);
}

}  // namespace ecr
