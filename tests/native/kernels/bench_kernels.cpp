// Speed of the native kernels against this machine's multiply-add peak. Run by
// benchmarks/run kernels; prints one JSON object a line.
//
// Every figure is the best of several short rounds, which is what a quiet machine would give.
// "cold" products take a different B each time, out of more memory than caches hold: that is how a
// model's weights are met. "hot" ones use the same B again.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/convolution/convolution.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "math/simd.h"
#include "threads/threads.h"

using namespace ec;

namespace {

double g_budget = 0.03;  // seconds for one round
int g_rounds = 7;

clockid_t g_clock = CLOCK_MONOTONIC;

double now() {
  timespec t;
  clock_gettime(g_clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Best seconds per call of f(i), i counting up; `between` runs before each round.
template <class F, class G>
double best_time(const F& f, const G& between) {
  int64_t calls = 1, i = 0;
  f(i++);
  for (;;) {
    const double start = now();
    for (int64_t j = 0; j < calls; ++j) f(i++);
    if (now() - start > g_budget || calls > 1'000'000) break;
    calls *= 2;
  }
  double best = 1e30;
  for (int r = 0; r < g_rounds; ++r) {
    between();
    const double start = now();
    for (int64_t j = 0; j < calls; ++j) f(i++);
    const double t = (now() - start) / static_cast<double>(calls);
    if (t < best) best = t;
  }
  return best;
}

constexpr int kPeakSums = 12, kPeakSteps = 10'000;

// Independent multiply-adds on registers. A function of its own: with a call in sight the compiler
// keeps the sums in memory.
__attribute__((noinline)) float run_multiply_adds() {
  vf32 x = broadcast(0.999f), y = broadcast(1e-3f);
  keep_in_register(x);
  keep_in_register(y);
  vf32 s0{}, s1{}, s2{}, s3{}, s4{}, s5{}, s6{}, s7{}, s8{}, s9{}, s10{}, s11{};
  for (int i = 0; i < kPeakSteps; ++i) {
#define EC_STEP(s) s = fma(s, x, y), keep_in_register(s)
    EC_STEP(s0), EC_STEP(s1), EC_STEP(s2), EC_STEP(s3), EC_STEP(s4), EC_STEP(s5);
    EC_STEP(s6), EC_STEP(s7), EC_STEP(s8), EC_STEP(s9), EC_STEP(s10), EC_STEP(s11);
#undef EC_STEP
  }
  return reduce_add(s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7 + s8 + s9 + s10 + s11);
}

// GFLOP/s of the above for about `seconds`.
double fma_loop(double seconds) {
  volatile float sink = 0;
  int64_t runs = 0;
  const double start = now();
  double t;
  do {
    sink = run_multiply_adds();
    ++runs;
    t = now() - start;
  } while (t < seconds);
  static_cast<void>(sink);
  return 2.0 * kFloatLanes * kPeakSums * kPeakSteps * static_cast<double>(runs) / t / 1e9;
}

// The best peak seen in rounds that alternate with those of the kernel it is compared with: the
// clock and the neighbours change from second to second.
class Peak {
 public:
  explicit Peak(int threads) : threads_(threads) {}
  void operator()() {
    std::vector<double> each(static_cast<size_t>(threads_));
    run_team(
        threads_, [](void*, int) {},
        [](void* ctx, int member, int) {
          static_cast<double*>(ctx)[member] = fma_loop(g_budget / 2);
        },
        each.data());
    double sum = 0;
    for (double g : each) sum += g;
    if (sum > best_) best_ = sum;
  }
  double gflops() const { return best_; }

 private:
  int threads_;
  double best_ = 0;
};

// Aligned to cache lines, as a bundle's weights and the allocator's tensors are.
class Floats {
 public:
  // As pairs, both halves of a number are bfloat16 of a middling size, too: random ones would be
  // denormal now and then, which some CPUs take a hundred cycles for.
  explicit Floats(int64_t n, bool as_pairs = false)
      : data_(new (std::align_val_t{64}) float[static_cast<size_t>(n)]) {
    uint32_t x = 12345;
    for (int64_t i = 0; i < n; ++i) {
      x = x * 1664525u + 1013904223u;
      data_[i] = static_cast<float>(x >> 8) / 8388608.0f - 1.0f;
      if (!as_pairs) continue;
      uint32_t bits;
      std::memcpy(&bits, &data_[i], sizeof bits);
      bits = (bits & 0xffff0000u) | bits >> 16;
      std::memcpy(&data_[i], &bits, sizeof bits);
    }
  }
  ~Floats() { operator delete[](data_, std::align_val_t{64}); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* data() const { return data_; }

 private:
  float* data_;
};

enum class Weights { kFloat32, kBfloat16, kInt8, kInt8Pairs, kInt4 };
constexpr const char* kWeightNames[] = {"gemm_packed", "gemm_bf16", "gemm_int8", "gemm_int8_pairs",
                                        "gemm_int4"};

void bench_gemm(Weights weights, int threads, int64_t m, int64_t n, int64_t k, bool cold,
                Activation act) {
  const int64_t bytes = weights == Weights::kFloat32    ? 4 * packed_elements(n, k)
                        : weights == Weights::kBfloat16 ? 2 * packed_elements_bf16(n, k)
                        : weights == Weights::kInt4     ? packed_elements_int4(n, k)
                                                        : packed_elements_int8(n, k);
  const int64_t copies = cold ? (int64_t{96} << 20) / bytes + 1 : 1;
  static const Floats b((int64_t{128} << 20) / 4, /*as_pairs=*/true);
  const char* const memory = reinterpret_cast<const char*>(b.data());
  const Floats a(m * k), bias(n), c(m * n);
  Epilogue e;
  e.bias = bias.data();
  e.act = act;
  const auto run = [&](int64_t i) {
    const char* const from = memory + i % copies * bytes;
    if (weights == Weights::kFloat32) {
      gemm_packed(m, n, k, a.data(), k, reinterpret_cast<const float*>(from), c.data(), n, e);
    } else if (weights == Weights::kBfloat16) {
      gemm_bf16(m, n, k, a.data(), k, reinterpret_cast<const uint16_t*>(from), c.data(), n, e);
    } else if (weights == Weights::kInt4) {
      gemm_int4(m, n, k, a.data(), k, reinterpret_cast<const uint8_t*>(from),
                packed_elements_int4(1, k), c.data(), n, e);
    } else {
      gemm_int8(m, n, k, a.data(), k, reinterpret_cast<const int8_t*>(from),
                packed_elements_int8(1, k), c.data(), n, e, weights == Weights::kInt8Pairs);
    }
  };
  Peak peak(threads);
  const double t = best_time(run, [&] { peak(); });
  const double g = 2.0 * static_cast<double>(m * n * k) / t / 1e9;
  std::printf(
      "{\"kernel\": \"%s\", \"threads\": %d, \"b\": \"%s\", \"act\": %d, \"m\": %ld, "
      "\"n\": %ld, \"k\": %ld, \"us\": %.2f, \"gflops\": %.1f, \"of_peak\": %.3f, "
      "\"b_gb_per_s\": %.1f}\n",
      kWeightNames[static_cast<int>(weights)], threads, cold ? "cold" : "hot",
      static_cast<int>(act), static_cast<long>(m), static_cast<long>(n), static_cast<long>(k),
      t * 1e6, g, g / peak.gflops(), static_cast<double>(bytes) * 1e-9 / t);
  std::fflush(stdout);
}

void bench_attention(int threads, int64_t heads, int64_t length, int64_t dim, bool masked,
                     bool narrow) {
  const int64_t width = heads * dim;
  const Floats qkv(length * width * 3), out(length * width);
  std::vector<uint8_t> mask(static_cast<size_t>(length), 1);
  AttentionArgs args{};
  args.q = qkv.data();
  args.k = qkv.data() + width;
  args.v = qkv.data() + 2 * width;
  args.out = out.data();
  args.batch = 1;
  args.heads_q = args.heads_kv = heads;
  args.len_q = args.len_k = length;
  args.dim = args.dim_v = dim;
  for (int64_t* s : {args.q_strides, args.k_strides, args.v_strides}) {
    s[0] = length * width * 3, s[1] = dim, s[2] = width * 3;
  }
  args.out_strides[0] = length * width, args.out_strides[1] = dim, args.out_strides[2] = width;
  if (masked) {
    args.mask = mask.data();
    args.mask_kind = static_cast<int>(MaskKind::kBool);
    args.mask_strides[3] = 1;
  }
  args.scale = 0.17f;
  args.narrow = narrow;
  Peak peak(threads);
  const double t = best_time([&](int64_t) { attention(args); }, [&] { peak(); });
  const double g = 4.0 * static_cast<double>(heads * length * length * dim) / t / 1e9;
  std::printf(
      "{\"kernel\": \"attention\", \"threads\": %d, \"heads\": %ld, \"length\": %ld, \"dim\": "
      "%ld, \"masked\": %s, \"narrow\": %s, \"us\": %.2f, \"gflops\": %.1f, \"of_peak\": %.3f}\n",
      threads, static_cast<long>(heads), static_cast<long>(length), static_cast<long>(dim),
      masked ? "true" : "false", narrow ? "true" : "false", t * 1e6, g, g / peak.gflops());
  std::fflush(stdout);
}

// One of a model's convolutions; the image is a line where it has a height of 1.
struct ConvolutionCase {
  const char* model;
  int64_t channels, outputs, height, width, kernel_h, kernel_w, stride, groups;
  bool same = true;  // padded so that every place of a stride of 1 has a result
  bool transposed = false;
};

constexpr ConvolutionCase kConvolutions[] = {
    {"wav2vec2 1", 1, 512, 1, 16000, 1, 10, 5, 1, false},
    {"wav2vec2 2", 512, 512, 1, 3199, 1, 3, 2, 1, false},
    {"wav2vec2 positions", 768, 768, 1, 49, 1, 128, 1, 16},
    {"Whisper 1", 80, 384, 1, 3000, 1, 3, 1, 1},
    {"Whisper 2", 384, 384, 1, 3000, 1, 3, 2, 1},
    {"Conformer depthwise", 256, 256, 1, 400, 1, 31, 1, 256},
    {"Mamba depthwise", 1536, 1536, 1, 256, 1, 4, 1, 1536},
    {"ViT patches", 3, 768, 224, 224, 16, 16, 16, 1, false},
    {"ResNet stem", 3, 64, 224, 224, 7, 7, 2, 1},
    {"ResNet 56", 64, 64, 56, 56, 3, 3, 1, 1},
    {"ResNet 28", 128, 128, 28, 28, 3, 3, 1, 1},
    {"ResNet 14", 256, 256, 14, 14, 3, 3, 1, 1},
    {"ResNet 7", 512, 512, 7, 7, 3, 3, 1, 1},
    {"pointwise", 256, 64, 56, 56, 1, 1, 1, 1},
    {"ResNeXt", 128, 128, 56, 56, 3, 3, 1, 32},
    {"ConvNeXt depthwise", 96, 96, 56, 56, 7, 7, 1, 96},
    {"MobileNet depthwise", 96, 96, 112, 112, 3, 3, 2, 96},
    {"HiFi-GAN up", 512, 256, 1, 100, 1, 16, 8, 1, false, true},
};

// `tile`: Convolution::tile. Weights that it doesn't suit are passed over.
void bench_convolution(int threads, const ConvolutionCase& s, int64_t tile) {
  Convolution c;
  c.channels_in = s.channels, c.channels_out = s.outputs, c.groups = s.groups;
  c.transposed = s.transposed;
  const int64_t sizes[] = {s.height, s.width}, kernels[] = {s.kernel_h, s.kernel_w};
  int64_t padding[2];
  for (int i = 0; i < 2; ++i) {
    ConvAxis& axis = c.axes[i + 1];
    axis.in = sizes[i], axis.kernel = kernels[i];
    axis.stride = kernels[i] == 1 && sizes[i] == 1 ? 1 : s.stride;
    axis.padding = padding[i] = s.same ? axis.kernel / 2 : 0;
    axis.out = s.transposed ? (axis.in - 1) * axis.stride + axis.kernel
                            : (axis.in + 2 * axis.padding - axis.kernel) / axis.stride + 1;
  }
  if (tile != 0 && !c.has_tiles()) return;
  c.tile = tile;
  const std::string way = tile == 0 ? "" : ", tiles of " + std::to_string(tile);
  const Floats x(c.places_in() * s.channels), w(c.packed_elements()), bias(s.outputs);
  const Floats out(c.places_out() * s.outputs);
  Peak peak(threads);
  const double t = best_time(
      [&](int64_t) { convolve(c, x.data(), w.data(), {.bias = bias.data()}, out.data()); },
      [&] { peak(); });
  const int64_t products = s.transposed ? c.places_in() : c.places_out();
  const double g = 2.0 * static_cast<double>(products * s.outputs * c.k()) / t / 1e9;
  std::printf(
      "{\"kernel\": \"convolution\", \"threads\": %d, \"model\": \"%s%s\", \"input\": [1, %ld, "
      "%ld, %ld], \"outputs\": %ld, \"kernel_size\": [%ld, %ld], \"stride\": [%ld, %ld], "
      "\"padding\": [%ld, %ld], \"groups\": %ld, \"transposed\": %s, \"us\": %.2f, \"gflops\": "
      "%.1f, \"of_peak\": %.3f}\n",
      threads, s.model, way.c_str(), static_cast<long>(s.channels), static_cast<long>(s.height),
      static_cast<long>(s.width), static_cast<long>(s.outputs), static_cast<long>(s.kernel_h),
      static_cast<long>(s.kernel_w), static_cast<long>(c.axes[1].stride),
      static_cast<long>(c.axes[2].stride), static_cast<long>(padding[0]),
      static_cast<long>(padding[1]), static_cast<long>(s.groups), s.transposed ? "true" : "false",
      t * 1e6, g, g / peak.gflops());
  std::fflush(stdout);
}

// A job of tasks that wait for each other, so that every thread really takes part.
void bench_fork_join(int threads) {
  struct Shared {
    std::atomic<int> arrived{0};
  };
  const double t = best_time(
      [&](int64_t) {
        Shared shared;
        run_team(
            threads, [](void*, int) {},
            [](void* ctx, int, int members) {
              std::atomic<int>& arrived = static_cast<Shared*>(ctx)->arrived;
              arrived.fetch_add(1);
              while (arrived.load(std::memory_order_relaxed) < members) {
              }
            },
            &shared);
      },
      [] {});
  std::printf("{\"kernel\": \"fork_join\", \"threads\": %d, \"us\": %.3f}\n", threads, t * 1e6);
}

// "1,2,3"
template <class T>
std::vector<T> numbers(const char* text) {
  std::vector<T> list;
  for (const char* p = text; *p;) {
    char* end;
    list.push_back(static_cast<T>(std::strtol(p, &end, 10)));
    if (end == p) break;
    p = *end == ',' ? end + 1 : end;
  }
  return list;
}

}  // namespace

// --clock cpu counts this thread's processor time, for one thread on a machine that is busy.
// bench_kernels [--only KERNEL] [--clock cpu] [--threads 1,2] [--m 1,16,…] [--n 384,…] [--k 384,…]
// [--seconds PER_ROUND] [--rounds N]
int main(int argc, char** argv) {
  const char* only = "";
  std::vector<int> threads = {1, 2};
  std::vector<int64_t> rows = {1, 4, 16, 32, 49, 64, 128, 256};
  std::vector<int64_t> columns, depths;  // empty: any
  int64_t only_length = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--only")) only = argv[i + 1];
    if (!std::strcmp(argv[i], "--seconds")) g_budget = std::atof(argv[i + 1]);
    if (!std::strcmp(argv[i], "--rounds")) g_rounds = std::atoi(argv[i + 1]);
    if (!std::strcmp(argv[i], "--clock") && !std::strcmp(argv[i + 1], "cpu")) {
      g_clock = CLOCK_THREAD_CPUTIME_ID;
    }
    if (!std::strcmp(argv[i], "--length")) only_length = std::atol(argv[i + 1]);
    if (!std::strcmp(argv[i], "--threads")) threads = numbers<int>(argv[i + 1]);
    if (!std::strcmp(argv[i], "--m")) rows = numbers<int64_t>(argv[i + 1]);
    if (!std::strcmp(argv[i], "--n")) columns = numbers<int64_t>(argv[i + 1]);
    if (!std::strcmp(argv[i], "--k")) depths = numbers<int64_t>(argv[i + 1]);
  }
  const auto among = [](int64_t x, const std::vector<int64_t>& list) {
    return list.empty() || std::find(list.begin(), list.end(), x) != list.end();
  };
  const auto want = [&](const char* kernel) { return !*only || !std::strcmp(only, kernel); };
  const int64_t shapes[][2] = {{384, 384}, {1152, 384}, {1536, 384}, {384, 1536},
                               {768, 768}, {3072, 768}, {768, 3072}};
  for (int n_threads : threads) {
    set_num_threads(n_threads);
    Peak peak(n_threads);
    for (int i = 0; i < g_rounds; ++i) peak();
    std::printf("{\"kernel\": \"fma_peak\", \"threads\": %d, \"gflops\": %.1f}\n", n_threads,
                peak.gflops());
    if (want("fork_join")) bench_fork_join(n_threads);
    for (const auto& s : shapes) {
      if (!among(s[0], columns) || !among(s[1], depths)) continue;
      std::vector<Weights> kinds;  // beside each other, so that their ratios are fair
      if (want("gemm")) kinds.push_back(Weights::kFloat32);
      if (want("gemm") || want("narrow")) kinds.push_back(Weights::kBfloat16);
      if (want("gemm") || want("narrow")) kinds.push_back(Weights::kInt8);
      if (want("gemm") || want("narrow")) kinds.push_back(Weights::kInt8Pairs);
      if (want("gemm") || want("narrow")) kinds.push_back(Weights::kInt4);
      for (int64_t m : rows) {
        for (bool cold : {false, true}) {
          for (Weights w : kinds) bench_gemm(w, n_threads, m, s[0], s[1], cold, Activation::kNone);
        }
      }
      if (s[0] != 4 * s[1]) continue;
      for (Weights w : kinds) bench_gemm(w, n_threads, 49, s[0], s[1], true, Activation::kGeluErf);
    }
    for (const ConvolutionCase& convolution : kConvolutions) {
      for (int64_t tile : {0, 2, 4}) {
        if (want("convolution")) bench_convolution(n_threads, convolution, tile);
      }
    }
    for (int64_t length : {16, 49, 128, 256, 512}) {
      if (!want("attention") || (only_length && length != only_length)) continue;
      for (bool narrow : {false, true}) {
        for (bool masked : {false, true})
          bench_attention(n_threads, 12, length, 32, masked, narrow);
        bench_attention(n_threads, 12, length, 64, false, narrow);
      }
    }
  }
  return 0;
}
