// A caching allocator for run-time buffers.
//
// A model run asks for the same hundred buffers again and again, with sizes that follow the
// sequence length. Blocks are rounded up to one of four size classes per power of two and kept for
// reuse, so that a steady state neither calls malloc nor takes page faults. What is kept is
// bounded: never more than the largest amount that was in use at one time (and at least
// kCacheFloor), the classes that have been idle longest are given back first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ec {

constexpr size_t kAlignment = 64;
constexpr size_t kCacheFloor = size_t{4} << 20;

// Returns a block of at least `bytes`, aligned to kAlignment, and its true size in *capacity, which
// release() needs. Throws std::bad_alloc. Thread safe.
void* allocate(size_t bytes, size_t* capacity);
void release(void* block, size_t capacity) noexcept;

// Gives every cached block back to the system. Thread safe.
void trim_cache() noexcept;

struct AllocatorStats {
  size_t live_bytes;    // in use now
  size_t peak_bytes;    // most that was ever in use
  size_t cached_bytes;  // free, kept for reuse
};
AllocatorStats allocator_stats() noexcept;

}  // namespace ec
