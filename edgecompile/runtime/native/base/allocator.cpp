// Memory for tensors, kept for the next run.
#include "base/allocator.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <mutex>
#include <new>

namespace ec {
namespace {

constexpr int kStepsPerOctave = 4;
constexpr int kMinShift = 6;   // 64 bytes
constexpr int kMaxShift = 44;  // 16 TiB: more is refused, no machine here has it
constexpr int kClasses = (kMaxShift - kMinShift) * kStepsPerOctave + 1;
// A request may be served by a cached block up to twice as large rather than by a new one.
constexpr int kReuseReach = kStepsPerOctave;

struct FreeBlock {
  FreeBlock* next;
};

struct SizeClass {
  FreeBlock* head = nullptr;
  uint64_t last_use = 0;
};

// Never destroyed: threads and outputs may outlive static destruction at exit.
struct Cache {
  std::mutex mutex;
  SizeClass classes[kClasses];
  uint64_t clock = 0;
  size_t live = 0;
  size_t peak = 0;
  size_t cached = 0;
};

Cache& cache() {
  static Cache* instance = new Cache;
  return *instance;
}

size_t class_bytes(int index) {
  const int shift = kMinShift + index / kStepsPerOctave;
  const size_t octave = size_t{1} << shift;
  return octave + (octave / kStepsPerOctave) * static_cast<size_t>(index % kStepsPerOctave);
}

// Smallest class that holds `bytes`.
int class_index(size_t bytes) {
  if (bytes <= size_t{1} << kMinShift) return 0;
  const int shift = std::bit_width(bytes - 1) - 1;
  const size_t octave = size_t{1} << shift;
  const size_t step = octave / kStepsPerOctave;
  const size_t steps = (bytes - octave + step - 1) / step;
  return (shift - kMinShift) * kStepsPerOctave + static_cast<int>(steps);
}

// Classes between powers of two are multiples of 16 bytes only; memory must be asked for in
// multiples of the alignment.
size_t system_bytes(size_t capacity) {
  return (capacity + kAlignment - 1) / kAlignment * kAlignment;
}

FreeBlock* pop(Cache& shared, int index, size_t* capacity) {
  const int last = std::min(index + kReuseReach, kClasses - 1);
  for (int i = index; i <= last; ++i) {
    SizeClass& entry = shared.classes[i];
    if (entry.head == nullptr) continue;
    FreeBlock* block = entry.head;
    entry.head = block->next;
    entry.last_use = ++shared.clock;
    *capacity = class_bytes(i);
    shared.cached -= *capacity;
    return block;
  }
  return nullptr;
}

// Unlinks blocks of the longest idle classes until at most `limit` bytes stay cached.
FreeBlock* evict(Cache& shared, size_t limit) {
  FreeBlock* evicted = nullptr;
  while (shared.cached > limit) {
    int oldest = -1;
    for (int i = 0; i < kClasses; ++i) {
      if (shared.classes[i].head == nullptr) continue;
      if (oldest < 0 || shared.classes[i].last_use < shared.classes[oldest].last_use) oldest = i;
    }
    SizeClass& entry = shared.classes[oldest];
    while (entry.head != nullptr && shared.cached > limit) {
      FreeBlock* block = entry.head;
      entry.head = block->next;
      block->next = evicted;
      evicted = block;
      shared.cached -= class_bytes(oldest);
    }
  }
  return evicted;
}

void free_all(FreeBlock* block) {
  while (block != nullptr) {
    FreeBlock* next = block->next;
    std::free(block);
    block = next;
  }
}

}  // namespace

void* allocate(size_t bytes, size_t* capacity) {
  if (bytes > class_bytes(kClasses - 1)) throw std::bad_alloc();
  const int index = class_index(bytes);
  Cache& shared = cache();
  {
    std::lock_guard<std::mutex> lock(shared.mutex);
    FreeBlock* block = pop(shared, index, capacity);
    if (block == nullptr) *capacity = class_bytes(index);
    shared.live += *capacity;
    shared.peak = std::max(shared.peak, shared.live);
    if (block != nullptr) return block;
  }
  void* fresh = std::aligned_alloc(kAlignment, system_bytes(*capacity));
  if (fresh == nullptr) {
    trim_cache();
    fresh = std::aligned_alloc(kAlignment, system_bytes(*capacity));
  }
  if (fresh == nullptr) {
    std::lock_guard<std::mutex> lock(shared.mutex);
    shared.live -= *capacity;
    throw std::bad_alloc();
  }
  return fresh;
}

void release(void* block, size_t capacity) noexcept {
  if (block == nullptr) return;
  Cache& shared = cache();
  FreeBlock* evicted = nullptr;
  {
    std::lock_guard<std::mutex> lock(shared.mutex);
    shared.live -= capacity;
    SizeClass& entry = shared.classes[class_index(capacity)];
    FreeBlock* free_block = new (block) FreeBlock{entry.head};
    entry.head = free_block;
    entry.last_use = ++shared.clock;
    shared.cached += capacity;
    const size_t limit = std::max(kCacheFloor, shared.peak);
    if (shared.cached > limit) evicted = evict(shared, limit);
  }
  free_all(evicted);
}

void trim_cache() noexcept {
  Cache& shared = cache();
  FreeBlock* evicted = nullptr;
  {
    std::lock_guard<std::mutex> lock(shared.mutex);
    evicted = evict(shared, 0);
    shared.peak = shared.live;
  }
  free_all(evicted);
#if defined(__GLIBC__)
  malloc_trim(0);  // after a first large block glibc keeps others in its heap, freed or not
#endif
}

AllocatorStats allocator_stats() noexcept {
  Cache& shared = cache();
  std::lock_guard<std::mutex> lock(shared.mutex);
  return {shared.live, shared.peak, shared.cached};
}

}  // namespace ec
