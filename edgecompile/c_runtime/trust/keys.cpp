// Public keys, base64, and libcrypto by dlopen.
#include "trust/keys.h"

#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "base/text.h"
#include "bundle/sha256.h"

namespace ecr {
namespace {

constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr const char* kBegin = "-----BEGIN PUBLIC KEY-----";
constexpr const char* kEnd = "-----END PUBLIC KEY-----";
constexpr const char* kSpace = " \t\n\r\f\v";
constexpr const char* kNames[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

// Of each curve all of a key's DER before the point, in hex, and the DER's size. The bytes are
// compared, so no other kind of key is ever handed to the library.
struct Curve {
  const char* prefix;
  size_t size;
  const char* digest;
};
constexpr Curve kCurves[] = {
    {"3059301306072a8648ce3d020106082a8648ce3d03010703420004", 91, "EVP_sha256"},
    {"3076301006072a8648ce3d020106052b8104002203620004", 120, "EVP_sha384"},
    {"30819b301006072a8648ce3d020106052b810400230381860004", 158, "EVP_sha512"},
};

bool begins_with_hex(const std::string& data, const std::string& hex) {
  if (data.size() < hex.size() / 2) return false;
  for (size_t i = 0; i < hex.size() / 2; ++i) {
    const auto byte = static_cast<uint8_t>(data[i]);
    if ("0123456789abcdef"[byte >> 4] != hex[2 * i] ||
        "0123456789abcdef"[byte & 15] != hex[2 * i + 1]) {
      return false;
    }
  }
  return true;
}

std::string format_pem(const std::string& der) {
  const std::string text = encode_base64(der);
  std::string lines = cat(kBegin, "\n");
  for (size_t at = 0; at < text.size(); at += 64) lines += text.substr(at, 64) + "\n";
  return lines + kEnd + "\n";
}

// Functions that OpenSSL 1.1.1 and 3 both have under the same name.
struct Libcrypto {
  void* library = nullptr;
  void* (*d2i_key)(void**, const unsigned char**, long) = nullptr;
  void* (*new_context)() = nullptr;
  void (*free_context)(void*) = nullptr;
  int (*begin)(void*, void*, const void*, void*, void*) = nullptr;
  int (*verify)(void*, const unsigned char*, size_t, const unsigned char*, size_t) = nullptr;
  void (*clear_errors)() = nullptr;
  const void* (*digests[3])() = {};
};

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

std::optional<Libcrypto> open_library(const char* name, std::string* problems) {
  Libcrypto found;
  found.library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  void* const library = found.library;
  bool whole = library != nullptr && find(library, "d2i_PUBKEY", &found.d2i_key) &&
               find(library, "EVP_MD_CTX_new", &found.new_context) &&
               find(library, "EVP_MD_CTX_free", &found.free_context) &&
               find(library, "EVP_DigestVerifyInit", &found.begin) &&
               find(library, "EVP_DigestVerify", &found.verify) &&
               find(library, "ERR_clear_error", &found.clear_errors);
  for (size_t i = 0; i < 3; ++i) {
    whole = whole && find(library, kCurves[i].digest, &found.digests[i]);
  }
  if (whole) return found;
  const char* const told = dlerror();
  if (!problems->empty()) *problems += "; ";
  *problems += told == nullptr ? cat(name, " can't be used") : std::string(told);
  return std::nullopt;
}

const Libcrypto& load() {
  static std::mutex& mutex = *new std::mutex;
  static const Libcrypto* loaded = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  std::string problems;
  for (const char* name : kNames) {
    if (loaded != nullptr) break;
    const std::optional<Libcrypto> found = open_library(name, &problems);
    if (found) loaded = new Libcrypto(*found);  // for good: it is never unloaded
  }
  if (loaded == nullptr) {
    fail(ECR_NO_CRYPTO, cat("signatures can't be checked here: ", problems, " [crypto-missing]"),
         "install OpenSSL's library (libssl3 or libssl1.1)");
  }
  return *loaded;
}

const unsigned char* bytes_of(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// The key as libcrypto has it, null where it can't be read. It is decoded once, which takes 0.1 ms,
// and kept for good: only the keys of trust folders come here.
void* load_key(const Libcrypto& crypto, const std::string& der) {
  static std::mutex& mutex = *new std::mutex;
  static std::map<std::string, void*>& kept = *new std::map<std::string, void*>;
  const std::lock_guard<std::mutex> lock(mutex);
  void*& loaded = kept[der];
  const unsigned char* place = bytes_of(der);
  if (loaded == nullptr) loaded = crypto.d2i_key(nullptr, &place, static_cast<long>(der.size()));
  return loaded;
}

}  // namespace

std::string encode_base64(const std::string& data) {
  std::string text;
  text.reserve((data.size() + 2) / 3 * 4);
  for (size_t at = 0; at < data.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (at + i < data.size() ? static_cast<uint8_t>(data[at + i]) : 0u);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += at + i > data.size() ? '=' : kLetters[bits >> (18 - 6 * i) & 63];
    }
  }
  return text;
}

std::optional<std::string> decode_base64(const std::string& text) {
  int8_t values[256];
  for (int8_t& value : values) value = -1;
  for (int8_t i = 0; i < 64; ++i) values[static_cast<uint8_t>(kLetters[i])] = i;
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text[text.size() - 2] == '=' ? 2 : text.back() == '=' ? 1 : 0;
  std::string data;
  data.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_padding = i + padding >= text.size();
    const int8_t value = is_padding ? int8_t{0} : values[static_cast<uint8_t>(text[i])];
    if (value < 0 || (is_padding && text[i] != '=')) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 != 3) continue;
    for (int shift = 16; shift >= 0; shift -= 8) data += static_cast<char>(bits >> shift & 255);
    bits = 0;
  }
  data.resize(data.size() - padding);
  // One text for each value: no bits beside the last byte.
  const std::string last = data.substr((data.size() - 1) / 3 * 3);
  if (text.compare(text.size() - 4, 4, encode_base64(last)) != 0) return std::nullopt;
  return data;
}

std::optional<PublicKey> parse_public_key(const std::string& text) {
  const std::string begin = kBegin, end = kEnd;
  const size_t first = text.find_first_not_of(kSpace);
  const size_t last = text.find_last_not_of(kSpace);
  if (first == std::string::npos || last + 1 - first < begin.size() + end.size()) {
    return std::nullopt;
  }
  std::string body = text.substr(first, last + 1 - first);
  if (body.compare(0, begin.size(), begin) != 0 ||
      body.compare(body.size() - end.size(), end.size(), end) != 0) {
    return std::nullopt;
  }
  body = body.substr(begin.size(), body.size() - begin.size() - end.size());
  if (body.compare(0, 1, "\n") != 0 && body.compare(0, 2, "\r\n") != 0) return std::nullopt;
  std::string letters;
  for (const char letter : body) {
    if (letter != '\r' && letter != '\n') letters += letter;
  }
  const std::optional<std::string> der = decode_base64(letters);
  if (!der) return std::nullopt;
  for (const Curve& curve : kCurves) {
    if (der->size() == curve.size && begins_with_hex(*der, curve.prefix)) {
      return PublicKey{*der, curve.digest, hash_text(format_pem(*der))};
    }
  }
  return std::nullopt;
}

void need_libcrypto() { load(); }

bool is_signature(const PublicKey& key, const std::string& message, const std::string& signature) {
  const Libcrypto& crypto = load();
  void* const loaded = load_key(crypto, key.der);
  void* const context = crypto.new_context();
  bool valid = false;
  for (size_t i = 0; i < 3; ++i) {
    if (loaded == nullptr || context == nullptr || key.digest != kCurves[i].digest) continue;
    // Failures are 0 or below: only 1 is success.
    valid = crypto.begin(context, nullptr, crypto.digests[i](), nullptr, loaded) == 1 &&
            crypto.verify(context, bytes_of(signature), signature.size(), bytes_of(message),
                          message.size()) == 1;
  }
  crypto.free_context(context);
  crypto.clear_errors();  // others of this process read the same queue
  return valid;
}

}  // namespace ecr
