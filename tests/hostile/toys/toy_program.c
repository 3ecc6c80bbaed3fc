/* A program for toy_runtime.c: how many inputs and outputs it has, and what these hold if not
 * zeros. */
#include <stdint.h>

#include "base/export.h"

#ifdef TOY_OTHER
EC_API const int64_t toy_other = 1;
#endif

EC_API const int64_t toy_counts[2] = {TOY_INPUTS, TOY_OUTPUTS};

#ifdef TOY_ANSWER
EC_API const float toy_answer = TOY_ANSWER;
#endif
