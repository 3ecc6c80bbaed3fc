// Functions that a static libstdc++ made with glibc 2.38 or later calls, for every library. See
// features.h.
#include <cstdlib>

#define EC_NEW_NAME(type, name)                                             \
  extern "C" type __isoc23_##name(const char* text, char** end, int base) { \
    return std::name(text, end, base);                                      \
  }

EC_NEW_NAME(long, strtol)
EC_NEW_NAME(unsigned long, strtoul)
EC_NEW_NAME(long long, strtoll)
EC_NEW_NAME(unsigned long long, strtoull)
