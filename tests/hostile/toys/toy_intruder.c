/* A library that leaves a trace as soon as it is loaded, whoever loads it. Its hash is in no
 * manifest. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void leave_trace(void) {
  const char* path = getenv("EDGECOMPILE_INTRUDER_TRACE");
  const int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
}
