// Parses signature files and statements; what isn't as it must be is a Fault.
#include "trust/statement.h"

#include <initializer_list>

#include "base/status.h"
#include "base/text.h"
#include "bundle/sha256.h"
#include "format/schema.h"
#include "json/json.h"
#include "trust/keys.h"

namespace ecr {
namespace {

using Type = Value::Type;

constexpr const char* kMediaType = "application/vnd.dev.sigstore.bundle.v0.3+json";
constexpr const char* kPayloadType = "application/vnd.in-toto+json";
constexpr const char* kStatementType = "https://in-toto.io/Statement/v1";
constexpr const char* kPredicateType = "https://model_signing/signature/v1.0";
constexpr const char* kGitNames[] = {".git", ".gitattributes", ".github", ".gitignore"};
constexpr char kNameLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";

[[noreturn]] void fault(const char* rule, const std::string& text) {
  throw Fault{cat(text, " [", rule, "]")};
}

[[noreturn]] void bad_form(const std::string& text) { fault("statement-form", text); }
[[noreturn]] void bad_envelope(const std::string& text) { fault("signature-envelope", text); }

Value parse(const std::string& text, const char* rule) {
  try {
    return parse_json(text, "it");
  } catch (const Error& error) {
    fault(rule, error.what());
  }
}

const Value* find(const Value* value, const char* key) {
  return value == nullptr || value->type() != Type::kObject ? nullptr : value->find(key);
}

bool is_text(const Value* value, const char* text) {
  return value != nullptr && value->type() == Type::kString && value->string() == text;
}

// The text of a value; empty where it is none.
std::string text_of(const Value* value) {
  return value == nullptr || value->type() != Type::kString ? "" : value->string();
}

std::string decode(const Value* value) {
  const auto data = decode_base64(text_of(value));
  if (!data) bad_envelope("a value isn't canonical base64");
  return *data;
}

// The object at `value`, which has exactly these keys.
const Value& with_keys(const Value* value, std::initializer_list<const char*> keys) {
  bool fits =
      value != nullptr && value->type() == Type::kObject && value->object().size() == keys.size();
  for (const char* key : keys) fits = fits && value->find(key) != nullptr;
  if (!fits) bad_form("an object hasn't exactly the keys " + join(keys));
  return *value;
}

void must_be(const Value& object, const char* key, const char* text) {
  if (!is_text(object.find(key), text)) bad_form(cat(key, " isn't ", text));
}

const List& list_of(const Value* value, const char* name) {
  if (value->type() != Type::kList) bad_form(cat(name, " must be a list"));
  return value->list();
}

// Signers may leave out signatures and git's files, nothing that a bundle consists of.
void check_ignored(const Value* paths) {
  for (const Value& item : list_of(paths, "ignore_paths")) {
    const std::string path = text_of(&item);
    bool allowed = path == kSignaturesName || is_signature_name(path.substr(path.rfind('/') + 1));
    for (const char* name : kGitNames) allowed = allowed || path == name;
    if (!allowed) bad_form("ignore_paths leaves out more than signatures and git's files");
  }
}

void update_from_hex(Sha256* digest, const std::string& hex) {
  const auto value = [](char letter) { return letter <= '9' ? letter - '0' : letter - 'a' + 10; };
  for (size_t i = 0; i < hex.size(); i += 2) {
    const auto byte = static_cast<uint8_t>(value(hex[i]) << 4 | value(hex[i + 1]));
    digest->update(&byte, 1);
  }
}

}  // namespace

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

bool is_signature_name(const std::string& name) {
  if (name.size() < 5 || name.compare(name.size() - 4, 4, ".sig") != 0) return false;
  return name.size() <= 104 && name[0] != '.' && name[0] != '-' &&
         name.find_first_not_of(kNameLetters) == std::string::npos;
}

std::string encode_payload(const std::string& payload) {
  const std::string type = kPayloadType;
  return cat("DSSEv1 ", type.size(), " ", type, " ", payload.size(), " ") + payload;
}

Envelope parse_envelope(const std::string& data) {
  const Value top = parse(data, "signature-envelope");
  if (!is_text(top.find("mediaType"), kMediaType))
    bad_envelope(cat("mediaType isn't ", kMediaType));
  const std::string hint =
      text_of(find(find(top.find("verificationMaterial"), "publicKey"), "hint"));
  if (!is_sha256(hint)) {
    bad_envelope(
        "isn't by a key that it names (verify certificates and keyless signatures with "
        "model_signing)");
  }
  const Value* const envelope = top.find("dsseEnvelope");
  if (!is_text(find(envelope, "payloadType"), kPayloadType)) {
    bad_envelope(cat("dsseEnvelope.payloadType isn't ", kPayloadType));
  }
  const Value* const signatures = find(envelope, "signatures");
  if (signatures == nullptr || signatures->type() != Type::kList ||
      signatures->list().size() != 1) {
    bad_envelope("dsseEnvelope doesn't hold exactly one signature");
  }
  return {hint, decode(find(envelope, "payload")), decode(find(&signatures->list()[0], "sig"))};
}

std::map<std::string, std::string> parse_statement(const std::string& payload) {
  const Value document = parse(payload, "statement-form");
  const Value& top = with_keys(&document, {"_type", "subject", "predicateType", "predicate"});
  must_be(top, "_type", kStatementType);
  must_be(top, "predicateType", kPredicateType);
  const Value& predicate = with_keys(top.find("predicate"), {"serialization", "resources"});
  const Value& serialization = with_keys(predicate.find("serialization"),
                                         {"method", "hash_type", "allow_symlinks", "ignore_paths"});
  must_be(serialization, "method", "files");
  must_be(serialization, "hash_type", "sha256");
  const Value* const links = serialization.find("allow_symlinks");
  if (links->type() != Type::kBoolean || std::get<bool>(links->data)) {
    bad_form("allow_symlinks isn't false");
  }
  check_ignored(serialization.find("ignore_paths"));
  std::map<std::string, std::string> digests;
  Sha256 whole;
  for (const Value& item : list_of(predicate.find("resources"), "resources")) {
    const Value& resource = with_keys(&item, {"name", "algorithm", "digest"});
    must_be(resource, "algorithm", "sha256");
    const std::string name = text_of(resource.find("name"));
    const std::string digest = text_of(resource.find("digest"));
    if (!is_sha256(digest)) bad_form("a resource's digest isn't 64 lower-case hex digits");
    if (!is_path(name)) bad_form("a resource's name isn't a path in a bundle");
    if (!digests.emplace(name, digest).second) bad_form("a resource is named twice");
    update_from_hex(&whole, digest);
  }
  const List& subjects = list_of(top.find("subject"), "subject");
  if (subjects.size() != 1) bad_form("it has not exactly one subject");
  const Value& subject = with_keys(&subjects[0], {"name", "digest"});
  const Value& digest = with_keys(subject.find("digest"), {"sha256"});
  if (text_of(digest.find("sha256")) != whole.finish()) {
    fault("statement-digest", "the subject's digest isn't that of the resources");
  }
  return digests;
}

}  // namespace ecr
