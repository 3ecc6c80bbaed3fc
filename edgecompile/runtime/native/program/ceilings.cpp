// The peaks of this machine, for comparison with what kernels do.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/clock.h"
#include "base/edgecompile_abi.h"
#include "base/status.h"
#include "math/simd.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int kRounds = 5;
constexpr int64_t kSteps = 400'000;                   // a few milliseconds of multiply-adds
constexpr int64_t kMemoryBytes = int64_t{192} << 20;  // of all threads: more than caches hold

// Ten sums keep two units of a latency of up to five cycles busy. A function of its own: with a
// call in sight the compiler would keep the sums in memory.
__attribute__((noinline)) void multiply_and_add(int64_t steps) {
  vf32 x = broadcast(0.999f), y = broadcast(1e-3f);
  keep_in_register(x);
  keep_in_register(y);
  vf32 a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{}, i{}, j{};
  for (int64_t step = 0; step < steps; ++step) {
    a = fma(a, x, y), b = fma(b, x, y), c = fma(c, x, y), d = fma(d, x, y), e = fma(e, x, y);
    f = fma(f, x, y), g = fma(g, x, y), h = fma(h, x, y), i = fma(i, x, y), j = fma(j, x, y);
    for (vf32* sum : {&a, &b, &c, &d, &e, &f, &g, &h, &i, &j}) keep_in_register(*sum);
  }
}

__attribute__((noinline)) void read_all(const float* from, int64_t count) {
  vf32 a{}, b{}, c{}, d{};
  for (int64_t i = 0; i + 4 * kFloatLanes <= count; i += 4 * kFloatLanes) {
    a += load(from + i), b += load(from + i + kFloatLanes);
    c += load(from + i + 2 * kFloatLanes), d += load(from + i + 3 * kFloatLanes);
  }
  a += b + c + d;
  keep_in_register(a);
}

// The most calls of f(member, members) a second, over several rounds in which each of `members`
// threads calls once: fewer than were asked for while somebody else uses the pool.
template <class F>
double most_calls(int threads, const F& f) {
  double most = 0;
  for (int round = 0; round < kRounds; ++round) {
    struct Round {
      const F& f;
      int members;
    } ctx{f, 1};
    const int64_t start = now_ns();
    run_team(
        threads, [](void* c, int members) { static_cast<Round*>(c)->members = members; },
        [](void* c, int member, int members) { static_cast<Round*>(c)->f(member, members); }, &ctx);
    most = std::max(most, 1e9 * ctx.members / static_cast<double>(now_ns() - start));
  }
  return most;
}

}  // namespace
}  // namespace ec

int32_t ec_measure_ceilings(double* flops, double* bytes) {
  return ec::guarded("ec_measure_ceilings", [&] {
    if (flops == nullptr || bytes == nullptr) ec::fail("null pointer");
    const int threads = ec::num_threads();
    const double calls =
        ec::most_calls(threads, [](int, int) { ec::multiply_and_add(ec::kSteps); });
    *flops = 2.0 * 10 * ec::kFloatLanes * static_cast<double>(ec::kSteps) * calls;

    struct Freed {
      void operator()(float* p) const { std::free(p); }
    };
    const std::unique_ptr<float, Freed> memory(
        static_cast<float*>(std::aligned_alloc(64, ec::kMemoryBytes)));
    if (memory == nullptr) throw std::bad_alloc();
    constexpr int64_t kCount = ec::kMemoryBytes / static_cast<int64_t>(sizeof(float));
    std::fill_n(memory.get(), kCount, 1.0f);  // pages that were never written share one of zeros
    const int64_t share = kCount / threads / 64 * 64;
    const double reads = ec::most_calls(
        threads, [&](int member, int) { ec::read_all(memory.get() + member * share, share); });
    *bytes = static_cast<double>(share) * sizeof(float) * reads;
  });
}
