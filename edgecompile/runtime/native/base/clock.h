// The clock that measures how long something takes.
#pragma once

#include <time.h>

#include <cstdint>

namespace ec {

// Nanoseconds since some moment in the past.
inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace ec
