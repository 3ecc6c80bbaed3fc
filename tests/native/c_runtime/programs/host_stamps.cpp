// Keeps or finds stamps: a line of "keep" or "find", a hash, and a file's facts that are set: its
// device, owner, mode, size, and both times in ns. Answers a find with "found" or "none".
#include <cstdio>

#include "bundle/stamps.h"

static timespec time_of(long long ns) { return {ns / 1000000000, ns % 1000000000}; }

int main() {
  char verb[8], sha256[65];
  unsigned long long device, inode;
  unsigned owner, mode;
  long long size, modified, changed;
  while (std::scanf("%7s %64s %llu %llu %u %u %lld %lld %lld", verb, sha256, &device, &inode,
                    &owner, &mode, &size, &modified, &changed) == 9) {
    struct stat info = {};
    info.st_dev = device;
    info.st_ino = inode;
    info.st_uid = owner;
    info.st_mode = mode;
    info.st_size = size;
    info.st_mtim = time_of(modified);
    info.st_ctim = time_of(changed);
    if (verb[0] == 'k') {
      ecr::keep_stamp(info, sha256);
    } else {
      std::puts(ecr::find_stamp(info, sha256) ? "found" : "none");
    }
  }
  return 0;
}
