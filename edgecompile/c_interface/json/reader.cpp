// Typed access to a document that collects its problems.
#include "json/reader.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace ecr {
namespace {

constexpr size_t kMaxListed = 40;
constexpr size_t kMaxNameLength = 200;

using Type = Value::Type;

bool is_name_letter(char letter) {
  return ('A' <= letter && letter <= 'Z') || ('a' <= letter && letter <= 'z') ||
         ('0' <= letter && letter <= '9') || letter == '_';
}

}  // namespace

void Problems::add(const char* rule, const std::string& where, const std::string& text) {
  if (count_++ < kMaxListed) lines_.push_back(cat(where, ": ", text, " [", rule, "]"));
}

void Problems::raise_if_any(int32_t code, const std::string& hint) const {
  if (count_ == 0) return;
  if (count_ == 1) fail(code, cat(source_, ": ", lines_[0]), hint);
  std::string text = cat(source_, ": ", count_, " problems");
  for (const std::string& line : lines_) text += "\n  " + line;
  if (count_ > lines_.size()) text += cat("\n  ... and ", count_ - lines_.size(), " more");
  fail(code, text, hint);
}

std::string Number::text() const { return is_integer ? cat(integer) : cat(real); }

void Reader::add_type(const Value& value, const std::string& where, const char* wanted) {
  add("key-type", where, cat("must be ", wanted, ", not ", value.type_name()));
}

const Value* Reader::key(const Object& parent, const char* name, const std::string& where) {
  const Value* const value = parent.find(name);
  if (value == nullptr) add("key-missing", place_of(where, name), "is required");
  return value;
}

const Object& Reader::mapping(const Object& parent, const char* name, const std::string& where,
                              bool optional) {
  static const Object& empty = *new Object;
  const Value* const value = optional ? parent.find(name) : key(parent, name, where);
  const Object* const object =
      value == nullptr ? nullptr : as_object(*value, place_of(where, name));
  return object == nullptr ? empty : *object;
}

Items Reader::items(const Object& parent, const char* name, const std::string& where, size_t least,
                    size_t most) {
  const Value* const value = key(parent, name, where);
  if (value == nullptr) return {};
  const std::string place = place_of(where, name);
  if (!value->is(Type::kList)) {
    add_type(*value, place, "a list");
    return {};
  }
  const std::vector<Value>& list = value->list();
  count(list.size(), place, least, most);
  return {list.data(), std::min(list.size(), most)};
}

void Reader::count(size_t count, const std::string& where, size_t least, size_t most) {
  if (count < least || count > most) {
    add("list-size", where, cat("has ", count, " entries, must have ", least, " to ", most));
  }
}

const Object* Reader::as_object(const Value& value, const std::string& where) {
  if (value.is(Type::kObject)) return &value.object();
  add_type(value, where, "an object");
  return nullptr;
}

const std::string* Reader::as_string(const Value& value, const std::string& where) {
  if (value.is(Type::kString)) return &value.string();
  add_type(value, where, "a string");
  return nullptr;
}

std::optional<int64_t> Reader::as_integer(const Value& value, const std::string& where) {
  if (value.is(Type::kInteger)) return value.integer();
  add_type(value, where, "an integer");
  return std::nullopt;
}

std::optional<Number> Reader::as_number(const Value& value, const std::string& where) {
  if (value.is(Type::kInteger)) return Number{true, value.integer(), 0};
  if (value.is(Type::kNumber)) return Number{false, 0, value.number()};
  add_type(value, where, "a number");
  return std::nullopt;
}

const std::string* Reader::string(const Object& parent, const char* name,
                                  const std::string& where) {
  const Value* const value = key(parent, name, where);
  return value == nullptr ? nullptr : as_string(*value, place_of(where, name));
}

std::optional<int64_t> Reader::integer(const Object& parent, const char* name,
                                       const std::string& where) {
  const Value* const value = key(parent, name, where);
  return value == nullptr ? std::nullopt : as_integer(*value, place_of(where, name));
}

std::optional<Number> Reader::number(const Object& parent, const char* name,
                                     const std::string& where) {
  const Value* const value = key(parent, name, where);
  return value == nullptr ? std::nullopt : as_number(*value, place_of(where, name));
}

const std::string* Reader::name(const Object& parent, const char* name, const std::string& where) {
  const std::string* const value = string(parent, name, where);
  return value != nullptr && check_name(*value, place_of(where, name)) ? value : nullptr;
}

bool Reader::check_name(const std::string& value, const std::string& where) {
  const bool good =
      !value.empty() && value.size() <= kMaxNameLength && is_name_letter(value[0]) &&
      std::all_of(value.begin(), value.end(), [](char letter) {
        return is_name_letter(letter) || (letter != '\0' && std::strchr(".:+-", letter) != nullptr);
      });
  if (!good) {
    add("name-form", where,
        cat(quoted(value), " isn't a name (1 to 200 of A-Z a-z 0-9 _ . : + -)"));
  }
  return good;
}

}  // namespace ecr
