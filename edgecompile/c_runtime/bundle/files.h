// The files of a bundle: opened without following links, checked against the manifest.
//
// Every file is opened relative to the folder's descriptor, one path component at a time, so
// neither a link inside the bundle nor a rename of the folder changes what is read.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "format/schema.h"

namespace ecr {

// As Python's os.path.join of a name that isn't absolute.
std::string join_paths(const std::string& folder, const std::string& name);

// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives up ownership.
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// What changes with the content of a file: device, inode, size, times of modification and change. A
// writer can set the time of modification back, but not that of change.
using FileState = std::array<int64_t, 7>;
// Of what lies at a path, links followed; none where there is nothing.
std::optional<FileState> state_of_path(const std::string& path);
std::optional<FileState> state_of_file(const Descriptor& file);

struct Damage {
  const char* rule = nullptr;  // null: none
  std::string text;
};

// What keeps the file from being what `entry` says. Throws Error ECR_DAMAGED where it can't be
// read.
Damage find_hash_damage(const Descriptor& file, const FileEntry& entry, const std::string& label);

class BundleFolder {
 public:
  // Opens the folder and reads the manifest, and no other file. Throws Error ECR_BUNDLE or
  // ECR_VERSION, or what fail_if_limit does, as every method that opens a file.
  explicit BundleFolder(const std::string& path);
  // The folder is open already; `path` is its name in messages.
  BundleFolder(const std::string& path, Descriptor folder);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  // Hex digest of manifest.json: the identity of the bundle.
  const std::string& manifest_sha256() const { return manifest_sha256_; }
  // How to call a listed file in a message.
  std::string label(const std::string& name) const;

  // Opens a listed file. Throws Error ECR_DAMAGED: rules file-missing, file-kind,
  // file-size-differs.
  Descriptor open(const std::string& name) const;
  // Checks that what the descriptor holds has the recorded SHA-256. Throws Error ECR_DAMAGED: rules
  // file-hash, file-size-differs.
  void check_hash(const std::string& name, const Descriptor& file) const;
  // As check_hash, for a file that takes long: its hash may be known since the boot.
  void check_large(const std::string& name, const Descriptor& file) const;
  // Checks that every listed file is there, regular and of its size; with hashes also those, and
  // that the folder holds no other files. Throws Error ECR_DAMAGED.
  void check_files(bool with_hashes) const;

 private:
  void check_unlisted(const char* hint) const;
  [[noreturn]] void fail_damaged(const std::string& name, const Damage& damage) const;
  std::string read_manifest() const;

  std::string path_;
  Descriptor folder_;
  Manifest manifest_;
  std::string manifest_sha256_;
};

// Reads exactly `size` bytes at `offset`, or fewer at the end of the file; gives what was read.
// Throws Error ECR_DAMAGED where the system can't.
size_t read_at(const Descriptor& file, void* data, size_t size, uint64_t offset,
               const std::string& label);

}  // namespace ecr
