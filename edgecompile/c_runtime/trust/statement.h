// Signature files and what they state: OpenSSF Model Signing 1.0, by a key, with a SHA-256 for each
// file.
#pragma once

#include <map>
#include <string>

namespace ecr {

constexpr size_t kMaxSignatures = 16;
constexpr size_t kMaxSignatureBytes = 8u << 20;  // of all files together
constexpr const char* kSignaturesName = "signatures";

// Why a signature doesn't count.
struct Fault {
  std::string text;  // with the id of the rule
};

// The content of a signature file, a Sigstore bundle with a DSSE envelope.
struct Envelope {
  std::string hint;       // of the key
  std::string payload;    // what was signed
  std::string signature;  // DER
};

bool is_sha256(const std::string& text);  // in lower-case hex

bool is_signature_name(const std::string& name);

// The bytes that are signed: DSSE's pre-authentication encoding.
std::string encode_payload(const std::string& payload);

// Throws Fault where the file isn't a signature by a key.
Envelope parse_envelope(const std::string& data);

// The SHA-256 in hex of each file by its path. Throws Fault where a signed payload isn't an in-toto
// statement of this form.
std::map<std::string, std::string> parse_statement(const std::string& payload);

}  // namespace ecr
