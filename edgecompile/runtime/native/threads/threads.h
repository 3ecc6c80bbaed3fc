// The process's pool of worker threads, with fork/join in about a microsecond.
//
// Workers spin for some tens of microseconds after a job, or for half a millisecond where the last
// jobs came that soon, and then sleep on a futex, so that an idle process costs nothing and a
// contended core is not held. Tasks are claimed dynamically by whoever is running: the caller never
// waits for a worker that has not started on a task, and runs everything itself if no worker comes.
//
// One job at a time: a call from inside a task, or while another host thread has the pool, runs on
// its caller alone. A run that is given a number of threads of its own (set_threads_of_runs) has a
// pool to itself meanwhile, so that several of them go on side by side, each on its part of the
// cores. Safe from any number of host threads, and after fork() the child starts with fresh pools
// of its own.
#pragma once

#include <atomic>
#include <cstdint>

namespace ec {

// The largest team a job may get now, >= 1. By default the number of CPUs that the process may run
// on, from its affinity mask and its control group's CPU quota.
int num_threads();

// From the next job on; 0 returns to the default, read afresh. Threads beyond the number sleep.
void set_num_threads(int n);

// The default, read afresh.
int default_threads();

constexpr int kMaxThreads = 256;

// The runs that this host thread starts from now on have `n` threads, whatever num_threads() says
// to others, and a pool of their own where that is more than one; 0: they are as all others.
void set_threads_of_runs(int n);

// While it lives, num_threads() on this host thread is what it was at the start, whatever others
// set; or the thread's own number, with a pool to itself. Code that sizes an array by
// omp_get_max_threads() and then enters a parallel region needs that: a run of a model holds one.
class FixedThreads {
 public:
  FixedThreads();
  ~FixedThreads();
  FixedThreads(const FixedThreads&) = delete;
  FixedThreads& operator=(const FixedThreads&) = delete;

 private:
  int outer_;
  bool has_pool_ = false;
};

// True where this thread takes tasks from the back (see parallel_for), so that the task before the
// present one is likely its next.
bool takes_from_back();

// True inside a task, where further parallel calls run serially.
bool in_parallel();

// Runs task(ctx, i) once for every i in [0, n) and returns when all are done. The order is free,
// but a thread tends to get neighbouring indices: half of the threads take from the front, half
// from the back. A task must not block on another one (see run_team).
void parallel_for(int64_t n, void (*task)(void* ctx, int64_t i), void* ctx);

template <class F>
void parallel_for(int64_t n, const F& f) {
  parallel_for(
      n, [](void* ctx, int64_t i) { (*static_cast<const F*>(ctx))(i); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

// Runs body(ctx, member, members) once for each member in [0, members), where members is `wanted`
// or less: 1 when nested or when the pool is taken. All members get a thread of their own as soon
// as they block, so they may wait for each other (barriers). `begin` is called first, on the
// caller, with the number of members.
void run_team(int wanted, void (*begin)(void* ctx, int members),
              void (*body)(void* ctx, int member, int members), void* ctx);

// The futex calls: sleep until woken unless the word has another value; wake at most `count`.
void sleep_while_equal(const std::atomic<uint32_t>& word, uint32_t value);
void wake(const std::atomic<uint32_t>& word, int count);

// A number that threads of one job wait for: a wait spins briefly and then sleeps, so that the core
// is free for the thread that is waited for.
class Event {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }
  // Returns once the value differs from `old`; seldom also before, so call it in a loop.
  void wait_change(uint32_t old);
  void add(uint32_t amount);                                    // and wakes everyone who waits
  void reset() { value_.store(0, std::memory_order_relaxed); }  // nobody may be waiting

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace ec
