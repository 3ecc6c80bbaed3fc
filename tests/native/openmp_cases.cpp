// Compiled with -fopenmp and then linked with our entry points instead of libgomp, as the build
// does with a model's code. Every function returns the number of things that went wrong.
#include <omp.h>

#include <atomic>
#include <cstdint>
#include <vector>

#define TEST extern "C" __attribute__((visibility("default"))) int64_t

// What Inductor emits: a region, the thread's number, loops of static schedule, collapse.
TEST omp_static_loops(int64_t n, int64_t m) {
  std::vector<int> seen(static_cast<size_t>(n * m));
  std::vector<int> runs(static_cast<size_t>(n));
  int64_t wrong = 0;
#pragma omp parallel reduction(+ : wrong)
  {
    const int tid = omp_get_thread_num();
    if (tid < 0 || tid >= omp_get_num_threads()) ++wrong;
    if (omp_get_num_threads() > omp_get_max_threads()) ++wrong;
#pragma omp for collapse(2)
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < m; ++j) seen[static_cast<size_t>(i * m + j)] += 1;
    }
#pragma omp for schedule(static, 1)
    for (int64_t i = 0; i < n; ++i) runs[static_cast<size_t>(i)] += 1;
  }
  for (int x : seen) wrong += x != 1;
  for (int x : runs) wrong += x != 1;
  return wrong;
}

// Inductor's reductions: an array sized by omp_get_max_threads, one slot for each thread.
TEST omp_slots(int64_t n) {
  const int most = omp_get_max_threads();
  std::vector<int64_t> slots(static_cast<size_t>(most) * 16);
#pragma omp parallel
  {
    const int tid = omp_get_thread_num();
#pragma omp for
    for (int64_t i = 0; i < n; ++i) slots[static_cast<size_t>(tid) * 16] += i;
  }
  int64_t sum = 0;
  for (int t = 0; t < most; ++t) sum += slots[static_cast<size_t>(t) * 16];
  return sum != n * (n - 1) / 2;
}

// The same of a region whose members need not wait for each other, as the build marks it.
float sum_apart(const std::vector<float>& values) {
  const int most = omp_get_max_threads();
  std::vector<float> slots(static_cast<size_t>(most));
#pragma omp parallel proc_bind(close)
  {
    const int tid = omp_get_thread_num();
    float mine = 0;
#pragma omp for
    for (size_t i = 0; i < values.size(); ++i) mine += values[i];
    slots[static_cast<size_t>(tid)] = mine;
  }
  float sum = 0;
  for (float share : slots) sum += share;
  return sum;
}

// The shares are the same when the pool is taken.
TEST omp_apart(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = 1.0f / static_cast<float>(i + 1);
  const float alone = sum_apart(values);
  int64_t wrong = 0;
#pragma omp parallel reduction(+ : wrong)
  wrong += sum_apart(values) != alone;
  return wrong;
}

TEST omp_reductions(int64_t n) {
  int64_t sum = 0, top = -1;
  double product = 1;
  uint32_t bits = 0;
#pragma omp parallel for reduction(+ : sum) reduction(max : top) reduction(* : product) \
    reduction(| : bits)
  for (int64_t i = 0; i < n; ++i) {
    sum += i;
    top = i > top ? i : top;
    product *= 1.0;
    bits |= 1u << (i % 32);
  }
  const uint32_t all = n >= 32 ? ~0u : (1u << n) - 1;
  return (sum != n * (n - 1) / 2) + (top != n - 1) + (product != 1) + (bits != all);
}

TEST omp_barriers(int rounds) {
  std::vector<int> stage(256);
  int64_t wrong = 0;
#pragma omp parallel reduction(+ : wrong)
  {
    const int tid = omp_get_thread_num(), team = omp_get_num_threads();
    for (int r = 1; r <= rounds; ++r) {
      stage[static_cast<size_t>(tid)] = r;
#pragma omp barrier
      for (int t = 0; t < team; ++t) wrong += stage[static_cast<size_t>(t)] != r;
#pragma omp barrier
    }
  }
  return wrong;
}

TEST omp_singles(int rounds) {
  int64_t count = 0, wrong = 0;
#pragma omp parallel
  for (int r = 0; r < rounds; ++r) {
#pragma omp single
    {
      if (count != r) ++wrong;
      ++count;
    }
#pragma omp single nowait
    __atomic_fetch_add(&wrong, 0, __ATOMIC_RELAXED);
  }
  return wrong + (count != rounds);
}

template <class T>
int64_t check_loop(const std::vector<int>& seen, T expected) {
  int64_t wrong = 0;
  for (int x : seen) wrong += x != static_cast<int>(expected);
  return wrong;
}

TEST omp_dynamic_loops(int64_t n) {
  const size_t size = static_cast<size_t>(n);
  std::vector<int> a(size), b(size), c(size), d(size), e(size);
  int64_t last = -1;
#pragma omp parallel
  {
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < n; ++i) a[static_cast<size_t>(i)]++;
#pragma omp for schedule(dynamic, 7) nowait
    for (int64_t i = n - 1; i >= 0; --i) b[static_cast<size_t>(i)]++;
#pragma omp for schedule(guided) nowait
    for (uint64_t i = 0; i < static_cast<uint64_t>(n); ++i) c[i]++;
    if (n > 0) {  // of an empty loop g++ lets every thread write `last`
#pragma omp for schedule(guided, 3) lastprivate(last)
      for (int64_t i = 0; i < 3 * n; i += 3) {
        d[static_cast<size_t>(i / 3)]++;
        last = i;
      }
    }
#pragma omp for schedule(monotonic : dynamic, 2)
    for (int i = 0; i < static_cast<int>(n); ++i) e[static_cast<size_t>(i)]++;
    for (int round = 0; round < 20; ++round) {  // more loops ahead than the team keeps places for
#pragma omp for schedule(dynamic, 5) nowait
      for (int64_t i = 0; i < n; ++i) __atomic_fetch_add(&a[static_cast<size_t>(i)], 1, 0);
    }
  }
  return check_loop(a, 21) + check_loop(b, 1) + check_loop(c, 1) + check_loop(d, 1) +
         check_loop(e, 1) + (n > 0 && last != 3 * (n - 1));
}

TEST omp_combined_dynamic(int64_t n) {
  std::vector<int> a(static_cast<size_t>(n));
  std::vector<int> b(static_cast<size_t>(n));
#pragma omp parallel for schedule(dynamic, 3)
  for (int64_t i = 0; i < n; ++i) a[static_cast<size_t>(i)]++;
#pragma omp parallel for schedule(guided)
  for (int64_t i = 0; i < n; ++i) b[static_cast<size_t>(i)]++;
  return check_loop(a, 1) + check_loop(b, 1);
}

TEST omp_critical_sections(int64_t n) {
  int64_t plain = 0, named = 0;
  std::pair<double, double> wide{0, 0};
#pragma omp parallel for
  for (int64_t i = 0; i < n; ++i) {
#pragma omp critical
    plain += 1;
#pragma omp critical(other)
    named += 2;
#pragma omp critical
    wide = {wide.first + 1, wide.second - 1};
  }
  return (plain != n) + (named != 2 * n) + (wide.first != static_cast<double>(n));
}

TEST omp_nested() {
  int64_t wrong = 0;
#pragma omp parallel reduction(+ : wrong)
  {
    const int outer = omp_get_thread_num();
#pragma omp parallel reduction(+ : wrong)
    {
      wrong += omp_get_num_threads() != 1 || omp_get_thread_num() != 0;
#pragma omp barrier
#pragma omp single
      wrong += 0;
    }
    wrong += omp_get_thread_num() != outer;
  }
  return wrong;
}

TEST omp_outside_regions() {
  int64_t wrong = omp_get_num_threads() != 1 || omp_get_thread_num() != 0 || omp_in_parallel();
#pragma omp barrier
  int64_t singles = 0;
#pragma omp single
  ++singles;
  std::vector<int> seen(100);
#pragma omp for schedule(dynamic, 3)
  for (int i = 0; i < 100; ++i) seen[static_cast<size_t>(i)]++;
  return wrong + (singles != 1) + check_loop(seen, 1);
}

// Members of the team that `wanted` threads get.
TEST omp_team_size(int wanted) {
  int64_t members = 0;
#pragma omp parallel num_threads(wanted) reduction(+ : members)
  members += 1;
  return members;
}
