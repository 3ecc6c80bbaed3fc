// The part of libgomp's interface that g++ -fopenmp calls, on our own pool: parallel regions,
// worksharing loops (static ones need nothing, the compiler inlines them), single, barrier,
// critical and atomic sections, and the queries of omp.h.
//
// Names and meanings: "The libgomp ABI" in GCC's libgomp manual, and libgomp/libgomp_g.h for the
// argument lists. Exported as ec_<name>; the build renames the model's references. A construct that
// isn't here (tasks, sections, ordered, copyprivate) is reported at build as a missing symbol.
#include "threads/openmp.h"

#include <sched.h>
#include <setjmp.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/export.h"
#include "base/profile.h"
#include "base/status.h"
#include "threads/threads.h"

namespace ec {
namespace {

using Body = void (*)(void*);

// A lock in one word that may start as zeroed memory, as the compiler's named critical sections
// do. 0 free, 1 held, 2 held and perhaps waited for.
class Lock {
 public:
  void lock() {
    for (int i = 0; i < 100; ++i) {
      uint32_t expected = 0;
      if (word_.compare_exchange_weak(expected, 1, std::memory_order_acquire)) return;
    }
    while (word_.exchange(2, std::memory_order_acquire) != 0) sleep_while_equal(word_, 2);
  }
  void unlock() {
    if (word_.exchange(0, std::memory_order_release) == 2) wake(word_, 1);
  }

 private:
  std::atomic<uint32_t> word_{0};
};

// One dynamically scheduled loop of a team, as iterations 0 .. count-1; the loop variable is
// start + i·step in 64-bit arithmetic that wraps, which serves every type of loop variable.
struct Loop {
  uint64_t start = 0, end = 0, step = 1, count = 0, chunk = 1;
  bool guided = false;
  std::atomic<uint64_t> next{0};
  uint32_t sequence = 0;           // which of the team's loops this is, from 1; under Team::lock
  std::atomic<uint32_t> users{0};  // members that have not finished with it

  bool claim(uint32_t members, uint64_t* first, uint64_t* last) {
    uint64_t i = next.load(std::memory_order_relaxed), length;
    do {
      if (i >= count) return false;
      length = chunk;
      if (guided && (count - i) / members > chunk) length = (count - i) / members;
      if (length > count - i) length = count - i;
    } while (!next.compare_exchange_weak(i, i + length, std::memory_order_relaxed));
    *first = start + i * step;
    // The very last bound is the loop's own: the compiler's code for lastprivate compares with it.
    *last = i + length == count ? end : start + (i + length) * step;
    return true;
  }
};

// With `nowait` the members of a team may be in different loops at once, in at most so many.
constexpr uint32_t kLoops = 8;

struct Team {
  uint32_t members = 1;
  bool apart = false;                // members need not wait for each other
  std::atomic<uint32_t> arrived{0};  // at the barrier
  Event barriers;                    // passed so far
  std::atomic<uint32_t> singles{0};  // single constructs that a member has taken
  Lock lock;
  Loop loops[kLoops];
  std::atomic<bool> abandoned{false};
  char message[256];  // why; written by the member that gave up first
};

struct Member {
  Team* team = nullptr;
  int id = 0;
  uint32_t singles = 0, loops = 0;  // constructs that this member has come to
  jmp_buf exit;                     // out of the region, see abandon_region
};
thread_local Member* t_member = nullptr;

// Outside any parallel region: a member of a team of one.
Member& current() {
  if (t_member != nullptr) return *t_member;
  static thread_local Team alone;
  static thread_local Member self;
  self.team = &alone;
  return self;
}

// Runs body(data) on every member of a new team; `loops` of its loops are already set up.
void run_region(Body body, void* data, unsigned wanted, Team& team, uint32_t loops) {
  struct Region {
    Body body;
    void* data;
    Team* team;
    uint32_t loops;
  } region{body, data, &team, loops};
  const auto run_member = [](void* ctx, int id, int) {
    const Region& r = *static_cast<Region*>(ctx);
    Member member;
    member.team = r.team;
    member.id = id;
    member.loops = r.loops;
    Member* const outer = t_member;
    t_member = &member;
    if (_setjmp(member.exit) == 0) r.body(r.data);
    t_member = outer;
  };
  const auto set_size = [](void* ctx, int members) {
    Team& t = *static_cast<Region*>(ctx)->team;
    t.members = static_cast<uint32_t>(members);
    for (Loop& loop : t.loops) {
      if (loop.sequence != 0) loop.users.store(t.members, std::memory_order_relaxed);
    }
  };
  const int n = wanted != 0 && wanted < (1u << 20) ? static_cast<int>(wanted) : num_threads();
  {
    const WorkTimer timer(Work::kLoops, {});  // gone before what follows jumps out of here
    if (team.apart) {
      set_size(&region, n);
      parallel_for(n, [&](int64_t id) { run_member(&region, static_cast<int>(id), n); });
    } else {
      run_team(n, set_size, run_member, &region);
    }
  }
  if (team.abandoned.load(std::memory_order_acquire)) {
    abandon_region(team.message);  // of an outer region, if there is one
    set_pending_failure(team.message);
  }
}

void leave_if_abandoned(const Team& team) {
  if (team.abandoned.load(std::memory_order_acquire)) _longjmp(t_member->exit, 1);
}

void pass_barrier(Team& team) {
  if (team.members == 1 || team.apart) return;
  const uint32_t passed = team.barriers.value();
  leave_if_abandoned(team);
  if (team.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == team.members) {
    team.arrived.store(0, std::memory_order_relaxed);
    team.barriers.add(1);
  } else {
    while (team.barriers.value() == passed) team.barriers.wait_change(passed);
    leave_if_abandoned(team);
  }
}

// ---- Dynamic loops ------------------------------------------------------------------------------

void describe(Loop& loop, bool up, uint64_t start, uint64_t end, uint64_t step, uint64_t chunk,
              bool guided, bool empty) {
  const uint64_t distance = up ? end - start : start - end;
  const uint64_t stride = up ? step : uint64_t{0} - step;
  loop.start = start;
  loop.end = end;
  loop.step = step;
  loop.count = empty || stride == 0 ? 0 : (distance - 1) / stride + 1;
  loop.chunk = chunk < 1 ? 1 : chunk;
  loop.guided = guided;
  loop.next.store(0, std::memory_order_relaxed);
}

// The current member's next loop, described by whichever member comes first.
template <class Describe>
void enter_loop(const Describe& describe_loop) {
  Member& m = current();
  Team& team = *m.team;
  const uint32_t sequence = ++m.loops;
  Loop& loop = team.loops[sequence % kLoops];
  for (;;) {
    team.lock.lock();
    if (loop.sequence == sequence) break;
    if (loop.users.load(std::memory_order_acquire) == 0) {
      describe_loop(loop);
      loop.sequence = sequence;
      loop.users.store(team.members, std::memory_order_relaxed);
      break;
    }
    team.lock.unlock();  // a member is still in the loop that used this place before
    leave_if_abandoned(team);
    sched_yield();
  }
  team.lock.unlock();
}

template <class T>
bool next_chunk(T* first, T* last) {
  Member& m = current();
  uint64_t a, b;
  if (!m.team->loops[m.loops % kLoops].claim(m.team->members, &a, &b)) return false;
  *first = static_cast<T>(a);
  *last = static_cast<T>(b);
  return true;
}

void describe_signed(Loop& loop, long start, long end, long step, long chunk, bool guided) {
  const bool up = step > 0;
  describe(loop, up, static_cast<uint64_t>(start), static_cast<uint64_t>(end),
           static_cast<uint64_t>(step), chunk < 1 ? 1 : static_cast<uint64_t>(chunk), guided,
           up ? start >= end : start <= end);
}

bool start_loop(long start, long end, long step, long chunk, bool guided, long* first, long* last) {
  enter_loop([&](Loop& l) { describe_signed(l, start, end, step, chunk, guided); });
  return next_chunk(first, last);
}

using Ull = unsigned long long;
bool start_loop_ull(bool up, Ull start, Ull end, Ull step, Ull chunk, bool guided, Ull* first,
                    Ull* last) {
  enter_loop([&](Loop& l) {
    describe(l, up, start, end, step, chunk, guided, up ? start >= end : start <= end);
  });
  return next_chunk(first, last);
}

void run_loop_region(Body body, void* data, unsigned wanted, long start, long end, long step,
                     long chunk, bool guided) {
  Team team;
  describe_signed(team.loops[1], start, end, step, chunk, guided);
  team.loops[1].sequence = 1;
  run_region(body, data, wanted, team, 1);
}

void leave_loop() {
  Member& m = current();
  m.team->loops[m.loops % kLoops].users.fetch_sub(1, std::memory_order_acq_rel);
}

// What g++ hands over for proc_bind(close), which the build writes at reductions: each member adds
// up its own share, and the shares are added in order. So there are as many as threads are set, by
// however few they are run: the result must not depend on who else computes at the time.
constexpr unsigned kClose = 3;

Lock g_critical, g_atomic;
static_assert(sizeof(Lock) <= sizeof(void*));

}  // namespace

void abandon_region(const char* message) {
  if (t_member == nullptr) return;
  Team& team = *t_member->team;
  team.lock.lock();
  if (!team.abandoned.load(std::memory_order_relaxed)) {
    strncpy(team.message, message, sizeof team.message - 1);
    team.message[sizeof team.message - 1] = '\0';
    team.abandoned.store(true, std::memory_order_release);
  }
  team.lock.unlock();
  team.barriers.add(1);
  _longjmp(t_member->exit, 1);
}

}  // namespace ec

using ec::Ull;

// ---- Regions, barrier, single -------------------------------------------------------------------

EC_API void ec_GOMP_parallel(ec::Body body, void* data, unsigned num_threads, unsigned binding) {
  ec::Team team;
  team.apart = binding == ec::kClose;
  ec::run_region(body, data, num_threads, team, 0);
}

EC_API void ec_GOMP_barrier() { ec::pass_barrier(*ec::current().team); }

// True for the first member to come to this single construct.
EC_API bool ec_GOMP_single_start() {
  ec::Member& m = ec::current();
  uint32_t mine = m.singles++;
  return m.team->singles.compare_exchange_strong(mine, mine + 1, std::memory_order_acq_rel);
}

// ---- Loops --------------------------------------------------------------------------------------

// Each schedule has the same four entry points, under two names.
#define EC_LOOP(schedule, guided)                                                               \
  EC_API bool ec_GOMP_loop_##schedule##_start(long start, long end, long step, long chunk,      \
                                              long* first, long* last) {                        \
    return ec::start_loop(start, end, step, chunk, guided, first, last);                        \
  }                                                                                             \
  EC_API bool ec_GOMP_loop_##schedule##_next(long* first, long* last) {                         \
    return ec::next_chunk(first, last);                                                         \
  }                                                                                             \
  EC_API bool ec_GOMP_loop_ull_##schedule##_start(bool up, Ull start, Ull end, Ull step,        \
                                                  Ull chunk, Ull* first, Ull* last) {           \
    return ec::start_loop_ull(up, start, end, step, chunk, guided, first, last);                \
  }                                                                                             \
  EC_API bool ec_GOMP_loop_ull_##schedule##_next(Ull* first, Ull* last) {                       \
    return ec::next_chunk(first, last);                                                         \
  }                                                                                             \
  EC_API void ec_GOMP_parallel_loop_##schedule(ec::Body body, void* data, unsigned num_threads, \
                                               long start, long end, long step, long chunk,     \
                                               unsigned) {                                      \
    ec::run_loop_region(body, data, num_threads, start, end, step, chunk, guided);              \
  }
EC_LOOP(dynamic, false)
EC_LOOP(nonmonotonic_dynamic, false)
EC_LOOP(guided, true)
EC_LOOP(nonmonotonic_guided, true)
#undef EC_LOOP

EC_API void ec_GOMP_loop_end_nowait() { ec::leave_loop(); }
EC_API void ec_GOMP_loop_end() {
  ec::leave_loop();
  ec::pass_barrier(*ec::current().team);
}

// ---- Mutual exclusion ---------------------------------------------------------------------------

EC_API void ec_GOMP_critical_start() { ec::g_critical.lock(); }
EC_API void ec_GOMP_critical_end() { ec::g_critical.unlock(); }
EC_API void ec_GOMP_critical_name_start(void** lock) { reinterpret_cast<ec::Lock*>(lock)->lock(); }
EC_API void ec_GOMP_critical_name_end(void** lock) { reinterpret_cast<ec::Lock*>(lock)->unlock(); }
EC_API void ec_GOMP_atomic_start() { ec::g_atomic.lock(); }
EC_API void ec_GOMP_atomic_end() { ec::g_atomic.unlock(); }

// ---- omp.h --------------------------------------------------------------------------------------

EC_API int ec_omp_get_thread_num() { return ec::t_member ? ec::t_member->id : 0; }
EC_API int ec_omp_get_num_threads() {
  return ec::t_member ? static_cast<int>(ec::t_member->team->members) : 1;
}
EC_API int ec_omp_get_max_threads() { return ec::num_threads(); }
EC_API int ec_omp_get_num_procs() { return ec::default_threads(); }
EC_API int ec_omp_get_thread_limit() { return ec::kMaxThreads; }
EC_API void ec_omp_set_num_threads(int n) { ec::set_num_threads(n > 0 ? n : 1); }
EC_API int ec_omp_in_parallel() { return ec::t_member && ec::t_member->team->members > 1; }
EC_API int ec_omp_get_dynamic() { return 0; }
EC_API void ec_omp_set_dynamic(int) {}
EC_API int ec_omp_get_nested() { return 0; }
EC_API void ec_omp_set_nested(int) {}
EC_API int ec_omp_get_max_active_levels() { return 1; }
EC_API double ec_omp_get_wtime() { return 1e-9 * static_cast<double>(ec::now_ns()); }
EC_API double ec_omp_get_wtick() { return 1e-9; }
