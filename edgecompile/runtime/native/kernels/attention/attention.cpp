// For each head a block of keys at a time: keys are transposed and values copied into panels, then
// for a few queries at a time register tiles (attention_products.h) compute scores, softmax
// (attention_softmax.h) turns them into weights, and the tiles multiply with the values. With more
// than one block the rows' maxima and sums are carried along and earlier results rescaled ("online"
// softmax: Milakov and Gimelshein, arXiv:1805.02867). Few queries over a cache are divided over its
// keys as well (attention_parts.h).
#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/scratch.h"
#include "kernels/attention/attention_cache.h"
#include "kernels/attention/attention_few.h"
#include "kernels/attention/attention_parts.h"
#include "kernels/attention/attention_products.h"
#include "kernels/attention/attention_softmax.h"
#include "kernels/gemm/gemm_kernel.h"
#include "math/simd.h"
#include "math/vecmath.h"
#include "threads/threads.h"

namespace ec {
namespace {

constexpr int kL = kFloatLanes;

// Floats of transposed keys, and of values, per block: together half of a second-level cache.
constexpr int64_t kBlockFloats = 16 * 1024;
// Queries from which on pairs of bfloat16 pay: before, rounding takes longer than they save.
[[maybe_unused]] constexpr int64_t kPairQueries = 8;
// Bytes of a mask that one thread compares while the others wait: some tens of microseconds.
constexpr int64_t kMostCompared = int64_t{1} << 20;
// Multiply-adds below which fork and join cost more than they save.
constexpr int64_t kSerialWork = 100'000;

thread_local Scratch t_scratch, t_parts, t_scores;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// One head of one batch entry.
struct Head {
  const float* q;
  const void *k, *v;
  float* out;
  const uint8_t* bool_mask;
  const float* float_mask;
};

// Which keys the queries of a head see: those of [begin(i), end(i)).
struct Sight {
  bool causal;
  int64_t offset, window, step, len_k;

  int64_t end(int64_t query) const {
    return causal ? std::clamp<int64_t>(offset + query * step + 1, 0, len_k) : len_k;
  }
  int64_t begin(int64_t query) const {
    return causal && window > 0 ? std::clamp<int64_t>(offset + query * step + 1 - window, 0, len_k)
                                : 0;
  }
};

Head head_of(const AttentionArgs& a, int64_t b, int64_t h) {
  const int64_t h_kv = h / (a.heads_q / a.heads_kv);
  const int64_t size = stored_size(a.stored);
  const auto* const k = static_cast<const char*>(a.k);
  const auto* const v = static_cast<const char*>(a.v);
  Head head{a.q + b * a.q_strides[0] + h * a.q_strides[1],
            k + (b * a.k_strides[0] + h_kv * a.k_strides[1]) * size,
            v + (b * a.v_strides[0] + h_kv * a.v_strides[1]) * size,
            a.out + b * a.out_strides[0] + h * a.out_strides[1],
            nullptr,
            nullptr};
  const int64_t mask = b * a.mask_strides[0] + h * a.mask_strides[1];
  if (a.mask_kind == static_cast<int>(MaskKind::kBool)) {
    head.bool_mask = static_cast<const uint8_t*>(a.mask) + mask;
  } else if (a.mask_kind == static_cast<int>(MaskKind::kFloat)) {
    head.float_mask = static_cast<const float*>(a.mask) + mask;
  }
  return head;
}

// Whether each head's mask is the same for all queries although it has a row for each of them, as
// of models that write out what they might have broadcast. Most others differ in their first rows.
bool same_for_all_queries(const AttentionArgs& a) {
  if (a.len_q == 1 || a.len_k == 0 || a.mask_strides[2] == 0 || a.mask_strides[3] != 1)
    return false;
  const auto* const mask = static_cast<const char*>(a.mask);
  const int64_t size = a.mask_kind == static_cast<int>(MaskKind::kBool) ? 1 : 4;
  const int64_t batch = a.mask_strides[0] == 0 ? 1 : a.batch;
  const int64_t heads = a.mask_strides[1] == 0 ? 1 : a.heads_q;
  if (batch * heads * a.len_q * a.len_k * size > kMostCompared) return false;
  const auto bytes = static_cast<size_t>(a.len_k * size);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const char* const first = mask + (b * a.mask_strides[0] + h * a.mask_strides[1]) * size;
      for (int64_t i = 1; i < a.len_q; ++i) {
        if (std::memcmp(first, first + i * a.mask_strides[2] * size, bytes) != 0) return false;
      }
    }
  }
  return true;
}

// A mask's number as one to add to scores to base 2: finite ones stay finite.
float to_base_2(float x) {
  constexpr float kMost = std::numeric_limits<float>::max();
  return std::abs(x) <= kMost ? std::clamp(x * kLog2E, -kMost, kMost) : x;
}

// The mask of one query for keys [k0, k0 + n) as floats to add.
void read_mask(const AttentionArgs& a, const Head& head, int64_t query, int64_t k0, int64_t n,
               float* bias) {
  const int64_t step = a.mask_strides[3];
  const int64_t at = query * a.mask_strides[2] + k0 * step;
  const auto read = [&](const auto* mask, const auto& number) {
    if (step == 1) {
      for (int64_t j = 0; j < n; ++j) bias[j] = number(mask[j]);
    } else {
      for (int64_t j = 0; j < n; ++j) bias[j] = number(mask[j * step]);
    }
  };
  if (head.bool_mask != nullptr) {
    read(head.bool_mask + at, [](uint8_t attend) { return attend ? 0.0f : kMinusInfinity; });
  } else {
    read(head.float_mask + at, [](float x) { return to_base_2(x); });
  }
}

// Results of `rows` queries for one panel of values: out = (out·scale + sums)·factor.
EC_INLINE void merge_panel(const float* sums, int64_t rows, int64_t columns, bool first,
                           const RowState* state, bool last, float* out, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r, sums += kPanel, out += ld) {
    const float factor = last ? (state[r].sum == 0.0f ? 1.0f : 1.0f / state[r].sum) : 1.0f;
    const float scale = state[r].scale;
    const auto merge = [&](vf32 sum, vf32 old) {
      return (first ? sum : fma(old, broadcast(scale), sum)) * factor;
    };
    int64_t j = 0;
    for (; j + kL <= columns; j += kL) {
      store(out + j, merge(load(sums + j), first ? vf32{} : load(out + j)));
    }
    if (j < columns) {
      const vf32 old = first ? vf32{} : load_partial(out + j, columns - j);
      store_partial(out + j, merge(load(sums + j), old), columns - j);
    }
  }
}

// s = softcap · tanh(s / softcap) · log2(e) of whole vectors.
void cap_scores(float* s, int64_t n, float softcap) {
  for (int64_t j = 0; j < n; j += kL) {
    store(s + j, vtanh(load(s + j) * (1.0f / softcap)) * (softcap * kLog2E));
  }
}

// The most keys of a block: whole panels.
int64_t most_keys(const AttentionArgs& a) {
  const int64_t widest = std::max<int64_t>({a.dim, a.dim_v, 1});
  return std::max(kPanel, kBlockFloats / widest / kPanel * kPanel);
}

// Scores of a part for a head's few queries, most_keys(a) apart, and memory to fetch for each key.
struct Scored {
  float* scores;
  Ahead next;
};

// Queries [q0, q1) of one head over the keys [first_key, last_key). With `partial` these are a
// block's at most, `head.out` gets sums that aren't divided, and `partial` what they are relative
// to. With `scored` few queries have scores already. `Number` is what keys and values are stored
// in.
template <class Products, class Number>
void run_queries(const AttentionArgs& a, const Head& head, const Sight& sight, int64_t q0,
                 int64_t q1, int64_t first_key, int64_t last_key, RowState* partial = nullptr,
                 const Scored* scored = nullptr) {
  const int64_t queries = q1 - q0;
  const int64_t all_keys = std::max<int64_t>(0, last_key - first_key);
  const int64_t most = most_keys(a);
  const int64_t blocks = std::max<int64_t>(1, (all_keys + most - 1) / most);
  const int64_t block = std::max(kPanel, round_up((all_keys + blocks - 1) / blocks, kPanel));
  const int64_t v_panels = (a.dim_v + kPanel - 1) / kPanel;
  const bool few = Products::kExact && queries <= kFewQueries;

  const int64_t state_floats = round_up(queries * 3, 16);
  const int64_t k_floats = few ? 0 : block * a.dim;
  const int64_t v_floats = few ? 0 : block * v_panels * kPanel;
  const int64_t row_floats = few ? 0 : Products::row_floats(a.dim, block);
  Widened<Number> widened(a, block);
  float* const scratch =
      t_scratch.get(state_floats + k_floats + v_floats + (kTileRows + 1) * block + row_floats +
                    (few ? 0 : widened.floats()));
  static_assert(sizeof(RowState) == 3 * sizeof(float));
  RowState* const state = reinterpret_cast<RowState*>(scratch);
  float* const k_panels = scratch + state_floats;
  float* const v_copy = k_panels + k_floats;
  float* const bias_row = v_copy + v_floats;
  float* const scores = scored != nullptr ? scored->scores : bias_row + block;
  const int64_t ld = scored != nullptr ? most : block;
  float* const rows_copy = bias_row + (kTileRows + 1) * block;
  widened.use(rows_copy + row_floats);
  std::fill_n(state, queries, RowState{kMinusInfinity, 0.0f, 0.0f});
  const bool masked = head.bool_mask != nullptr || head.float_mask != nullptr;

  for (int64_t k0 = first_key; k0 == first_key || k0 < last_key; k0 += block) {
    const int64_t block_keys = std::max<int64_t>(0, std::min(block, last_key - k0));
    const bool first = k0 == first_key, last = partial == nullptr && k0 + block >= last_key;
    const Number* const k = static_cast<const Number*>(head.k) + k0 * a.k_strides[2];
    const Number* const v = static_cast<const Number*>(head.v) + k0 * a.v_strides[2];
    for (int64_t j = 0; !few && j < block_keys; j += kPanel) {
      const int64_t keys = std::min(kPanel, block_keys - j);
      Products::pack_keys(widened.args(), widened.keys(k + j * a.k_strides[2], keys), keys,
                          rows_copy, k_panels + j * a.dim);
    }
    for (int64_t p = 0; !few && p < v_panels; ++p) {
      const int64_t columns = std::min(kPanel, a.dim_v - p * kPanel);
      Products::pack_values(widened.values(v, block_keys, p * kPanel, columns),
                            widened.args().v_strides[2], block_keys, columns,
                            v_copy + p * block * kPanel);
    }
    bool biased = masked;
    if (masked && a.mask_strides[2] == 0) {
      std::fill_n(bias_row, block, 0.0f);
      read_mask(a, head, 0, k0, block_keys, bias_row);
      biased = std::any_of(bias_row, bias_row + block_keys, [](float x) { return x != 0.0f; });
    }

    const int64_t tiles = (queries + kTileRows - 1) / kTileRows;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t r0 = queries * i / tiles, rows = queries * (i + 1) / tiles - r0;
      const float* const q = head.q + (q0 + r0) * a.q_strides[2];
      // The last of these rows sees this many keys of the block.
      const int64_t keys = std::clamp<int64_t>(sight.end(q0 + r0 + rows - 1) - k0, 0, block_keys);
      if (few) {
        if (scored == nullptr) {
          with_rows(rows, [&](auto n) { dot_scores<n>(a, q, k, keys, scores, ld); });
        }
      } else {
        Products::score(a, q, rows, k_panels, keys, rows_copy, scores, ld);
      }
      // Each step runs for all rows: one row is reduced while the next is read.
      float tops[kTileRows];
      int64_t padded[kTileRows];
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t query = q0 + r0 + r;
        const int64_t seen = std::clamp<int64_t>(sight.end(query) - k0, 0, keys);
        const int64_t unseen = std::clamp<int64_t>(sight.begin(query) - k0, 0, seen);
        if (biased && a.mask_strides[2] != 0) {
          read_mask(a, head, query, k0, seen, bias_row);
          std::fill_n(bias_row + seen, round_up(seen, kL) - seen, 0.0f);
        }
        float* const s = scores + r * ld;
        if (a.softcap > 0) cap_scores(s, seen, a.softcap);
        std::fill_n(s, unseen, kMinusInfinity);
        padded[r] = round_up(seen, Products::kPadded);
        tops[r] = mask_scores(s, seen, padded[r], biased ? bias_row : nullptr, state[r0 + r].top);
      }
      for (int64_t r = 0; r < rows; ++r) {
        Products::weigh_row(scores + r * ld, padded[r], keys, tops[r], state[r0 + r], r, rows_copy);
      }
      for (int64_t p = 0; p < v_panels; ++p) {
        alignas(64) float sums[kTileRows * kPanel];
        const int64_t columns = std::min(kPanel, a.dim_v - p * kPanel);
        if (few) {
          with_rows(rows, [&](auto n) {
            const auto weigh =
                scored != nullptr ? weigh_values<n, true, Number> : weigh_values<n, false, Number>;
            weigh(scores, ld, v, a.v_strides[2], keys, p * kPanel, columns, sums,
                  scored != nullptr && p == 0 ? scored->next : Ahead{});
          });
        } else {
          Products::weigh(scores, ld, rows, v_copy + p * block * kPanel, keys, columns, rows_copy,
                          sums);
        }
        merge_panel(sums, rows, columns, first, state + r0, last,
                    head.out + (q0 + r0) * a.out_strides[2] + p * kPanel, a.out_strides[2]);
      }
    }
  }
  if (partial != nullptr) std::copy_n(state, queries, partial);
}

// Scores of a part's keys [first, end) for all queries, at most kFewQueries, of `heads` heads.
template <class Number>
void score_part(const AttentionArgs& a, const Head& head, int64_t heads, int64_t first, int64_t end,
                float* partials, float* scores) {
  const auto* const k = static_cast<const Number*>(head.k) + first * a.k_strides[2];
  const auto* const v = static_cast<const Number*>(head.v) + first * a.v_strides[2];
  with_rows(a.len_q, [&](auto n) {
    dot_heads<n>(a, head.q, k, v, heads, end - first, partials, scores, most_keys(a));
  });
}

auto score_of(CacheType type) {
  if (type == CacheType::kInt8) return score_part<RowByte>;
  return type == CacheType::kHalves ? score_part<uint16_t> : score_part<float>;
}

auto run_of(CacheType type) {
  if (type == CacheType::kInt8) return run_queries<FloatProducts, RowByte>;
  return type == CacheType::kHalves ? run_queries<FloatProducts, uint16_t>
                                    : run_queries<FloatProducts, float>;
}

// All queries, few of them, over the parts [first, end) of the keys, some parts at a time.
void run_parts(const AttentionArgs& a, const Sight& sight, int64_t part, int64_t first, int64_t end,
               bool alone) {
  const int64_t heads = a.batch * a.heads_q;
  const int64_t at_once = parts_at_once(heads, a.len_q, a.dim_v, end - first);
  Partials partials(t_parts.get(Partials::floats(heads, a.len_q, a.dim_v, at_once)), heads, a.len_q,
                    a.dim_v, at_once);
  AttentionArgs one = a;
  one.out_strides[2] = partials.ld();
  const auto run = run_of(a.stored);
  const auto score = score_of(a.stored);
  const bool few = a.len_q <= kFewQueries && a.dim % kL == 0;
  const bool beside = few && a.k_strides[1] <= a.k_strides[2];
  const bool whole_rows = beside && a.k_strides[2] == a.heads_q * a.k_strides[1];
  const auto each = [&](int64_t n, const auto& task) {
    if (!alone) return parallel_for(n, task);
    for (int64_t i = 0; i < n; ++i) task(i);
  };
  for (int64_t p0 = first; p0 < end; p0 += at_once) {
    const int64_t parts = std::min(at_once, end - p0);
    // Where heads lie side by side in a cache's rows, memory is read fastest in that order. So a
    // task takes all heads, or fewer if there are more threads than parts.
    const int64_t units = a.batch * parts, threads = alone ? 1 : num_threads();
    const int64_t tasks = (threads + units - 1) / units;
    const int64_t chunks = beside ? std::min(tasks, a.heads_q) : a.heads_q;
    each(a.batch * chunks * parts, [&](int64_t i) {
      const int64_t p = i % parts, b = i / parts / chunks, chunk = i / parts % chunks;
      const int64_t h0 = a.heads_q * chunk / chunks, h1 = a.heads_q * (chunk + 1) / chunks;
      const int64_t k0 = (p0 + p) * part, begin = std::max(k0, sight.begin(0));
      const int64_t to = std::min(k0 + part, sight.end(a.len_q - 1));
      const int64_t rows = few ? (h1 - h0) * a.len_q : 0;
      float* const scores = t_scores.get(rows * (part + kTurnFloats));
      if (few) score(a, head_of(a, b, h0), h1 - h0, begin, to, scores + rows * part, scores);
      // Memory would rest while values are multiplied: the next part's keys come nearer then.
      const int64_t next = takes_from_back() ? p - 1 : p + 1;
      const bool ahead = whole_rows && chunks == 1 && next >= 0 && next < parts;
      const int64_t size = ahead ? a.k_strides[1] * stored_size(a.stored) : 0;
      const auto* const keys = static_cast<const char*>(head_of(a, b, 0).k);
      const char* const from = ahead ? keys + (p0 + next) * part * a.heads_q * size : nullptr;
      for (int64_t h = h0; h < h1; ++h) {
        Head head = head_of(a, b, h);
        head.out = partials.sums(b * a.heads_q + h, p);
        const Scored scored{scores + (h - h0) * a.len_q * part, {from + h * part * size, size}};
        run(one, head, sight, 0, a.len_q, begin, to, partials.rows(b * a.heads_q + h, p),
            few ? &scored : nullptr);
      }
    });
    each(heads, [&](int64_t h) {
      partials.merge(h, parts, p0 == first, p0 + parts == end,
                     head_of(a, h / a.heads_q, h % a.heads_q).out, a.out_strides[2]);
    });
  }
}

}  // namespace

void attention(const AttentionArgs& given) {
  if (given.batch <= 0 || given.heads_q <= 0 || given.len_q <= 0 || given.dim_v <= 0) return;
  if (given.causal && given.mask_kind == static_cast<int>(MaskKind::kNone) && given.len_q > 1 &&
      given.len_q <= kFewRows) {
    // Each query is computed as in a run of its own, so results agree to the last bit.
    AttentionArgs one = given;
    one.len_q = 1;
    for (int64_t i = 0; i < given.len_q; ++i) {
      one.q = given.q + i * given.q_strides[2];
      one.out = given.out + i * given.out_strides[2];
      one.offset = given.offset + i;
      attention(one);
    }
    return;
  }
  AttentionArgs a = given;
  if (a.softcap <= 0) a.scale *= kLog2E;
  if (a.mask_kind != static_cast<int>(MaskKind::kNone) && same_for_all_queries(a)) {
    a.mask_strides[2] = 0;
  }
  Sight sight{a.causal, a.offset, a.window, 1, a.len_k};
  const int64_t group = a.heads_q / a.heads_kv;
  if (a.len_q == 1 && group > 1) {
    // The heads of a group stand for queries of one head: their keys and values are read once.
    a.len_q = group;
    a.heads_q = a.heads_kv;
    a.q_strides[2] = given.q_strides[1];
    a.q_strides[1] = given.q_strides[1] * group;
    a.out_strides[2] = given.out_strides[1];
    a.out_strides[1] = given.out_strides[1] * group;
    a.mask_strides[2] = given.mask_strides[1];
    a.mask_strides[1] = given.mask_strides[1] * group;
    sight.step = 0;
  }
  const int64_t heads = a.batch * a.heads_q;
  int64_t chunks = 1;
  const int64_t threads = num_threads();
  const int64_t keys = sight.end(a.len_q - 1) - sight.begin(0);
  const bool alone = threads == 1 || heads * a.len_q * keys * (a.dim + a.dim_v) < kSerialWork;
  if (a.causal && given.len_q == 1 && keys > 0) {
    // Parts begin at multiples of a fixed size, however many threads there are, so that their
    // number doesn't change a result.
    const int64_t part = most_keys(a);
    const int64_t first = sight.begin(0) / part, end = (sight.end(a.len_q - 1) - 1) / part + 1;
    if (end - first > 1) return run_parts(a, sight, part, first, end, alone);
  }
  if (!alone && heads < 3 * threads) {
    // Every chunk copies the keys and values, so it should have a few tiles of queries.
    chunks = std::clamp<int64_t>(3 * threads / heads, 1, (a.len_q + 31) / 32);
  }
  auto run = run_of(a.stored);
#if EC_BF16_PAIRS
  if (a.narrow && a.stored == CacheType::kFloats && given.len_q >= kPairQueries && pairs_pay()) {
    run = run_queries<PairProducts, float>;
  }
#endif
  const auto task = [&](int64_t i) {
    const int64_t head = i / chunks, chunk = i % chunks;
    const int64_t q0 = a.len_q * chunk / chunks, q1 = a.len_q * (chunk + 1) / chunks;
    run(a, head_of(a, head / a.heads_q, head % a.heads_q), sight, q0, q1, sight.begin(q0),
        sight.end(q1 - 1), nullptr, nullptr);
  };
  if (alone) {
    for (int64_t i = 0; i < heads * chunks; ++i) task(i);
  } else {
    parallel_for(heads * chunks, task);
  }
}

}  // namespace ec
