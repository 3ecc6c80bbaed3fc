// SHA-256 (FIPS 180-4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ecr {

class Sha256 {
 public:
  void update(const uint8_t* data, size_t size);
  // Lower-case hex; the object is used up.
  std::string finish();

 private:
  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t block_[64] = {};
  size_t held_ = 0;
  uint64_t total_ = 0;
};

// Lower-case hex of a text's hash.
std::string hash_text(const std::string& data);

// Adds whole blocks to a state, with the CPU's instructions for it where it has them.
void sha256_blocks(uint32_t state[8], const uint8_t* data, size_t blocks);
// The same in plain C++, for tests.
void sha256_blocks_portable(uint32_t state[8], const uint8_t* data, size_t blocks);

extern const uint32_t kSha256Constants[64];

}  // namespace ecr
