/* What the CPU can do and the operating system lets programs use.
 *
 * Built for the lowest baseline of its architecture and loaded before any other native code, so
 * that nothing which this machine can't run is ever mapped. /proc/cpuinfo would not do: under
 * emulation it lists what the machine below can do.
 *
 * x86-64: CPUID leaves 1, 7.0, 7.1, 0xd.1, 0x80000001 and XGETBV, "Intel 64 and IA-32
 * Architectures Software Developer's Manual", volume 2, CPUID, and volume 1, chapters 13 and 18;
 * volume 3 of AMD's manual for the extended leaves. A feature whose registers the OS does not save
 * (XCR0) is not reported. aarch64: the auxiliary vector, Linux's
 * Documentation/arch/arm64/elf_hwcaps.rst; the kernel sets a bit only if it may be used. Names are
 * those of Linux's /proc/cpuinfo, with lahf and lzcnt for lahf_lm and abm. */
#include <stdint.h>

#include "../base/export.h"

/* Appends words separated by spaces; counts on when the buffer is full. */
struct Writer {
  char* buffer;
  int32_t capacity;
  int32_t length;
};

static void put(struct Writer* writer, char c) {
  if (writer->length < writer->capacity) writer->buffer[writer->length] = c;
  ++writer->length;
}

static void add(struct Writer* writer, int supported, const char* name) {
  if (!supported) return;
  if (writer->length != 0) put(writer, ' ');
  for (; *name != '\0'; ++name) put(writer, *name);
}

#if defined(__x86_64__)

#include <cpuid.h>

enum { kA, kB, kC, kD };

static void read_leaf(uint32_t leaf, uint32_t subleaf, uint32_t registers[4]) {
  registers[kA] = registers[kB] = registers[kC] = registers[kD] = 0;
  const uint32_t highest = __get_cpuid_max(leaf & 0x80000000u, 0);
  if (highest == 0 || highest < leaf) return;
  __cpuid_count(leaf, subleaf, registers[kA], registers[kB], registers[kC], registers[kD]);
}

static uint64_t read_xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

/* For AMX, Linux wants a process to ask (arch_prctl ARCH_REQ_XCOMP_PERM) before its first use, so
 * the bits below say that it can be had. */
enum { kSse = 0x2, kAvx = 0x4, kOpmask = 0x20, kZmm = 0x40, kHighZmm = 0x80, kTiles = 0x60000 };

static void add_features(struct Writer* out) {
  uint32_t l1[4], l7[4], l71[4], ld1[4], e1[4];
  read_leaf(1, 0, l1);
  read_leaf(7, 0, l7);
  read_leaf(7, 1, l71);
  if (l7[kA] < 1) l71[kA] = l71[kB] = l71[kC] = l71[kD] = 0;
  read_leaf(0xd, 1, ld1);
  read_leaf(0x80000001u, 0, e1);
#define BIT(registers, which, n) ((registers)[which] >> (n) & 1u)

  const int osxsave = BIT(l1, kC, 27) != 0;
  const uint64_t xcr0 = osxsave ? read_xcr0() : 0;
  const uint64_t avx_state = kSse | kAvx;
  const uint64_t avx512_state = avx_state | kOpmask | kZmm | kHighZmm;
  const int avx = (xcr0 & avx_state) == avx_state && BIT(l1, kC, 28);
  const int avx512 = avx && (xcr0 & avx512_state) == avx512_state && BIT(l7, kB, 16);
  const int amx = (xcr0 & kTiles) == kTiles && BIT(l7, kD, 24);

  /* The 64-bit baseline has sse and sse2. */
  add(out, 1, "sse");
  add(out, 1, "sse2");
  add(out, BIT(l1, kC, 0), "sse3");
  add(out, BIT(l1, kC, 1), "pclmulqdq");
  add(out, BIT(l1, kC, 9), "ssse3");
  add(out, BIT(l1, kC, 13), "cx16");
  add(out, BIT(l1, kC, 19), "sse4_1");
  add(out, BIT(l1, kC, 20), "sse4_2");
  add(out, BIT(l1, kC, 22), "movbe");
  add(out, BIT(l1, kC, 23), "popcnt");
  add(out, BIT(l1, kC, 25), "aes");
  add(out, BIT(e1, kC, 0), "lahf");
  add(out, BIT(e1, kC, 5), "lzcnt");
  add(out, BIT(l7, kB, 3), "bmi1");
  add(out, BIT(l7, kB, 8), "bmi2");
  add(out, BIT(l7, kB, 19), "adx");
  add(out, BIT(l7, kB, 29), "sha_ni");
  add(out, BIT(l7, kC, 8), "gfni");
  add(out, osxsave, "xsave");
  add(out, osxsave && BIT(ld1, kA, 0), "xsaveopt");
  add(out, osxsave && BIT(ld1, kA, 1), "xsavec");

  add(out, avx, "avx");
  add(out, avx && BIT(l1, kC, 29), "f16c");
  add(out, avx && BIT(l1, kC, 12), "fma");
  add(out, avx && BIT(l7, kB, 5), "avx2");
  add(out, avx && BIT(l7, kC, 9), "vaes");
  add(out, avx && BIT(l7, kC, 10), "vpclmulqdq");
  add(out, avx && BIT(l71, kA, 4), "avx_vnni");
  add(out, avx && BIT(l71, kD, 4), "avx_vnni_int8");
  add(out, avx && BIT(l71, kD, 5), "avx_ne_convert");
  add(out, avx && BIT(l71, kA, 23), "avx_ifma");
  add(out, avx512 && BIT(l71, kD, 19), "avx10");

  add(out, avx512, "avx512f");
  add(out, avx512 && BIT(l7, kB, 17), "avx512dq");
  add(out, avx512 && BIT(l7, kB, 21), "avx512ifma");
  add(out, avx512 && BIT(l7, kB, 28), "avx512cd");
  add(out, avx512 && BIT(l7, kB, 30), "avx512bw");
  add(out, avx512 && BIT(l7, kB, 31), "avx512vl");
  add(out, avx512 && BIT(l7, kC, 1), "avx512vbmi");
  add(out, avx512 && BIT(l7, kC, 6), "avx512_vbmi2");
  add(out, avx512 && BIT(l7, kC, 11), "avx512_vnni");
  add(out, avx512 && BIT(l7, kC, 12), "avx512_bitalg");
  add(out, avx512 && BIT(l7, kC, 14), "avx512_vpopcntdq");
  add(out, avx512 && BIT(l7, kD, 8), "avx512_vp2intersect");
  add(out, avx512 && BIT(l7, kD, 23), "avx512_fp16");
  add(out, avx512 && BIT(l71, kA, 5), "avx512_bf16");

  add(out, amx, "amx_tile");
  add(out, amx && BIT(l7, kD, 22), "amx_bf16");
  add(out, amx && BIT(l7, kD, 25), "amx_int8");
  add(out, amx && BIT(l71, kA, 21), "amx_fp16");
#undef BIT
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

/* Numbers from the kernel's arch/arm64/include/uapi/asm/hwcap.h, which older headers lack. */
static void add_features(struct Writer* out) {
  static const struct {
    int word, bit;
    const char* name;
  } kFeatures[] = {
      {0, 0, "fp"},       {0, 1, "asimd"},     {0, 3, "aes"},       {0, 4, "pmull"},
      {0, 5, "sha1"},     {0, 6, "sha2"},      {0, 7, "crc32"},     {0, 8, "atomics"},
      {0, 9, "fphp"},     {0, 10, "asimdhp"},  {0, 12, "asimdrdm"}, {0, 14, "fcma"},
      {0, 15, "lrcpc"},   {0, 17, "sha3"},     {0, 20, "asimddp"},  {0, 21, "sha512"},
      {0, 22, "sve"},     {0, 23, "asimdfhm"}, {1, 1, "sve2"},      {1, 9, "svei8mm"},
      {1, 12, "svebf16"}, {1, 13, "i8mm"},     {1, 14, "bf16"},     {1, 23, "sme"},
  };
  const unsigned long words[] = {getauxval(16 /* AT_HWCAP */), getauxval(26 /* AT_HWCAP2 */)};
  for (unsigned i = 0; i < sizeof kFeatures / sizeof *kFeatures; ++i) {
    add(out, (int)(words[kFeatures[i].word] >> kFeatures[i].bit & 1), kFeatures[i].name);
  }
}

#else

static void add_features(struct Writer* out) { (void)out; }

#endif

/* Writes the names, separated by spaces, and a terminating zero. Returns their length without the
 * zero, or minus the capacity that is needed if `capacity` is too small; the buffer then holds no
 * complete list. */
EC_API int32_t ec_probe(char* buffer, int32_t capacity) {
  struct Writer writer = {buffer, buffer == 0 ? 0 : capacity, 0};
  add_features(&writer);
  const int32_t needed = writer.length + 1;
  put(&writer, '\0');
  return needed <= writer.capacity ? needed - 1 : -needed;
}
