// How many threads the process may keep busy: its affinity mask and its control group's CPU quota.
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "threads/threads.h"

namespace ec {
namespace {

// The number in a file "quota period" (cgroup v2), rounded up; kMaxThreads when there is no limit.
int read_cpu_max(const char* path) {
  FILE* f = fopen(path, "re");
  if (f == nullptr) return kMaxThreads;
  long long quota = 0, period = 0;
  const int fields = fscanf(f, "%lld %lld", &quota, &period);  // "max 100000" gives 0 fields
  fclose(f);
  if (fields != 2 || quota <= 0 || period <= 0) return kMaxThreads;
  const long long n = (quota + period - 1) / period;
  return n < kMaxThreads ? static_cast<int>(n) : kMaxThreads;
}

// The tightest CPU quota among the process's control group and its parents.
int cgroup_limit() {
  char group[512] = "";
  if (FILE* f = fopen("/proc/self/cgroup", "re")) {
    char line[600];
    while (fgets(line, sizeof line, f) != nullptr) {
      if (strncmp(line, "0::", 3) != 0) continue;
      line[strcspn(line, "\n")] = 0;
      snprintf(group, sizeof group, "%.500s", line + 3);
    }
    fclose(f);
  }
  int limit = kMaxThreads;
  for (;;) {
    char path[600];
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    const int n = read_cpu_max(path);
    if (n < limit) limit = n;
    char* slash = strrchr(group, '/');
    if (slash == nullptr) return limit;
    *slash = 0;
  }
}

}  // namespace

int default_threads() {
  int n = 1;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
    n = CPU_COUNT(&mask);
  } else {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);  // more CPUs than cpu_set_t has bits
    if (online > 0) n = online < kMaxThreads ? static_cast<int>(online) : kMaxThreads;
  }
  const int limit = cgroup_limit();
  if (n > limit) n = limit;
  return n < 1 ? 1 : n;
}

}  // namespace ec
