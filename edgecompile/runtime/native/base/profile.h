// Where the time of runs goes: kernels report what they did while somebody measures.
//
// Off, a kernel pays one load. Only the thread that called the kernel counts, and only the
// outermost kernel of it: a copy that a product needs is part of the product.
#pragma once

#include <atomic>
#include <cstdint>

namespace ec {

enum class Work : int32_t {
  kRun,     // a whole run of a program
  kLinear,  // a product with packed weights
  kMatmul,  // a product of two computed matrices
  kConvolution,
  kAttention,
  kLayerNorm,
  kCopy,
  kBoxes,    // suppression, or means over regions
  kSamples,  // images between their pixels
  kLoops,    // a parallel region of generated code
  kOther,    // of too many kinds to tell apart
};

// What one call has to do at the least: arithmetic operations, and bytes of operands and results
// that are read and written once.
struct WorkSize {
  int64_t n = 0, k = 0;  // width and depth of a product
  int32_t dtype = 0;     // of its weights
  int64_t flops = 0, bytes = 0;
};

// Of m rows with a matrix [k, n] of this dtype.
inline WorkSize product_size(int64_t m, int64_t n, int64_t k, int32_t dtype, int64_t bytes) {
  return {n, k, dtype, 2 * m * n * k, bytes};
}

extern std::atomic<bool> g_profiling;

// The parallel regions that a thread has begun while somebody measures: their number, their time on
// this thread, and the time that all members spent on tasks, waits at barriers left out.
struct Regions {
  int64_t count = 0, ns = 0, busy_ns = 0;
};
extern thread_local Regions t_regions;
// The time that this thread has waited for other members.
extern thread_local int64_t t_waited_ns;

class WorkTimer {
 public:
  WorkTimer(Work work, const WorkSize& size) {
    if (g_profiling.load(std::memory_order_relaxed)) [[unlikely]]
      start(work, size);
  }
  ~WorkTimer() {
    if (start_ns_ != 0) [[unlikely]]
      stop();
  }
  WorkTimer(const WorkTimer&) = delete;
  WorkTimer& operator=(const WorkTimer&) = delete;

 private:
  void start(Work work, const WorkSize& size);
  void stop() noexcept;

  int64_t start_ns_ = 0;
  Regions before_;
  Work work_{};
  WorkSize size_;
};

}  // namespace ec
