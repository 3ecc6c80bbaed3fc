// Copies memory with so many threads as the argument says, and ends with a number other than 0
// where a byte differs, or where a copy does what it may not.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gpu/copier.h"

namespace {

#define CHECK(condition)                                             \
  do {                                                               \
    if (condition) break;                                            \
    std::fprintf(stderr, "%s isn't so: %d\n", #condition, __LINE__); \
    std::exit(1);                                                    \
  } while (0)

using Bytes = std::vector<uint8_t>;

int count_threads() {
  int count = 0;
  DIR* const folder = opendir("/proc/self/task");
  while (const dirent* const entry = readdir(folder)) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

// Each part comes once, in order, whole, and as few come as may be.
void copy(ecr::Copier* copier, int64_t nbytes, uint8_t seed) {
  Bytes from(static_cast<size_t>(nbytes)), to(from.size() + 1, 7);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(seed + i % 251);
  int64_t end = 0, parts = 0;
  copier->copy(to.data(), from.data(), nbytes, [&](int64_t start, int64_t next) {
    CHECK(start == end && next > start);
    CHECK(std::equal(from.begin() + start, from.begin() + next, to.begin() + start));
    end = next;
    ++parts;
  });
  CHECK(end == nbytes && parts <= (nbytes + (512 << 10) - 1) / (512 << 10));
  CHECK(to.back() == 7);
}

// Several parts may come as one, but the first comes always.
void fail_after(ecr::Copier* copier, int parts) {
  const bool surely = parts == 0;
  const Bytes from(4 << 20, 3);
  Bytes to(from.size());
  try {
    copier->copy(to.data(), from.data(), 4 << 20, [&](int64_t, int64_t) {
      if (parts-- == 0) throw std::runtime_error("of a driver");
    });
  } catch (const std::runtime_error&) {
    return;
  }
  CHECK(!surely);
}

void work(int threads, bool forks) {
  ecr::Copier copier(threads);
  uint8_t seed = 0;
  for (const int64_t nbytes : {1 << 20, (1 << 20) + 1, 3686400, (3 << 20) - 1, 1 << 20, 4 << 20}) {
    for (int i = 0; i < 5; ++i) copy(&copier, nbytes, seed++);
  }
  for (const int parts : {0, 1, 3}) {
    fail_after(&copier, parts);
    copy(&copier, 3686400, seed++);
  }
  if (!forks) return;
  const pid_t child = fork();
  if (child == 0) {
    copier.~Copier();  // whose threads it hasn't
    _exit(0);
  }
  int status = 1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  copy(&copier, 3686400, seed);
}

}  // namespace

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]);
  const bool forks = std::atoi(arguments[2]) != 0;
  const int before = count_threads();
  {
    const ecr::Copier unused(threads);
  }
  work(threads, forks);
  // One that has ended may be listed a little longer. Of the sanitizer's own none ends.
  for (int i = 0; forks && count_threads() != before; ++i) {
    CHECK(i < 10000);
    usleep(1000);
  }
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back([threads] { work(threads, false); });
  for (std::thread& caller : callers) caller.join();
  std::puts("all");
  return 0;
}
