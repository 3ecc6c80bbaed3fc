#include "json/field.h"

#include "base/text.h"

namespace ecr {
namespace {

using Type = Value::Type;

constexpr size_t kMaxNameLength = 200;
constexpr char kNameLetters[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:+-";

}  // namespace

std::string Number::text() const {
  return is_integer ? cat(static_cast<int64_t>(value)) : cat(static_cast<double>(value));
}

void Field::refuse(const char* rule, const std::string& text) const {
  fail(ECR_BUNDLE,
       cat(*source_, ": ", place_.empty() ? "document" : place_.c_str(), ": ", text, " [", rule,
           "]"),
       "the bundle was written wrongly or changed; build it again");
}

Field Field::within(const std::string& key, const Value& value) const {
  return {value, *source_, place_.empty() ? shorten(key) : cat(place_, ".", shorten(key))};
}

Field Field::child(const Member& member) const { return within(member.key, member.value); }

Field Field::at(const char* key) const {
  check_type(Type::kObject, "an object");
  const Value* const value = value_->find(key);
  if (value == nullptr) within(key, *value_).refuse("key-missing", "is required");
  return within(key, *value);
}

std::optional<Field> Field::find(const char* key) const {
  check_type(Type::kObject, "an object");
  const Value* const value = value_->find(key);
  if (value == nullptr || value->type() == Type::kNull) return std::nullopt;
  return within(key, *value);
}

const Object& Field::object(size_t least, size_t most) const {
  check_type(Type::kObject, "an object");
  check_size(value_->object().size(), least, most, "list-size");
  return value_->object();
}

std::vector<Field> Field::list(size_t least, size_t most, const char* rule) const {
  check_type(Type::kList, "a list");
  check_size(value_->list().size(), least, most, rule);
  std::vector<Field> items;
  for (const Value& item : value_->list()) {
    items.push_back({item, *source_, cat(place_, "[", items.size(), "]")});
  }
  return items;
}

const std::string& Field::string() const {
  check_type(Type::kString, "a string");
  return value_->string();
}

const std::string& Field::name() const {
  check_name(string());
  return value_->string();
}

void Field::check_name(const std::string& text) const {
  if (text.empty() || text.size() > kMaxNameLength ||
      text.find_first_not_of(kNameLetters) != std::string::npos ||
      std::string(".:+-").find(text[0]) != std::string::npos) {
    refuse("name-form", quoted(text) + " isn't a name (1 to 200 of A-Z a-z 0-9 _ . : + -)");
  }
}

void Field::check_strings() const {
  for (const Member& member : object()) child(member).string();
}

bool Field::boolean() const {
  check_type(Type::kBoolean, "true or false");
  return std::get<bool>(value_->data);
}

int64_t Field::integer() const {
  check_type(Type::kInteger, "an integer");
  return value_->integer();
}

Number Field::number() const {
  if (value_->type() == Type::kInteger) return {static_cast<long double>(value_->integer()), true};
  check_type(Type::kNumber, "a number");
  return {static_cast<long double>(value_->number()), false};
}

void Field::check_type(Type type, const char* name) const {
  if (value_->type() != type) refuse("key-type", cat("must be ", name));
}

void Field::check_size(size_t size, size_t least, size_t most, const char* rule) const {
  if (size < least || size > most) {
    refuse(rule, cat("has ", size, " entries, must have ", least, " to ", most));
  }
}

}  // namespace ecr
