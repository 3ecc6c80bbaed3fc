// A bundle's folder: its files, opened without following links, measured and hashed.
#include "bundle/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "base/text.h"
#include "bundle/limits.h"
#include "bundle/sha256.h"
#include "bundle/stamps.h"
#include "trust/check.h"
#include "trust/statement.h"

namespace ecr {
namespace {

constexpr size_t kChunk = 1 << 20;
// Least size of a file whose hash is worth a stamp: a smaller one takes under a millisecond.
constexpr int64_t kLarge = 1 << 20;
constexpr const char* kDamagedHint = "copy the bundle again, or build it again";
constexpr const char* kUnlistedHint =
    "remove what the manifest doesn't list; Python writes __pycache__ where PYTHONPATH names the "
    "bundle's runtime: install edgecompile-runtime, or run python3 BUNDLE COMMAND, instead";
// Where signatures are checked, no command may run the folder's own code before.
constexpr const char* kUnsignedHint =
    "remove what the manifest doesn't list, such as __pycache__: no signature covers it; open the "
    "bundle by an installed edgecompile-runtime, which writes nothing there";
// O_NONBLOCK: opening a FIFO that lies where a file should be must not hang.
constexpr int kFileFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
constexpr int kFolderFlags = O_RDONLY | O_CLOEXEC | O_DIRECTORY;

int open_retrying(int folder, const char* name, int flags) {
  while (true) {
    const int fd = openat(folder, name, flags);
    if (fd >= 0 || errno != EINTR) return fd;
  }
}

ssize_t read_retrying(int fd, void* data, size_t size, uint64_t offset) {
  while (true) {
    const ssize_t count = pread(fd, data, size, static_cast<off_t>(offset));
    if (count >= 0 || errno != EINTR) return count;
  }
}

// Whether this is an empty file in the place of the folder that Python writes byte code to.
bool keeps_byte_code_out(int folder, const std::string& name) {
  struct stat info = {};
  return name == "__pycache__" && fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISREG(info.st_mode) && info.st_size == 0;
}

// Whether the manifest needn't list what has this name: signatures and the release lie beside it.
bool is_of_signatures(int fd, const std::string& folder, const std::string& name) {
  struct stat info = {};
  if (fstatat(fd, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return false;
  if (folder.empty() && name == kSignaturesName) return S_ISDIR(info.st_mode);
  const bool is_file = folder.empty()
                           ? name == kReleaseName
                           : folder == cat(kSignaturesName, "/") && is_signature_name(name);
  return is_file && S_ISREG(info.st_mode);
}

struct CloseFolder {
  void operator()(DIR* list) const { closedir(list); }
};

Descriptor open_folder(const std::string& path) {
  // The bundle itself may be reached through a link: the user chose that path.
  Descriptor folder(open_retrying(AT_FDCWD, path.c_str(), kFolderFlags));
  if (folder.valid()) return folder;
  const int number = errno;
  if (number == ENOENT) {
    fail(ECR_BUNDLE, path + ": doesn't exist [bundle-folder]", "check the path");
  }
  if (number == ENOTDIR) {
    fail(ECR_BUNDLE, path + ": is not a bundle: it isn't a folder [bundle-folder]",
         "an archive of a bundle has to be unpacked first");
  }
  fail_if_limit(number, path);
  fail(ECR_BUNDLE, cat(path, ": can't be opened: ", system_text(number), " [bundle-folder]"),
       "check the path");
}

// Opens what lies below a folder, following no link. -1 and errno where that fails.
int open_beneath(int folder, const std::string& name, int flags = kFileFlags) {
  Descriptor opened;
  size_t begin = 0;
  while (true) {
    const int at = opened.valid() ? opened.get() : folder;
    const size_t end = name.find('/', begin);
    const std::string part = name.substr(begin, end - begin);
    if (end == std::string::npos) return open_retrying(at, part.c_str(), flags);
    Descriptor next(open_retrying(at, part.c_str(), kFolderFlags | O_NOFOLLOW));
    if (!next.valid()) return -1;
    opened = std::move(next);
    begin = end + 1;
  }
}

FileState file_state(const struct stat& info) {
  return {static_cast<int64_t>(info.st_dev),
          static_cast<int64_t>(info.st_ino),
          info.st_size,
          info.st_mtim.tv_sec,
          info.st_mtim.tv_nsec,
          info.st_ctim.tv_sec,
          info.st_ctim.tv_nsec};
}

}  // namespace

Descriptor::~Descriptor() {
  // Callers look at errno after a descriptor went out of scope.
  const int number = errno;
  if (fd_ >= 0) close(fd_);
  errno = number;
}

size_t read_at(const Descriptor& file, void* data, size_t size, uint64_t offset,
               const std::string& label) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count =
        read_retrying(file.get(), static_cast<char*>(data) + done, size - done, offset + done);
    if (count == 0) break;
    if (count < 0) {
      fail(ECR_DAMAGED, cat(label, ": can't be read: ", system_text(errno), " [file-hash]"),
           kDamagedHint);
    }
    done += static_cast<size_t>(count);
  }
  return done;
}

std::optional<FileState> state_of_path(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return file_state(info);
}

std::optional<FileState> state_of_file(const Descriptor& file) {
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return std::nullopt;
  return file_state(info);
}

Damage find_hash_damage(const Descriptor& file, const FileEntry& entry, const std::string& label) {
  Sha256 digest;
  // Read, not mapped: hashing must not add the file to the process' resident memory.
  std::vector<uint8_t> buffer(
      std::clamp<size_t>(static_cast<size_t>(entry.size) + 1, 1 << 12, kChunk));
  uint64_t offset = 0;
  while (true) {
    const size_t count = read_at(file, buffer.data(), buffer.size(), offset, label);
    if (count == 0) break;
    digest.update(buffer.data(), count);
    offset += count;
    if (offset > static_cast<uint64_t>(entry.size)) break;  // it grows; that is damage enough
  }
  if (offset != static_cast<uint64_t>(entry.size)) {
    return {"file-size-differs", cat("has ", offset, " bytes, must have ", entry.size)};
  }
  const std::string text = digest.finish();
  if (text != entry.sha256) {
    return {"file-hash", cat("has SHA-256 ", text, ", must have ", entry.sha256)};
  }
  return {};
}

BundleFolder::BundleFolder(const std::string& path) : BundleFolder(path, open_folder(path)) {}

BundleFolder::BundleFolder(const std::string& path, Descriptor folder)
    : path_(path), folder_(std::move(folder)) {
  const std::string data = read_manifest();
  manifest_sha256_ = hash_text(data);
  std::optional<Policy> policy = find_policy();
  std::optional<Signed> signed_manifest;
  if (policy) {
    signed_manifest = check_signatures(folder_.get(), path_, manifest_sha256_, std::move(*policy));
  }
  manifest_ = parse_manifest(data, label(kManifestName));
  if (signed_manifest) {
    signed_manifest->judge(manifest_);
    check_unlisted(kUnsignedHint);
  }
}

std::string join_paths(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.back() == '/' ? folder + name : cat(folder, "/", name);
}

std::string BundleFolder::label(const std::string& name) const { return join_paths(path_, name); }

std::string BundleFolder::read_manifest() const {
  const std::string place = label(kManifestName);
  const Descriptor file(open_retrying(folder_.get(), kManifestName, kFileFlags));
  if (!file.valid() && errno == ENOENT) {
    fail(ECR_BUNDLE,
         cat(path_, ": is not a bundle: it has no ", kManifestName, " [bundle-manifest]"),
         "the path must be a bundle, a folder that `edgecompile build` wrote");
  }
  if (!file.valid()) {
    const int number = errno;
    fail_if_limit(number, place);
    fail(ECR_BUNDLE,
         cat(place, ": can't be opened as a file: ", system_text(number), " [bundle-manifest]"),
         "the path must be a bundle, a folder that `edgecompile build` wrote");
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    fail(ECR_BUNDLE, place + ": isn't a regular file [bundle-manifest]");
  }
  if (info.st_size > static_cast<off_t>(kMaxManifestBytes)) {
    fail(ECR_BUNDLE,
         cat(place, ": ", info.st_size, " bytes, at most ", kMaxManifestBytes, " [json-size]"));
  }
  // One byte more than it had, to notice a file that grows.
  std::string data(static_cast<size_t>(info.st_size) + 1, '\0');
  data.resize(read_at(file, data.data(), data.size(), 0, place));
  return data;
}

void BundleFolder::fail_damaged(const std::string& name, const Damage& damage) const {
  fail(ECR_DAMAGED, cat(path_, ": ", name, ": ", damage.text, " [", damage.rule, "]"),
       kDamagedHint);
}

void BundleFolder::check_hash(const std::string& name, const Descriptor& file) const {
  const Damage damage = find_hash_damage(file, manifest_.files.at(name), label(name));
  if (damage.rule != nullptr) fail_damaged(name, damage);
}

void BundleFolder::check_large(const std::string& name, const Descriptor& file) const {
  const FileEntry& entry = manifest_.files.at(name);
  struct stat before = {};
  if (entry.size < kLarge || fstat(file.get(), &before) != 0) return check_hash(name, file);
  if (find_stamp(before, entry.sha256)) return;
  check_hash(name, file);
  // A file that was written to meanwhile has a hash that nobody knows.
  if (state_of_file(file) == file_state(before)) keep_stamp(before, entry.sha256);
}

void BundleFolder::check_files(bool with_hashes) const {
  for (const auto& entry : manifest_.files) {
    const Descriptor file = open(entry.first);
    if (with_hashes) check_hash(entry.first, file);
  }
  if (with_hashes) check_unlisted(kUnlistedHint);
}

void BundleFolder::check_unlisted(const char* hint) const {
  std::vector<std::string> folders = {""};
  while (!folders.empty()) {
    const std::string folder = std::move(folders.back());
    folders.pop_back();
    Descriptor opened(open_beneath(folder_.get(), folder + ".", kFolderFlags | O_NOFOLLOW));
    const std::unique_ptr<DIR, CloseFolder> list(opened.valid() ? fdopendir(opened.get())
                                                                : nullptr);
    if (list == nullptr) {
      fail_if_limit(errno, label(folder));
      fail_damaged(folder, {"file-kind", "can't be listed"});
    }
    opened.release();
    while (const dirent* const entry = readdir(list.get())) {
      const std::string leaf = entry->d_name;
      const std::string path = folder + leaf;
      if (leaf == "." || leaf == ".." || path == kManifestName || manifest_.files.count(path)) {
        continue;
      }
      if (is_of_signatures(dirfd(list.get()), folder, leaf)) {
        if (path == kSignaturesName) folders.push_back(path + "/");
        continue;
      }
      // Only a folder of listed files is looked into; any other one is refused.
      const std::string inside = path + "/";
      const auto first = manifest_.files.lower_bound(inside);
      if (first != manifest_.files.end() && first->first.compare(0, inside.size(), inside) == 0) {
        folders.push_back(inside);
      } else if (!keeps_byte_code_out(dirfd(list.get()), leaf)) {
        fail(ECR_DAMAGED,
             cat(path_, ": ", shorten(path, 200), ": isn't listed in the manifest [file-unlisted]"),
             hint);
      }
    }
  }
}

Descriptor BundleFolder::open(const std::string& name) const {
  Descriptor file(open_beneath(folder_.get(), name));
  if (!file.valid()) {
    const int number = errno;
    if (number == ENOENT) fail_damaged(name, {"file-missing", "is missing"});
    fail_if_limit(number, label(name));
    fail_damaged(name, {"file-kind", "is a link, or can't be opened: " + system_text(number)});
  }
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    fail_damaged(name, {"file-kind", "isn't a regular file"});
  }
  const int64_t recorded = manifest_.files.at(name).size;
  if (info.st_size != recorded) {
    fail_damaged(name,
                 {"file-size-differs", cat("has ", info.st_size, " bytes, must have ", recorded)});
  }
  return file;
}

}  // namespace ecr
