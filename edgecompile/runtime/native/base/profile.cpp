// Counts of kernels and their times, while somebody measures.
#include "base/profile.h"

#include <mutex>

#include "base/clock.h"
#include "base/edgecompile_abi.h"

namespace ec {

std::atomic<bool> g_profiling{false};
thread_local Regions t_regions;
thread_local int64_t t_waited_ns = 0;

namespace {

// The first row is that of whole runs, the last one that of all kinds for which there is no other.
constexpr int kRows = 128;

// One measurement at a time, of all threads together.
std::mutex g_mutex;
ec_profile_row g_rows[kRows];
int g_count = 0;

thread_local bool t_in_kernel = false;

// In the order of Work.
constexpr const char* kNames[] = {"run",       "linear",     "matmul", "convolution",
                                  "attention", "layer norm", "copy",   "boxes",
                                  "samples",   "loops",      "other"};

const char* name_of(Work work) { return kNames[static_cast<int32_t>(work)]; }

ec_profile_row new_row(Work work, const WorkSize& size) {
  ec_profile_row row{};
  row.kernel = name_of(work);
  row.dtype = size.dtype;
  row.n = size.n;
  row.k = size.k;
  return row;
}

ec_profile_row& find_row(Work work, const WorkSize& size) {
  const char* const name = name_of(work);  // one pointer for each kind
  for (int i = 0; i < g_count; ++i) {
    ec_profile_row& row = g_rows[i];
    if (row.kernel == name && row.n == size.n && row.k == size.k && row.dtype == size.dtype) {
      return row;
    }
  }
  if (g_count == kRows - 1) {
    g_rows[g_count++] = new_row(Work::kOther, {});
  }
  if (g_count == kRows) return g_rows[kRows - 1];
  g_rows[g_count] = new_row(work, size);
  return g_rows[g_count++];
}

}  // namespace

void WorkTimer::start(Work work, const WorkSize& size) {
  if (work != Work::kRun) {
    if (t_in_kernel) return;
    t_in_kernel = true;
  }
  work_ = work;
  size_ = size;
  before_ = t_regions;
  start_ns_ = now_ns();
}

void WorkTimer::stop() noexcept {
  const int64_t ns = now_ns() - start_ns_;
  if (work_ != Work::kRun) t_in_kernel = false;
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (!g_profiling.load(std::memory_order_relaxed)) return;
  ec_profile_row& row = find_row(work_, size_);
  row.calls += 1;
  row.ns += ns;
  row.flops += size_.flops;
  row.bytes += size_.bytes;
  const int64_t in_regions = t_regions.ns - before_.ns;
  row.regions += t_regions.count - before_.count;
  row.alone_ns += ns - in_regions;
  row.busy_ns += ns - in_regions + t_regions.busy_ns - before_.busy_ns;
}

}  // namespace ec

void ec_profile_begin(void) {
  const std::lock_guard<std::mutex> lock(ec::g_mutex);
  ec::g_rows[0] = ec::new_row(ec::Work::kRun, {});
  ec::g_count = 1;
  ec::g_profiling.store(true);
}

int64_t ec_profile_end(ec_profile_row* rows, int64_t capacity) {
  const std::lock_guard<std::mutex> lock(ec::g_mutex);
  ec::g_profiling.store(false);
  int64_t count = 0;
  for (int i = 0; i < ec::g_count; ++i) {
    if (ec::g_rows[i].calls == 0) continue;  // no run has ended
    if (count < capacity) rows[count] = ec::g_rows[i];
    ++count;
  }
  return count;
}
