// SPDX-License-Identifier: Apache-2.0
//
// A reading position in the bytes of a GGUF file; every read is checked against the bytes that are left.
//
//     engine::GgufCursor cursor(bytes, "'model.gguf'");
//     auto version = cursor.number<std::uint32_t>("version");
//     std::string_view key = cursor.text("metadata key");
//
// Errors: FileError "<label>: the file ends within <what>" when there are too few bytes left.
// Lifetime: views into the bytes given; the label must outlive the cursor.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "gguf_error.hpp"

namespace engine {

static_assert(std::endian::native == std::endian::little, "the reader copies little-endian numbers as they are");

// The numbers of the metadata types.
namespace value_type {
inline constexpr std::uint32_t u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9,
                               u64 = 10, i64 = 11, f64 = 12;
}

// Bytes of one value; 0 for those of varying length.
[[nodiscard]] inline std::size_t fixed_size(std::uint32_t type) {
  switch (type) {
    case value_type::u8:
    case value_type::i8:
    case value_type::boolean: return 1;
    case value_type::u16:
    case value_type::i16: return 2;
    case value_type::u32:
    case value_type::i32:
    case value_type::f32: return 4;
    case value_type::u64:
    case value_type::i64:
    case value_type::f64: return 8;
    default: return 0;
  }
}

template <class T>
[[nodiscard]] T load(std::span<const std::byte> data, std::size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

[[nodiscard]] inline std::string_view as_text(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, const std::string& label) : bytes_(bytes), label_(&label) {}

  [[nodiscard]] std::size_t position() const { return position_; }
  [[nodiscard]] std::size_t left() const { return bytes_.size() - position_; }

  std::span<const std::byte> take(std::uint64_t size, const char* what) {
    if (size > left()) {
      throw FileError(*label_ + ": the file ends within " + what);
    }
    const auto taken = bytes_.subspan(position_, static_cast<std::size_t>(size));
    position_ += taken.size();
    return taken;
  }

  template <class T>
  T number(const char* what) {
    return load<T>(take(sizeof(T), what), 0);
  }

  std::string_view text(const char* what) { return as_text(take(number<std::uint64_t>(what), what)); }

  // `count` pieces of at least `smallest` bytes each must still fit.
  void expect(std::uint64_t count, std::size_t smallest, const char* what) const {
    if (count > left() / smallest) {
      throw FileError(*label_ + ": claims " + std::to_string(count) + " " + what + ", more than the file can hold");
    }
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string* label_;
  std::size_t position_ = 0;
};

}  // namespace engine
