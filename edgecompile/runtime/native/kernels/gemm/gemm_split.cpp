// Divides products into tasks.
#include "kernels/gemm/gemm_split.h"

#include <algorithm>

#include "kernels/gemm/gemm_kernel.h"
#include "threads/threads.h"

namespace ec {

namespace {
constexpr int64_t kGatheredRows = 4 * kTileRows;  // of a chunk, at least
}  // namespace

Grid divide(int64_t batch, int64_t m, int64_t n, int64_t k, const GridLimits& limits) {
  const int64_t panels = (n + kPanel - 1) / kPanel;
  Grid grid{(m + limits.most_rows - 1) / limits.most_rows, std::min(limits.least_groups, panels)};
  const int64_t threads = num_threads();
  const int64_t work = batch * std::max(m, limits.memory_rows) * n * std::max<int64_t>(k, 1);
  if (threads > 1 && work >= limits.serial_work) {
    // Cores are seldom equally fast: other processes, or other machines on the same core, take from
    // them. So tasks are short, some ten microseconds, but not so many that claiming them costs.
    // Splitting rows means reading B again, so it comes second, and down to two tiles only.
    const int64_t wanted = std::clamp<int64_t>(work / limits.task_work, 4 * threads, 64 * threads);
    grid.groups = std::clamp<int64_t>(wanted / (batch * grid.chunks), grid.groups, panels);
    if (2 * batch * grid.chunks * grid.groups < wanted) {
      const int64_t enough = (wanted / 2 + batch * grid.groups - 1) / (batch * grid.groups);
      grid.chunks =
          std::clamp<int64_t>(m / (2 * kTileRows), grid.chunks, std::max(grid.chunks, enough));
    }
  }
  return grid;
}

Grid divide_gathered(int64_t batch, int64_t m, int64_t n, int64_t k, int64_t most_rows) {
  const int64_t panels = (n + kPanel - 1) / kPanel;
  Grid grid{(m + most_rows - 1) / most_rows, 1};
  const int64_t threads = num_threads();
  const int64_t work = batch * m * n * std::max<int64_t>(k, 1);
  if (threads == 1 || work < GridLimits{}.serial_work) return grid;
  const int64_t wanted =
      std::clamp<int64_t>(work / GridLimits{}.task_work, 4 * threads, 16 * threads);
  const int64_t enough = (wanted + batch - 1) / batch;
  grid.chunks = std::clamp<int64_t>(m / kGatheredRows, grid.chunks, std::max(grid.chunks, enough));
  // Each group copies the rows again, so there are no more than even out what threads get.
  grid.groups = std::clamp<int64_t>(4 * threads / (batch * grid.chunks), 1, panels);
  return grid;
}

}  // namespace ec
