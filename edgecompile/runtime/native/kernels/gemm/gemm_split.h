// Dividing products into tasks.
#pragma once

#include <cstdint>

#include "kernels/gemm/gemm.h"

namespace ec {

// Tasks are the cells of a grid: chunks of rows by groups of panels.
struct Grid {
  int64_t chunks, groups;
};

struct GridLimits {
  int64_t most_rows;         // of one chunk
  int64_t least_groups = 1;  // if there are as many panels
  // Multiply-adds below which fork and join cost more than they save. Reading B from memory takes
  // as long as the multiply-adds of memory_rows rows with it, so fewer rows count as that many.
  int64_t serial_work = 200'000;
  int64_t memory_rows = 8;
  int64_t task_work = 600'000;  // multiply-adds of a task, some ten microseconds
};

Grid divide(int64_t batch, int64_t m, int64_t n, int64_t k, const GridLimits& limits);

// For products whose rows of A are copied together: splitting columns means copying them again, so
// it comes second.
Grid divide_gathered(int64_t batch, int64_t m, int64_t n, int64_t k, int64_t most_rows);

}  // namespace ec
