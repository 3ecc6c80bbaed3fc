// Reads and writes stamps; wherever anything is unusual there is none, and the file is hashed.
#include "bundle/stamps.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "base/text.h"
#include "bundle/files.h"
#include "bundle/sha256.h"

namespace ecr {
namespace {

constexpr const char* kVariable = "EDGECOMPILE_STAMPS";
constexpr const char* kFolder = "edgecompile-hashes";
constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";
constexpr int64_t kSecond = 1000000000;
// From this age on a file's times count.
constexpr int64_t kSettled = 60 * kSecond;
constexpr size_t kMost = 256, kNameLength = 32;
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW;

int64_t nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

bool is_settled(const struct stat& info) {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t last = std::max(nanoseconds(info.st_mtim), nanoseconds(info.st_ctim));
  return nanoseconds(now) - last > kSettled;
}

// Whether only this user or root can write to the file, on a disk of this machine.
bool is_trusted(const struct stat& info) {
  return info.st_ctim.tv_nsec != 0 && (info.st_uid == 0 || info.st_uid == geteuid()) &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0 && major(info.st_dev) != 0;
}

std::string read_boot_id() {
  const Descriptor file(open(kBootId, O_RDONLY | O_CLOEXEC));
  char text[64] = {};
  const ssize_t count = file.valid() ? read(file.get(), text, sizeof text) : 0;
  const std::string id(text, count > 0 ? static_cast<size_t>(count) : 0);
  return id.substr(0, id.find_last_not_of(" \n") + 1);
}

// What the stamp of a file holds; empty where its facts tell too little.
std::string write_text(const struct stat& info, const std::string& sha256) {
  const char* const variable = getenv(kVariable);
  const bool off = variable != nullptr && std::string(variable) == "0";
  if (off || !is_settled(info) || !is_trusted(info)) return "";
  const std::string boot = read_boot_id();
  if (boot.empty()) return "";
  return cat(boot, " ", sha256, " ", info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
             nanoseconds(info.st_mtim), " ", nanoseconds(info.st_ctim));
}

std::string name_of(const std::string& text) { return hash_text(text).substr(0, kNameLength); }

// Whether it is of this kind and only this user can use it.
bool is_own(const Descriptor& file, mode_t kind) {
  struct stat info = {};
  return fstat(file.get(), &info) == 0 && (info.st_mode & S_IFMT) == kind &&
         info.st_uid == geteuid() && (info.st_mode & kOthers) == 0;
}

Descriptor open_own(int at, const std::string& path) {
  Descriptor folder(openat(at, path.c_str(), O_RDONLY | O_DIRECTORY | kFlags));
  return folder.valid() && is_own(folder, S_IFDIR) ? std::move(folder) : Descriptor();
}

// The folder of stamps; invalid where there is none that only this user can use.
Descriptor find_folder(bool make) {
  const char* const variable = getenv("XDG_RUNTIME_DIR");
  const std::string base =
      variable != nullptr && *variable != '\0' ? variable : cat("/run/user/", geteuid());
  if (base[0] != '/') return Descriptor();
  const Descriptor outer = open_own(AT_FDCWD, base);
  if (!outer.valid()) return Descriptor();
  if (make) mkdirat(outer.get(), kFolder, 0700);  // it is there, or can't be made
  return open_own(outer.get(), kFolder);
}

struct CloseList {
  void operator()(DIR* list) const { closedir(list); }
};

// Removes all stamps where there are many: files are hashed once more then.
void make_room(const Descriptor& folder) {
  Descriptor again(openat(folder.get(), ".", O_RDONLY | O_DIRECTORY | kFlags));
  const std::unique_ptr<DIR, CloseList> list(again.valid() ? fdopendir(again.get()) : nullptr);
  if (list == nullptr) return;
  again.release();
  std::vector<std::string> names;
  while (const dirent* const entry = readdir(list.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  if (names.size() < kMost) return;
  for (const std::string& name : names) unlinkat(folder.get(), name.c_str(), 0);
}

// A name that no other writer has; empty where the system has no random bytes.
std::string partial_name(const std::string& name) {
  uint64_t random = 0;
  const Descriptor source(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  if (!source.valid() || read(source.get(), &random, sizeof random) != sizeof random) return "";
  return cat(name, ".", random, ".partial");
}

}  // namespace

bool find_stamp(const struct stat& info, const std::string& sha256) {
  const std::string text = write_text(info, sha256);
  const Descriptor folder = text.empty() ? Descriptor() : find_folder(false);
  if (!folder.valid()) return false;
  const Descriptor file(
      openat(folder.get(), name_of(text).c_str(), O_RDONLY | O_NONBLOCK | kFlags));
  if (!file.valid() || !is_own(file, S_IFREG)) return false;
  std::string found(text.size() + 1, '\0');
  const ssize_t count = read(file.get(), found.data(), found.size());
  return count >= 0 && found.compare(0, static_cast<size_t>(count), text) == 0;
}

void keep_stamp(const struct stat& info, const std::string& sha256) {
  const std::string text = write_text(info, sha256);
  const Descriptor folder = text.empty() ? Descriptor() : find_folder(true);
  if (!folder.valid()) return;
  const std::string name = name_of(text), partial = partial_name(name);
  if (partial.empty()) return;
  make_room(folder);
  const Descriptor file(
      openat(folder.get(), partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | kFlags, 0600));
  if (!file.valid()) return;
  const bool is_whole =
      write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!is_whole || renameat(folder.get(), partial.c_str(), folder.get(), name.c_str()) != 0) {
    unlinkat(folder.get(), partial.c_str(), 0);
  }
}

}  // namespace ecr
