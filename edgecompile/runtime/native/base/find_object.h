// Lets libraries built on a new system unwind exceptions on an old one.
//
// The unwinder in GCC 12's static libgcc finds a frame's tables through _dl_find_object, which
// glibc has only since 2.35. This definition does the same through dl_iterate_phdr, which every
// glibc has; included once by each library that we link, it takes the place of glibc's, and the
// libraries load on systems down to the version that the rest of their symbols need.
//
// The structure is glibc's (manual, "Dynamic Linker Introspection"), for architectures without
// dlfo_eh_dbase and dlfo_eh_count, which are all that we build for.
#ifndef EDGECOMPILE_FIND_OBJECT_H_
#define EDGECOMPILE_FIND_OBJECT_H_

#include <link.h>

#include <cstdint>

namespace ec {

struct FoundObject {
  unsigned long long flags;
  void* map_start;
  void* map_end;
  void* link_map;
  void* eh_frame;
  unsigned long long reserved[7];
};

struct FindRequest {
  uintptr_t pc;
  FoundObject* found;
};

inline int visit_object(dl_phdr_info* info, size_t, void* data) {
  auto* request = static_cast<FindRequest*>(data);
  uintptr_t low = UINTPTR_MAX;
  uintptr_t high = 0;
  void* eh_frame = nullptr;
  bool contains = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + header.p_vaddr;
    const uintptr_t end = start + header.p_memsz;
    if (header.p_type == PT_LOAD) {
      contains = contains || (request->pc >= start && request->pc < end);
      low = start < low ? start : low;
      high = end > high ? end : high;
    } else if (header.p_type == PT_GNU_EH_FRAME) {
      eh_frame = reinterpret_cast<void*>(start);
    }
  }
  if (!contains) return 0;
  *request->found = {
      0, reinterpret_cast<void*>(low), reinterpret_cast<void*>(high), nullptr, eh_frame, {}};
  return 1;
}

}  // namespace ec

// The name differs in C++ since newer headers declare glibc's own, with another type.
extern "C" __attribute__((visibility("hidden"))) int ec_find_object(
    void* pc, ec::FoundObject* found) __asm__("_dl_find_object");

extern "C" int ec_find_object(void* pc, ec::FoundObject* found) {
  ec::FindRequest request{reinterpret_cast<uintptr_t>(pc), found};
  return dl_iterate_phdr(ec::visit_object, &request) == 1 ? 0 : -1;
}

#endif  // EDGECOMPILE_FIND_OBJECT_H_
