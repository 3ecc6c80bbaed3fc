/* Linked with --wrap=dlopen: before the first library is loaded, another file takes the place of
 * the one that was hashed. */
#include <stdio.h>
#include <stdlib.h>

void* __real_dlopen(const char* path, int flags);
void* __wrap_dlopen(const char* path, int flags);

void* __wrap_dlopen(const char* path, int flags) {
  static int done = 0;
  if (!done && rename(getenv("EXCHANGE_FROM"), getenv("EXCHANGE_TO")) != 0) abort();
  done = 1;
  return __real_dlopen(path, flags);
}
