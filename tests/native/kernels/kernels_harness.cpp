// Plain C entry points to the kernels and the pool, for tests through ctypes.
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "base/export.h"
#include "kernels/attention/attention.h"
#include "kernels/convolution/convolution.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/narrow/gemm_bf16_pairs.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "kernels/gemm/packed_rows.h"
#include "threads/patience.h"
#include "threads/threads.h"
#if defined(__AMX_TILE__)
#include "kernels/gemm/narrow/amx_tiles.h"
#endif

using namespace ec;

EC_API int64_t t_packed_elements(int64_t n, int64_t k) { return packed_elements(n, k); }
EC_API void t_pack_b(const float* b, int64_t sk, int64_t sn, int64_t k, int64_t n, float* out) {
  pack_b(b, sk, sn, k, n, out);
}
EC_API void t_set_num_threads(int n) { set_num_threads(n); }
EC_API int t_num_threads() { return num_threads(); }

EC_API void t_gemm_packed(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                          const float* b, float* c, int64_t ldc, const Epilogue* e) {
  gemm_packed(m, n, k, a, lda, b, c, ldc, *e);
}
EC_API void t_gemm_batched(int64_t batch, int64_t m, int64_t n, int64_t k, const float* a,
                           int64_t a_batch, int64_t a_row, int64_t a_col, const float* b,
                           int64_t b_batch, int64_t b_row, int64_t b_col, float* c, int64_t c_batch,
                           int64_t ldc, const Epilogue* e) {
  gemm_batched(batch, m, n, k, a, a_batch, a_row, a_col, b, b_batch, b_row, b_col, c, c_batch, ldc,
               *e);
}
EC_API int64_t t_packed_elements_bf16(int64_t n, int64_t k) { return packed_elements_bf16(n, k); }
EC_API int64_t t_packed_elements_int8(int64_t n, int64_t k) { return packed_elements_int8(n, k); }
EC_API int64_t t_packed_elements_int8_halves(int64_t n, int64_t k) {
  return packed_elements_int8_halves(n, k);
}
EC_API int64_t t_packed_elements_int4(int64_t n, int64_t k) { return packed_elements_int4(n, k); }
// Whether products may use tiles: 1 or 0, or -1 in builds that have none.
EC_API int t_amx_permitted() {
#if defined(__AMX_TILE__)
  return amx_permitted();
#else
  return -1;
#endif
}
EC_API bool t_bf16_rounds_a() { return bf16_rounds_a(); }
EC_API void t_gemm_bf16(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                        const uint16_t* b, float* c, int64_t ldc, const Epilogue* e) {
  gemm_bf16(m, n, k, a, lda, b, c, ldc, *e);
}
EC_API int t_int8_row_steps() { return static_cast<int>(int8_row_steps(false)); }
EC_API int t_int8_pairs_row_steps() { return static_cast<int>(int8_row_steps(true)); }
EC_API void t_gemm_int8(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                        const int8_t* b, int64_t panel, float* c, int64_t ldc, const Epilogue* e) {
  gemm_int8(m, n, k, a, lda, b, panel, c, ldc, *e);
}
EC_API void t_gemm_int8_pairs(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                              const int8_t* b, int64_t panel, float* c, int64_t ldc,
                              const Epilogue* e) {
  gemm_int8(m, n, k, a, lda, b, panel, c, ldc, *e, true);
}
EC_API int t_int4_row_steps() { return static_cast<int>(int4_row_steps()); }
EC_API void t_gemm_int4(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                        const uint8_t* b, int64_t panel, float* c, int64_t ldc, const Epilogue* e) {
  gemm_int4(m, n, k, a, lda, b, panel, c, ldc, *e);
}
EC_API void t_packed_row_fp32(const float* packed, int64_t k, int64_t n, float* out) {
  packed_row(packed, k, n, out);
}
EC_API void t_packed_row_bf16(const uint16_t* packed, int64_t k, int64_t n, float* out) {
  packed_row_bf16(packed, k, n, out);
}
EC_API void t_packed_row_int8(const int8_t* packed, int64_t panel, int64_t k, int64_t n,
                              float* out) {
  packed_row_int8(packed, panel, k, n, out);
}
EC_API void t_packed_row_int4(const uint8_t* packed, int64_t panel, int64_t k, int64_t n,
                              float* out) {
  packed_row_int4(packed, panel, k, n, out);
}
// Lets this thread take denormal floats for zeros, as hosts may; false: the CPU has no such mode.
EC_API bool t_flush_denormals([[maybe_unused]] bool on) {
#if defined(__SSE2__)
  constexpr unsigned kFlushAndZero = 0x8040;
  _mm_setcsr(on ? _mm_getcsr() | kFlushAndZero : _mm_getcsr() & ~kFlushAndZero);
  return true;
#else
  return false;
#endif
}
EC_API bool t_is_int8_panel(int64_t k, int64_t bytes) { return is_int8_panel(k, bytes); }
EC_API bool t_is_int4_panel(int64_t k, int64_t bytes) { return is_int4_panel(k, bytes); }
EC_API bool t_attention_rounds() {
#if EC_BF16_PAIRS
  return pairs_pay();
#else
  return false;
#endif
}
EC_API void t_attention(const AttentionArgs* args) { attention(*args); }

// `axes`: in, out, kernel, stride, dilation and padding for each of three axes.
EC_API void t_convolve(int64_t batch, int64_t groups, int64_t in, int64_t out_channels,
                       bool transposed, int64_t tile, const int64_t* axes, const float* x,
                       const float* packed, const Epilogue* epilogue, float* out) {
  Convolution c;
  c.batch = batch, c.groups = groups, c.channels_in = in, c.channels_out = out_channels;
  c.transposed = transposed;
  c.tile = tile;
  for (ConvAxis& axis : c.axes) {
    axis = {axes[0], axes[1], axes[2], axes[3], axes[4], axes[5]};
    axes += 6;
  }
  convolve(c, x, packed, *epilogue, out);
}

// How often each task ran, for a job of n tasks with a little work in each.
// How long a worker waits awake after gaps of (ns, longest look).
EC_API int64_t t_patience(const int64_t* gaps, int64_t n) {
  Patience patience;
  for (int64_t i = 0; i < n; ++i) patience.note_gap(gaps[2 * i], gaps[2 * i + 1]);
  return patience.spin_ns();
}

EC_API void t_count_tasks(int64_t n, int32_t* counts, int64_t spin) {
  parallel_for(n, [&](int64_t i) {
    for (volatile int64_t x = 0; x < spin;) x = x + 1;
    __atomic_fetch_add(&counts[i], 1, __ATOMIC_RELAXED);
  });
}

// `jobs` small jobs after each other; returns how many had a wrong sum.
EC_API int64_t t_many_jobs(int64_t jobs, int64_t n) {
  int64_t wrong = 0;
  std::vector<int64_t> out(static_cast<size_t>(n));
  for (int64_t j = 0; j < jobs; ++j) {
    parallel_for(n, [&](int64_t i) { out[static_cast<size_t>(i)] = i * j; });
    for (int64_t i = 0; i < n; ++i) wrong += out[static_cast<size_t>(i)] != i * j;
  }
  return wrong;
}

// `hosts` host threads that all use the pool at once.
EC_API int64_t t_concurrent_hosts(int hosts, int64_t jobs, int64_t n) {
  std::atomic<int64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int h = 0; h < hosts; ++h) {
    threads.emplace_back([&] { wrong += t_many_jobs(jobs, n); });
  }
  for (auto& t : threads) t.join();
  return wrong;
}

// `hosts` host threads, each with `threads` of its own for as long as its run goes on; all of their
// teams are whole at the same time. Returns the violations.
EC_API int64_t t_side_by_side(int hosts, int threads, int rounds) {
  std::atomic<int64_t> wrong{0};
  std::atomic<int> inside{0};
  std::vector<std::thread> callers;
  for (int h = 0; h < hosts; ++h) {
    callers.emplace_back([&] {
      set_threads_of_runs(threads);
      for (int round = 1; round <= rounds; ++round) {
        const FixedThreads run;
        if (num_threads() != threads) ++wrong;
        struct Ctx {
          std::atomic<int>& inside;
          std::atomic<int64_t>& wrong;
          int want, all;
        } ctx{inside, wrong, threads, round * hosts * threads};
        run_team(
            threads,
            [](void* c, int members) {
              Ctx& x = *static_cast<Ctx*>(c);
              if (members != x.want) ++x.wrong, x.all = 0;  // and waits for nobody
            },
            [](void* c, int, int) {
              Ctx& x = *static_cast<Ctx*>(c);
              ++x.inside;
              while (x.inside.load() < x.all && x.wrong.load() == 0) std::this_thread::yield();
            },
            &ctx);
        if (t_many_jobs(20, 9) != 0) ++wrong;
      }
      set_threads_of_runs(0);
      const FixedThreads run;
      if (num_threads() != t_num_threads()) ++wrong;
    });
  }
  for (auto& caller : callers) caller.join();
  return wrong;
}

// Jobs inside a job run serially and in order on their task's thread; returns the violations.
EC_API int64_t t_nested(int64_t outer, int64_t inner) {
  std::atomic<int64_t> wrong{0};
  parallel_for(outer, [&](int64_t) {
    int64_t expected = 0;
    const auto self = std::this_thread::get_id();
    parallel_for(inner, [&](int64_t j) {
      if (j != expected++ || std::this_thread::get_id() != self) ++wrong;
    });
    if (expected != inner) ++wrong;
  });
  return wrong;
}

// The CPUs of the two members of a team that wait for each other.
EC_API void t_cpus_of_two(int* cpus) {
  struct Two {
    int* cpus;
    Event arrived;
  } two{cpus, {}};
  run_team(
      2, [](void*, int) {},
      [](void* ctx, int member, int members) {
        Two& two = *static_cast<Two*>(ctx);
        two.cpus[member] = sched_getcpu();
        two.arrived.add(1);
        for (uint32_t seen = 0; seen < static_cast<uint32_t>(members);) {
          seen = two.arrived.value();
          if (seen < static_cast<uint32_t>(members)) two.arrived.wait_change(seen);
        }
      },
      &two);
}

// A team whose members wait for each other `rounds` times; returns the violations.
EC_API int64_t t_team_barriers(int wanted, int rounds, int* members_out) {
  struct Shared {
    Event passed;
    std::atomic<int> arrived{0};
    std::atomic<int> started{0};
    std::atomic<int64_t> wrong{0};
    std::atomic<int> counter{0};
    int rounds = 0, members = 0;
  } s;
  s.rounds = rounds;
  run_team(
      wanted, [](void* ctx, int members) { static_cast<Shared*>(ctx)->members = members; },
      [](void* ctx, int, int members) {
        Shared& s = *static_cast<Shared*>(ctx);
        for (int r = 0; r < s.rounds; ++r) {
          ++s.counter;
          const uint32_t passed = s.passed.value();
          if (++s.arrived == members) {
            if (s.counter != members * (r + 1)) ++s.wrong;
            s.arrived = 0;
            s.passed.add(1);
          } else {
            while (s.passed.value() == passed) s.passed.wait_change(passed);
          }
        }
      },
      &s);
  *members_out = s.members;
  return s.wrong + (s.counter != s.members * rounds);
}
