// SHA-256 with the CPU's own instructions for it, several times as fast: chosen at run time, so
// that the library still runs where they are missing.
#include "bundle/sha256.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && (!defined(__clang__) || defined(__ARM_FEATURE_SHA2))
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace ecr {
namespace {

using Blocks = void (*)(uint32_t*, const uint8_t*, size_t);

// So that the schedule's words stay in registers: twice as fast. clang does so by itself.
#if defined(__clang__)
#define ECR_UNROLL_ROUNDS
#else
#define ECR_UNROLL_ROUNDS _Pragma("GCC unroll 16")
#endif

#if defined(__x86_64__)

// The state lies as (a, b, e, f) and (c, d, g, h), highest lane first, as SHA256RNDS2 wants it.
__attribute__((target("sha,ssse3,sse4.1"))) void hardware_blocks(uint32_t* state,
                                                                 const uint8_t* data,
                                                                 size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  auto* const words = reinterpret_cast<__m128i*>(state);
  const __m128i badc = _mm_shuffle_epi32(_mm_loadu_si128(words), 0xB1);
  const __m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128(words + 1), 0x1B);
  __m128i abef = _mm_alignr_epi8(badc, hgfe, 8);
  __m128i cdgh = _mm_blend_epi16(hgfe, badc, 0xF0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      const auto* const at = reinterpret_cast<const __m128i*>(data + 16 * i);
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(at), big_endian);
    }
    ECR_UNROLL_ROUNDS
    for (int i = 0; i < 16; ++i) {
      const auto* const at = reinterpret_cast<const __m128i*>(kSha256Constants + 4 * i);
      const __m128i added = _mm_add_epi32(w[i % 4], _mm_load_si128(at));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0E));
      const __m128i last = w[(i + 3) % 4];
      const __m128i mixed = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
                                          _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
      w[i % 4] = _mm_sha256msg2_epu32(mixed, last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B);
  const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(words, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(words + 1, _mm_alignr_epi8(dchg, feba, 8));
}

bool has_hardware() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return false;
  const bool has_shuffles = (c >> 9 & 1) != 0 && (c >> 19 & 1) != 0;  // SSSE3, SSE4.1
  return has_shuffles && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b >> 29 & 1) != 0;
}

#elif defined(__aarch64__) && (!defined(__clang__) || defined(__ARM_FEATURE_SHA2))

#if !defined(__clang__)
__attribute__((target("+crypto")))
#endif
void hardware_blocks(uint32_t* state, const uint8_t* data, size_t blocks) {
  uint32x4_t abcd = vld1q_u32(state);
  uint32x4_t efgh = vld1q_u32(state + 4);
  for (; blocks > 0; --blocks, data += 64) {
    const uint32x4_t abcd_before = abcd;
    const uint32x4_t efgh_before = efgh;
    uint32x4_t w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)));
    }
    ECR_UNROLL_ROUNDS
    for (int i = 0; i < 16; ++i) {
      const uint32x4_t added = vaddq_u32(w[i % 4], vld1q_u32(kSha256Constants + 4 * i));
      const uint32x4_t abcd_old = abcd;
      abcd = vsha256hq_u32(abcd, efgh, added);
      efgh = vsha256h2q_u32(efgh, abcd_old, added);
      w[i % 4] = vsha256su1q_u32(vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]), w[(i + 2) % 4],
                                 w[(i + 3) % 4]);
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}

bool has_hardware() { return (getauxval(AT_HWCAP) & 1ul << 6) != 0; }  // HWCAP_SHA2

#else

constexpr Blocks hardware_blocks = sha256_blocks_portable;

bool has_hardware() { return false; }

#endif

}  // namespace

void sha256_blocks(uint32_t state[8], const uint8_t* data, size_t blocks) {
  static const Blocks chosen = has_hardware() ? hardware_blocks : sha256_blocks_portable;
  chosen(state, data, blocks);
}

}  // namespace ecr
