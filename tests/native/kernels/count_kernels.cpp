// One kernel, run once between two marks, for test_instruction_counts.py under callgrind:
//   count_kernels gemm|bf16|int8|int4 M N K
//   count_kernels attention LENGTH HEADS DIM
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/narrow/gemm_narrow.h"
#include "threads/threads.h"

using namespace ec;

// What callgrind counts: calls of this function and all below it.
extern "C" __attribute__((noinline)) void counted(const std::function<void()>& run) { run(); }

namespace {

std::vector<float> values(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>((i * 37 + 11) % 101) / 50 - 1;
  return v;
}

void product(const char* kind, int64_t m, int64_t n, int64_t k) {
  const std::vector<float> a = values(m * k), b = values(k * n);
  std::vector<float> c(static_cast<size_t>(m * n));
  const Epilogue plain{};
  if (!std::strcmp(kind, "gemm")) {
    std::vector<float> packed(static_cast<size_t>(packed_elements(n, k)));
    pack_b(b.data(), n, 1, k, n, packed.data());
    counted([&] { gemm_packed(m, n, k, a.data(), k, packed.data(), c.data(), n, plain); });
  } else if (!std::strcmp(kind, "bf16")) {
    const std::vector<uint16_t> packed(static_cast<size_t>(packed_elements_bf16(n, k)), 0x3f80);
    counted([&] { gemm_bf16(m, n, k, a.data(), k, packed.data(), c.data(), n, plain); });
  } else if (!std::strcmp(kind, "int4")) {
    const std::vector<uint8_t> packed(static_cast<size_t>(packed_elements_int4(n, k)), 1);
    counted([&] {
      gemm_int4(m, n, k, a.data(), k, packed.data(), packed_elements_int4(1, k), c.data(), n,
                plain);
    });
  } else {
    const std::vector<int8_t> packed(static_cast<size_t>(packed_elements_int8(n, k)), 1);
    counted([&] {
      gemm_int8(m, n, k, a.data(), k, packed.data(), packed_elements_int8(1, k), c.data(), n,
                plain);
    });
  }
}

void attend(int64_t length, int64_t heads, int64_t dim) {
  const std::vector<float> q = values(length * heads * dim), k = q, v = q;
  std::vector<float> out(q.size());
  AttentionArgs args{};
  args.q = q.data(), args.k = k.data(), args.v = v.data(), args.out = out.data();
  args.batch = 1, args.heads_q = args.heads_kv = heads;
  args.len_q = args.len_k = length, args.dim = args.dim_v = dim;
  // [length, heads, dim], as linear layers leave them.
  for (int64_t* strides : {args.q_strides, args.k_strides, args.v_strides, args.out_strides}) {
    strides[0] = length * heads * dim, strides[1] = dim, strides[2] = heads * dim;
  }
  args.scale = 0.125f;
  counted([&] { attention(args); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  set_num_threads(1);
  const int64_t x = std::atoll(argv[2]), y = std::atoll(argv[3]), z = std::atoll(argv[4]);
  if (!std::strcmp(argv[1], "attention")) {
    attend(x, y, z);
  } else {
    product(argv[1], x, y, z);
  }
  return 0;
}
