// The thread pool.
#include "threads/threads.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "base/clock.h"
#include "base/profile.h"
#include "threads/patience.h"

namespace ec {
namespace {

// How long a thread that waits for others of its job spins before it gives its core away: if one of
// them has lost its core to another process, this is the core it can move to.
constexpr int64_t kJoinSpinNs = 20'000;
// The least time between two moves of a worker: another process may have all other cores.
constexpr int64_t kMoveNs = 1'000'000;
constexpr int kPausesPerClock = 16;

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  asm volatile("pause" ::: "memory");
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // yield is a no-op on most cores; isb waits some cycles
#endif
}

// The unclaimed tasks of the current job, [front, back), with the job's number so that a claim by a
// late thread can't succeed on the next job: 20 + 22 + 22 bits in one word.
struct Ticket {
  static constexpr int kBits = 22;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  static constexpr int64_t kMaxTasks = kMask;

  static uint64_t make(uint64_t epoch, uint64_t front, uint64_t back) {
    return epoch << (2 * kBits) | front << kBits | back;
  }
  static int64_t front(uint64_t t) { return static_cast<int64_t>(t >> kBits & kMask); }
  static int64_t back(uint64_t t) { return static_cast<int64_t>(t & kMask); }
};

using Task = void (*)(void* ctx, int64_t i);

struct Pool;
struct Worker {
  Pool* pool = nullptr;
  int id = 0;  // 1-based: the caller of a job is 0
  alignas(64) std::atomic<uint32_t> asleep{0};
};

// Never freed: workers may still look at it while the process exits.
struct Pool {
  std::atomic<bool> taken{false};
  int workers = 0;           // started so far; only whoever has taken the pool looks
  bool cannot_grow = false;  // the system refused a thread

  alignas(64) std::atomic<uint32_t> epoch{0};
  std::atomic<Task> task{nullptr};
  std::atomic<void*> ctx{nullptr};
  std::atomic<int> team{1};
  std::atomic<int> cpu{-1};  // the caller's
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) Event done;  // tasks that workers have finished
  Worker members[kMaxThreads];

  void grow(int count);
  std::atomic<int64_t> busy_ns{0};  // of the current job's members, while somebody measures

  void run(int64_t n, int team_size, Task t, void* c);
  uint32_t work(int id);
  uint32_t run_tasks(int id);
};

// The first one is everybody's, the others belong to one run at a time. A run that finds all of
// them taken shares the first one.
constexpr int kPools = 1 + kMaxThreads;
std::atomic<Pool*> g_pools[kPools];
std::atomic<int> g_threads{0};  // 0: not yet read
thread_local bool t_inside = false;
thread_local bool t_from_back = false;
thread_local int t_fixed_threads = 0;
thread_local int t_threads_of_runs = 0;  // 0: as all others
thread_local Pool* t_pool = nullptr;     // of the run that is going on, if it has its own

// Claims and runs tasks until none is left; returns how many. All of them belong to one job: it
// can't end before they are counted in `done`.
uint32_t Pool::run_tasks(int id) {
  uint32_t count = 0;
  uint64_t t = ticket.load(std::memory_order_acquire);
  for (;;) {
    const int64_t front = Ticket::front(t), back = Ticket::back(t);
    if (front >= back) return count;
    // The job that `t` is of was alive when `t` was read. If the next one has begun to overwrite
    // these, the ticket has changed too and the exchange below fails.
    const Task run_task = task.load(std::memory_order_acquire);
    void* const run_ctx = ctx.load(std::memory_order_acquire);
    if (id >= team.load(std::memory_order_acquire)) return count;
    const bool from_back = id & 1;
    const uint64_t next = from_back ? t - 1 : t + (uint64_t{1} << Ticket::kBits);
    if (!ticket.compare_exchange_weak(t, next, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    run_task(run_ctx, from_back ? back - 1 : front);
    ++count;
    t = ticket.load(std::memory_order_acquire);
  }
}

// As run_tasks; counts the time while somebody measures.
uint32_t Pool::work(int id) {
  if (!g_profiling.load(std::memory_order_relaxed)) return run_tasks(id);
  const int64_t began = now_ns() - t_waited_ns;
  const uint32_t count = run_tasks(id);
  if (count > 0) busy_ns.fetch_add(now_ns() - t_waited_ns - began);
  return count;
}

// Leaves a CPU for any other that this thread may run on.
void leave(int cpu) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  if (sched_setaffinity(0, sizeof others, &others) == 0) {
    sched_setaffinity(0, sizeof allowed, &allowed);
  }
}

void* worker_main(void* arg) {
  Worker& self = *static_cast<Worker*>(arg);
  Pool& pool = *self.pool;
  t_inside = true;
  t_from_back = self.id & 1;
  uint32_t seen = 0;
  int64_t looked = now_ns(), idle_since = looked, moved = 0;
  Patience patience;
  for (;;) {
    const int64_t spin = patience.spin_ns();
    int64_t idle = 0, longest_look = 0;
    for (int i = 1; pool.epoch.load(std::memory_order_acquire) == seen; ++i) {
      pause_cpu();
      if (i % kPausesPerClock != 0) continue;
      const int64_t now = now_ns();
      longest_look = std::max(longest_look, now - looked);
      looked = now;
      idle = now - idle_since;
      if (idle < spin) continue;
      // Sequentially consistent with run(): either it sees us asleep or we see its epoch.
      self.asleep.store(1);
      if (pool.epoch.load() == seen) {
        while (self.asleep.load() == 1) sleep_while_equal(self.asleep, 1);
        looked = now_ns();
        idle = looked - idle_since;
      } else {
        self.asleep.store(0);
      }
    }
    // Who lost its core is mostly back only when the gap is over.
    if (patience.tried()) longest_look = std::max(longest_look, now_ns() - looked);
    patience.note_gap(idle, longest_look);
    seen = pool.epoch.load(std::memory_order_acquire);
    // Linux may wake a thread on its waker's CPU and leave both there for tenths of a second,
    // though others are idle.
    const int cpu = sched_getcpu();
    if (cpu == pool.cpu.load(std::memory_order_relaxed) && now_ns() - moved > kMoveNs) {
      leave(cpu);
      moved = now_ns();
    }
    const uint32_t count = pool.work(self.id);
    if (count > 0) pool.done.add(count);
    // Those outside the team go to sleep even while small jobs follow each other closely.
    looked = now_ns();
    if (self.id < pool.team.load(std::memory_order_relaxed)) idle_since = looked;
  }
  return nullptr;
}

void Pool::grow(int count) {
  while (workers < count && !cannot_grow) {
    Worker& w = members[workers + 1];
    w.pool = this;
    w.id = workers + 1;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigset_t all, old;  // signals are the host's threads' business
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    if (pthread_create(&thread, &attr, worker_main, &w) == 0) {
      ++workers;
      pthread_setname_np(thread, "edgecompile");
    } else {
      cannot_grow = true;
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    pthread_attr_destroy(&attr);
  }
}

void Pool::run(int64_t n, int team_size, Task t, void* c) {
  const int64_t began = g_profiling.load(std::memory_order_relaxed) ? now_ns() : 0;
  const uint32_t e = epoch.load(std::memory_order_relaxed) + 1;
  busy_ns.store(0, std::memory_order_relaxed);
  done.reset();
  task.store(t, std::memory_order_release);
  ctx.store(c, std::memory_order_release);
  cpu.store(sched_getcpu(), std::memory_order_relaxed);
  team.store(team_size, std::memory_order_release);
  ticket.store(Ticket::make(e, 0, static_cast<uint64_t>(n)), std::memory_order_release);
  epoch.store(e);
  for (int i = 1; i < team_size; ++i) {
    std::atomic<uint32_t>& asleep = members[i].asleep;
    if (asleep.load() && asleep.exchange(0)) wake(asleep, 1);
  }

  const uint32_t others = static_cast<uint32_t>(n) - work(0);
  for (uint32_t finished = done.value(); finished != others; finished = done.value()) {
    done.wait_change(finished);
  }
  if (began == 0) return;
  t_regions.count += 1;
  t_regions.ns += now_ns() - began;
  t_regions.busy_ns += busy_ns.load();
}

// ---- Taking the pool ----------------------------------------------------------------------------

void forget_pools_in_child() {
  for (auto& pool : g_pools) pool.store(nullptr, std::memory_order_relaxed);
  t_pool = nullptr;  // its workers exist in the parent only
  t_inside = false;
}

// Pool number i, made where there is none yet; null without memory.
Pool* find_pool(int i) {
  Pool* pool = g_pools[i].load(std::memory_order_acquire);
  if (pool != nullptr) return pool;
  static std::atomic<bool> registered{false};
  if (!registered.exchange(true)) pthread_atfork(nullptr, nullptr, forget_pools_in_child);
  Pool* fresh = new (std::nothrow) Pool;
  if (fresh == nullptr) return nullptr;
  if (g_pools[i].compare_exchange_strong(pool, fresh)) return fresh;
  delete fresh;
  return pool;
}

bool take(Pool* pool) {
  return !pool->taken.load(std::memory_order_relaxed) &&
         !pool->taken.exchange(true, std::memory_order_acquire);
}

// A pool for one run; null where all are taken.
Pool* take_pool() {
  for (int i = 1; i < kPools; ++i) {
    Pool* const pool = find_pool(i);
    if (pool == nullptr) return nullptr;
    if (take(pool)) return pool;
  }
  return nullptr;
}

// The run's pool, or everybody's if it is free, with at least one worker. Null: nested, taken by
// another host thread, one thread.
class Lease {
 public:
  explicit Lease(int wanted) {
    if (t_inside || wanted < 2) return;
    const int limit = num_threads();
    if (limit < 2) return;
    Pool* const pool = t_pool != nullptr ? t_pool : find_pool(0);
    if (pool == nullptr || (pool != t_pool && !take(pool))) return;
    team = wanted < limit ? wanted : limit;
    pool->grow(team - 1);
    if (team > pool->workers + 1) team = pool->workers + 1;
    if (team < 2) {
      give_back(pool);
      return;
    }
    pool_ = pool;
    t_inside = true;
  }
  ~Lease() {
    if (pool_ == nullptr) return;
    t_inside = false;
    give_back(pool_);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Pool* operator->() const { return pool_; }
  explicit operator bool() const { return pool_ != nullptr; }

  int team = 1;

 private:
  static void give_back(Pool* pool) {
    if (pool != t_pool) pool->taken.store(false, std::memory_order_release);
  }

  Pool* pool_ = nullptr;
};

// Adds its life to the time that this thread has waited, while somebody measures.
class WaitTimer {
 public:
  WaitTimer() : began_(g_profiling.load(std::memory_order_relaxed) ? now_ns() : 0) {}
  ~WaitTimer() {
    if (began_ != 0) t_waited_ns += now_ns() - began_;
  }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  const int64_t began_;
};

}  // namespace

int num_threads() {
  if (t_fixed_threads != 0) return t_fixed_threads;
  int n = g_threads.load(std::memory_order_relaxed);
  if (n == 0) {
    n = default_threads();
    g_threads.store(n, std::memory_order_relaxed);
  }
  return n;
}

void set_num_threads(int n) {
  if (n <= 0) n = default_threads();
  g_threads.store(n < kMaxThreads ? n : kMaxThreads, std::memory_order_relaxed);
}

void set_threads_of_runs(int n) {
  t_threads_of_runs = n < 0 ? 0 : n < kMaxThreads ? n : kMaxThreads;
}

FixedThreads::FixedThreads() : outer_(t_fixed_threads) {
  t_fixed_threads = outer_ == 0 && t_threads_of_runs != 0 ? t_threads_of_runs : num_threads();
  if (outer_ == 0 && t_threads_of_runs > 1) t_pool = take_pool();
  has_pool_ = outer_ == 0 && t_pool != nullptr;
}
FixedThreads::~FixedThreads() {
  t_fixed_threads = outer_;
  if (!has_pool_ || t_pool == nullptr) return;  // a fork took it
  t_pool->taken.store(false, std::memory_order_release);
  t_pool = nullptr;
}

bool takes_from_back() { return t_from_back; }

bool in_parallel() { return t_inside; }

void parallel_for(int64_t n, void (*task)(void* ctx, int64_t i), void* ctx) {
  if (n > 1) {
    const int wanted = n < kMaxThreads ? static_cast<int>(n) : kMaxThreads;
    if (Lease lease{wanted}) {
      if (n <= Ticket::kMaxTasks) return lease->run(n, lease.team, task, ctx);
      // More tasks than a ticket can number: in runs of equal length.
      struct Runs {
        void (*task)(void*, int64_t);
        void* ctx;
        int64_t n, length;
      } runs{task, ctx, n, n / Ticket::kMaxTasks + 1};
      const auto run_many = [](void* c, int64_t i) {
        const Runs& r = *static_cast<Runs*>(c);
        const int64_t end = (i + 1) * r.length < r.n ? (i + 1) * r.length : r.n;
        for (int64_t j = i * r.length; j < end; ++j) r.task(r.ctx, j);
      };
      return lease->run((n + runs.length - 1) / runs.length, lease.team, run_many, &runs);
    }
  }
  for (int64_t i = 0; i < n; ++i) task(ctx, i);
}

void run_team(int wanted, void (*begin)(void* ctx, int members),
              void (*body)(void* ctx, int member, int members), void* ctx) {
  if (Lease lease{wanted}) {
    begin(ctx, lease.team);
    struct Team {
      void (*body)(void*, int, int);
      void* ctx;
      int members;
    } team{body, ctx, lease.team};
    const auto run_member = [](void* c, int64_t i) {
      const Team& t = *static_cast<Team*>(c);
      t.body(t.ctx, static_cast<int>(i), t.members);
    };
    return lease->run(lease.team, lease.team, run_member, &team);
  }
  begin(ctx, 1);
  body(ctx, 0, 1);
}

void sleep_while_equal(const std::atomic<uint32_t>& word, uint32_t value) {
  static_assert(sizeof word == sizeof(uint32_t));
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(const std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void Event::wait_change(uint32_t old) {
  const WaitTimer timer;
  int64_t until = 0;
  for (int i = 1; value_.load(std::memory_order_acquire) == old; ++i) {
    pause_cpu();
    if (i % kPausesPerClock != 0) continue;
    const int64_t now = now_ns();
    if (until == 0) until = now + kJoinSpinNs;
    if (now < until) continue;
    // Sequentially consistent with add(): either it sees the sleeper or the kernel its new value.
    sleepers_.fetch_add(1);
    sleep_while_equal(value_, old);
    sleepers_.fetch_sub(1);
    return;
  }
}

void Event::add(uint32_t amount) {
  value_.fetch_add(amount);
  if (sleepers_.load() != 0) wake(value_, kMaxThreads);
}

}  // namespace ec
