// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <iterator>
#include <limits>

#include "gguf.hpp"
#include "gguf_cursor.hpp"

namespace engine {
namespace {

std::string_view value_type_name(std::uint32_t type) {
  constexpr std::string_view names[] = {"uint8",   "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
                                        "boolean", "string", "array",  "uint64", "int64",  "float64"};
  return type < std::size(names) ? names[type] : "unknown";
}

bool is_integer(std::uint32_t type) {
  return fixed_size(type) != 0 && type != value_type::boolean && type != value_type::f32 && type != value_type::f64;
}

}  // namespace

const Gguf::Value* Gguf::find_value(std::string_view key) const {
  const auto at = std::lower_bound(values_.begin(), values_.end(), key,
                                   [](const Value& value, std::string_view wanted) { return value.key < wanted; });
  return at == values_.end() || at->key != key ? nullptr : &*at;
}

bool Gguf::is_array(std::string_view key) const {
  const Value* const value = find_value(key);
  return value != nullptr && value->array;
}

const Gguf::Value* Gguf::scalar(std::string_view key) const {
  const Value* const value = find_value(key);
  if (value != nullptr && value->array) {
    wrong_type(*value, "a single value");
  }
  return value;
}

const Gguf::Value* Gguf::array(std::string_view key) const {
  const Value* const value = find_value(key);
  if (value != nullptr && !value->array) {
    wrong_type(*value, "an array");
  }
  return value;
}

std::optional<std::int64_t> Gguf::integer(std::string_view key) const {
  const Value* const value = scalar(key);
  return value == nullptr ? std::nullopt : std::optional(integer_at(*value, 0));
}

std::optional<double> Gguf::number(std::string_view key) const {
  const Value* const value = scalar(key);
  return value == nullptr ? std::nullopt : std::optional(number_at(*value, 0));
}

std::optional<bool> Gguf::boolean(std::string_view key) const {
  const Value* const value = scalar(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (value->type != value_type::boolean) {
    wrong_type(*value, "a boolean");
  }
  return load<std::uint8_t>(value->data, 0) != 0;
}

std::optional<std::string_view> Gguf::string(std::string_view key) const {
  const Value* const value = scalar(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (value->type != value_type::string) {
    wrong_type(*value, "a string");
  }
  return as_text(value->data.subspan(8));
}

std::vector<std::string_view> Gguf::strings(std::string_view key) const {
  std::vector<std::string_view> result;
  const Value* const value = array(key);
  if (value == nullptr) {
    return result;
  }
  if (value->type != value_type::string) {
    wrong_type(*value, "strings");
  }
  result.reserve(static_cast<std::size_t>(value->count));
  GgufCursor cursor(value->data, label_);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    result.push_back(cursor.text("a metadata string"));
  }
  return result;
}

std::vector<std::int64_t> Gguf::integers(std::string_view key) const {
  std::vector<std::int64_t> result;
  if (const Value* const value = array(key); value != nullptr) {
    result.reserve(static_cast<std::size_t>(value->count));
    for (std::size_t i = 0; i < value->count; ++i) {
      result.push_back(integer_at(*value, i));
    }
  }
  return result;
}

std::vector<float> Gguf::floats(std::string_view key) const {
  std::vector<float> result;
  if (const Value* const value = array(key); value != nullptr) {
    result.reserve(static_cast<std::size_t>(value->count));
    for (std::size_t i = 0; i < value->count; ++i) {
      // Beyond float's range the conversion would be undefined; infinity is what rounding gives.
      constexpr auto largest = static_cast<double>(std::numeric_limits<float>::max());
      const double exact = number_at(*value, i);
      result.push_back(exact > largest    ? std::numeric_limits<float>::infinity()
                       : exact < -largest ? -std::numeric_limits<float>::infinity()
                                          : static_cast<float>(exact));
    }
  }
  return result;
}

std::int64_t Gguf::integer_at(const Value& value, std::size_t index) const {
  switch (value.type) {
    case value_type::u8: return load<std::uint8_t>(value.data, index);
    case value_type::i8: return load<std::int8_t>(value.data, index);
    case value_type::u16: return load<std::uint16_t>(value.data, index);
    case value_type::i16: return load<std::int16_t>(value.data, index);
    case value_type::u32: return load<std::uint32_t>(value.data, index);
    case value_type::i32: return load<std::int32_t>(value.data, index);
    case value_type::i64: return load<std::int64_t>(value.data, index);
    case value_type::u64: {
      const auto exact = load<std::uint64_t>(value.data, index);
      if (exact > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail("metadata " + in_quotes(value.key) + " is out of range: " + std::to_string(exact));
      }
      return static_cast<std::int64_t>(exact);
    }
    default: wrong_type(value, "an integer");
  }
}

double Gguf::number_at(const Value& value, std::size_t index) const {
  if (value.type == value_type::f32) {
    return static_cast<double>(load<float>(value.data, index));
  }
  if (value.type == value_type::f64) {
    return load<double>(value.data, index);
  }
  if (!is_integer(value.type)) {
    wrong_type(value, "a number");
  }
  return static_cast<double>(integer_at(value, index));
}

void Gguf::wrong_type(const Value& value, std::string_view wanted) const {
  fail("metadata " + in_quotes(value.key) + " is " + (value.array ? "an array of " : "of type ") +
       std::string(value_type_name(value.type)) + ", not " + std::string(wanted));
}

}  // namespace engine
