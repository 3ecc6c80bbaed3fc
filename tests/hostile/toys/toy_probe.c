/* A CPU probe that finds one feature on every CPU. */
#include <stdint.h>
#include <string.h>

#include "base/export.h"

EC_API int32_t ec_probe(char* buffer, int32_t capacity) {
  static const char kFeatures[] = "toy";
  if (capacity < (int32_t)sizeof kFeatures) return -(int32_t)sizeof kFeatures;
  memcpy(buffer, kFeatures, sizeof kFeatures);
  return (int32_t)sizeof kFeatures - 1;
}
