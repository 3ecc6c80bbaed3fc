// Limits of the system, told apart from damage.
#include "bundle/limits.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/status.h"
#include "base/text.h"
#include "bundle/files.h"

namespace ecr {
namespace {

uint64_t soft_limit(decltype(RLIMIT_AS) which) {
  struct rlimit limit = {};
  return getrlimit(which, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

bool mounted_noexec(const std::string& path) {
  struct statvfs info = {};
  return statvfs(path.c_str(), &info) == 0 && (info.f_flag & ST_NOEXEC) != 0;
}

// The errno of mapping a file as code is mapped; 0: none. The loader doesn't always tell it.
int try_mapping(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info = {};
  if (!file.valid() || fstat(file.get(), &info) != 0) return errno;
  const auto size = static_cast<size_t>(info.st_size);
  void* const mapping = mmap(nullptr, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file.get(), 0);
  if (mapping == MAP_FAILED) return errno;
  munmap(mapping, size);
  return 0;
}

}  // namespace

bool is_out_of_memory(const std::string& text) {
  const std::string end = "out of memory";
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

void fail_for_memory(const std::string& doing, int64_t needed) {
  std::string text =
      cat(doing, ": ",
          needed > 0 ? cat("no memory for ", needed, " bytes") : std::string("out of memory"));
  std::string hint = "free memory, or use a smaller bundle or smaller inputs";
  const uint64_t limit = soft_limit(RLIMIT_AS);
  if (limit != RLIM_INFINITY) {
    text += cat(", the process may have ", limit, " bytes of address space");
    hint = "raise the limit of address space: ulimit -v, or RLIMIT_AS of the service";
  }
  fail(ECR_MEMORY, text, hint);
}

void fail_if_limit(int number, const std::string& where, int64_t needed) {
  switch (number) {
    case EMFILE:
      fail(ECR_FILES,
           cat(where, ": can't be opened: this process has as many files open as it may, ",
               soft_limit(RLIMIT_NOFILE)),
           "raise the limit: ulimit -n, or LimitNOFILE of the service; or close files");
    case ENFILE:
      fail(ECR_FILES,
           where + ": can't be opened: the whole system has as many files open as it may",
           "raise fs.file-max (sysctl), or end other programs");
    case EACCES:
    case EPERM:
      fail(ECR_PERMISSION, cat(where, ": user ", geteuid(), " isn't permitted to read it"),
           "give this user the right: chmod -R a+rX BUNDLE, and x on each folder above it");
    case ENOMEM:
      fail_for_memory(where, needed);
    default:
      return;
  }
}

void fail_if_loading_limit(const std::string& text, const std::string& where,
                           const std::string& path) {
  int number = 0;
  // ENFILE first: its text begins with EMFILE's.
  for (const int known : {ENFILE, EMFILE, EACCES, EPERM, ENOMEM}) {
    if (number == 0 && text.find(system_text(known)) != std::string::npos) number = known;
  }
  if (number == 0) number = try_mapping(path);
  // A library takes more address space than its file.
  if (number == 0 && text.find("map segment") != std::string::npos) number = ENOMEM;
  // A file that was opened and hashed may be read: what isn't allowed is to run it.
  if (number != EPERM && number != EACCES) return fail_if_limit(number, where);
  const bool noexec = mounted_noexec(path);
  fail(ECR_NOEXEC,
       cat(where, ": the system doesn't let code run from it",
           noexec ? ": its file system is mounted noexec" : ""),
       noexec ? "mount it without noexec, or move the bundle to another file system"
              : "see what the security module logs, SELinux or AppArmor, or move the bundle");
}

}  // namespace ecr
