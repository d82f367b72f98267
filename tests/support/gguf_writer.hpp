// SPDX-License-Identifier: Apache-2.0
//
// Builds small GGUF files in memory, good ones and, by its raw parts, bad ones.
//
//     test_support::GgufWriter writer;
//     writer.put("llama.block_count", std::uint32_t{2}).strings("tokenizer.ggml.tokens", {"a", "b"});
//     writer.tensor("output.weight", 0, {4, 2}, std::vector<std::byte>(32));
//     engine::Gguf file(writer.bytes());       // keep the vector that bytes() gives while the file is in use
//
// Errors: none; what is asked for is written, consistent or not.
// Lifetime: everything is copied.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace test_support {

using Bytes = std::vector<std::byte>;

template <class T>
requires std::is_trivially_copyable_v<T>
void append(Bytes& bytes, const T& value) {
  const std::size_t size = bytes.size();
  bytes.resize(size + sizeof(T));
  std::memcpy(bytes.data() + size, &value, sizeof(T));
}

inline void append_text(Bytes& bytes, std::string_view text) {
  append(bytes, std::uint64_t{text.size()});
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
}

// The format's number for a C++ type.
template <class T>
constexpr std::uint32_t gguf_type() {
  if constexpr (std::same_as<T, std::uint8_t>) {
    return 0;
  } else if constexpr (std::same_as<T, std::int8_t>) {
    return 1;
  } else if constexpr (std::same_as<T, std::uint16_t>) {
    return 2;
  } else if constexpr (std::same_as<T, std::int16_t>) {
    return 3;
  } else if constexpr (std::same_as<T, std::uint32_t>) {
    return 4;
  } else if constexpr (std::same_as<T, std::int32_t>) {
    return 5;
  } else if constexpr (std::same_as<T, float>) {
    return 6;
  } else if constexpr (std::same_as<T, bool>) {
    return 7;
  } else if constexpr (std::same_as<T, std::uint64_t>) {
    return 10;
  } else if constexpr (std::same_as<T, std::int64_t>) {
    return 11;
  } else {
    static_assert(std::same_as<T, double>, "the format has no such type");
    return 12;
  }
}

inline constexpr std::uint32_t gguf_string = 8;
inline constexpr std::uint32_t gguf_array = 9;

class GgufWriter {
 public:
  explicit GgufWriter(std::uint32_t version = 3) : version_(version) {}

  template <class T>
  GgufWriter& put(std::string_view key, T value) {
    Bytes bytes;
    append(bytes, value);
    return raw(key, gguf_type<T>(), bytes);
  }

  GgufWriter& string(std::string_view key, std::string_view value) {
    Bytes bytes;
    append_text(bytes, value);
    return raw(key, gguf_string, bytes);
  }

  template <class T>
  GgufWriter& array(std::string_view key, const std::vector<T>& values) {
    Bytes bytes;
    append(bytes, gguf_type<T>());
    append(bytes, std::uint64_t{values.size()});
    for (const T& value : values) append(bytes, value);
    return raw(key, gguf_array, bytes);
  }

  GgufWriter& strings(std::string_view key, const std::vector<std::string>& values) {
    Bytes bytes;
    append(bytes, gguf_string);
    append(bytes, std::uint64_t{values.size()});
    for (const std::string& value : values) append_text(bytes, value);
    return raw(key, gguf_array, bytes);
  }

  // A metadata entry of any type number, its value as given.
  GgufWriter& raw(std::string_view key, std::uint32_t type, std::span<const std::byte> value) {
    append_text(metadata_, key);
    append(metadata_, type);
    metadata_.insert(metadata_.end(), value.begin(), value.end());
    ++pairs_;
    return *this;
  }

  // A tensor whose data follows the last one's at the next multiple of the alignment.
  GgufWriter& tensor(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& dimensions,
                     const Bytes& data) {
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    description(name, type, dimensions, data_.size());
    data_.insert(data_.end(), data.begin(), data.end());
    return *this;
  }

  // Only the description of a tensor.
  GgufWriter& description(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& dimensions,
                          std::uint64_t offset) {
    append_text(descriptions_, name);
    append(descriptions_, static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t dimension : dimensions) append(descriptions_, dimension);
    append(descriptions_, type);
    append(descriptions_, offset);
    ++tensors_;
    return *this;
  }

  // Where the data is laid out, and the metadata that says so.
  GgufWriter& alignment(std::uint32_t bytes) {
    alignment_ = bytes;
    return put("general.alignment", bytes);
  }

  // Counts for the header other than the real ones.
  GgufWriter& claim(std::uint64_t tensors, std::uint64_t pairs) {
    tensors_ = tensors;
    pairs_ = pairs;
    return *this;
  }

  // Where the tensors' data begins in bytes().
  [[nodiscard]] std::size_t data_start() const {
    return (24 + metadata_.size() + descriptions_.size() + alignment_ - 1) / alignment_ * alignment_;
  }

  [[nodiscard]] Bytes bytes() const {
    Bytes result;
    for (const char c : std::string_view("GGUF")) result.push_back(static_cast<std::byte>(c));
    append(result, version_);
    append(result, tensors_);
    append(result, pairs_);
    result.insert(result.end(), metadata_.begin(), metadata_.end());
    result.insert(result.end(), descriptions_.begin(), descriptions_.end());
    if (!data_.empty()) {
      result.resize(data_start());
      result.insert(result.end(), data_.begin(), data_.end());
    }
    return result;
  }

 private:
  std::uint32_t version_;
  std::uint64_t tensors_ = 0;
  std::uint64_t pairs_ = 0;
  std::size_t alignment_ = 32;
  Bytes metadata_;
  Bytes descriptions_;
  Bytes data_;
};

// A file that goes when the object goes.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::span<const std::byte> bytes) {
    static int count = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("tinyllm-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".gguf");
    std::ofstream stream(path_, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace test_support
