// Public keys in PEM, and their signatures, which the system's libcrypto checks.
#pragma once

#include <optional>
#include <string>

namespace ecr {

// A key of P-256, P-384 or P-521.
struct PublicKey {
  std::string der;     // SubjectPublicKeyInfo: its identity
  std::string digest;  // libcrypto's function for the hash of its signatures
  std::string hint;    // hex SHA-256 of its PEM text, by which signatures name it
};

// The key in the text of a PEM file; none where it holds anything else.
std::optional<PublicKey> parse_public_key(const std::string& text);

// The bytes of canonical base64; none where it is anything else, or empty.
std::optional<std::string> decode_base64(const std::string& text);
std::string encode_base64(const std::string& data);

// Loads libcrypto, once in a process. Throws Error ECR_NO_CRYPTO where there is none.
void need_libcrypto();

// Whether `signature`, in DER, is the key's over `message`. Throws as need_libcrypto.
bool is_signature(const PublicKey& key, const std::string& message, const std::string& signature);

}  // namespace ecr
