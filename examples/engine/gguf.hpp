// SPDX-License-Identifier: Apache-2.0
//
// A GGUF file (version 2 or 3, little-endian) opened for reading: its metadata and its tensors, as views of the mapping.
//
//     engine::Gguf model("model.gguf");
//     std::int64_t layers = model.integer("llama.block_count").value_or(0);
//     const engine::Tensor& head = model.tensor("output.weight");    // head.rows rows of head.cols elements
//
// Errors: FileError, one line naming the file, for anything that is not a whole, consistent GGUF file: every count,
// length and offset is checked before it is used, and nothing is reserved beyond what the bytes left could hold.
// Lifetime: tensors and the string views that look-ups give stay valid as long as the Gguf, moved or not.
// Threads: const members may be called from several threads at once.
// Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf_error.hpp"
#include "mapped_file.hpp"

namespace engine {

// The numbers are the file format's. A tensor of another type keeps its number and is refused when it is used.
enum class TensorType : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q8_0 = 8,
  Q4_K = 12,
  Q6_K = 14,
  BF16 = 30
};

// "Q4_1" and so on; "unknown" for a number without a name here.
std::string_view name(TensorType type);

struct BlockLayout {
  std::size_t elements;
  std::size_t bytes;
};

// Elements and bytes of one block of this type. Throws: FileError for an unknown type.
BlockLayout block_layout(TensorType type);

// One tensor of the file: `rows` rows of `cols` elements, each row row_bytes() long, stored one after the other.
// Shape: cols is the innermost dimension, rows the product of all others.
struct Tensor {
  std::string name;
  TensorType type;
  std::int64_t cols;
  std::int64_t rows;
  std::span<const std::byte> data;  // empty when the type is unknown

  [[nodiscard]] std::size_t row_bytes() const;
};

class GgufCursor;  // reads the file front to back; private to the implementation

class Gguf {
 public:
  explicit Gguf(const std::filesystem::path& path);

  // Reads from memory that the caller keeps alive and unchanged.
  explicit Gguf(std::span<const std::byte> bytes);

  // nullptr if absent. Throws: FileError if its type is unknown.
  [[nodiscard]] const Tensor* find(std::string_view tensor_name) const;
  // Throws: FileError naming it if it is absent or its type is unknown.
  [[nodiscard]] const Tensor& tensor(std::string_view tensor_name) const;
  // In the file's order, those of unknown types too.
  [[nodiscard]] std::span<const Tensor> tensors() const { return tensors_; }

  // Tells the system that the whole pages inside `part` of a tensor are not needed for now; reading brings them back.
  void advise_dont_need(std::span<const std::byte> part) const noexcept {
    if (file_) file_->advise_dont_need(part);
  }

  // Metadata. Absent keys give nullopt (an empty vector); a value of another type throws FileError naming key and type.
  // The numeric look-ups accept every integer type of the file and check the range.
  [[nodiscard]] bool has(std::string_view key) const { return find_value(key) != nullptr; }
  [[nodiscard]] bool is_array(std::string_view key) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const;
  [[nodiscard]] std::optional<double> number(std::string_view key) const;
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const;
  [[nodiscard]] std::optional<std::string_view> string(std::string_view key) const;
  [[nodiscard]] std::vector<std::string_view> strings(std::string_view key) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key) const;
  [[nodiscard]] std::vector<float> floats(std::string_view key) const;

  // What error messages call the file: its path in quotes.
  [[nodiscard]] const std::string& label() const { return label_; }

 private:
  // A metadata value stays as it lies in the file. `type` is the element type of an array.
  struct Value {
    std::string_view key;
    std::uint32_t type;
    bool array;
    std::uint64_t count;
    std::span<const std::byte> data;
  };

  void parse();
  void parse_metadata(GgufCursor& cursor, std::uint64_t count);
  void parse_tensors(GgufCursor& cursor, std::uint64_t count);
  [[nodiscard]] const Value* find_value(std::string_view key) const;
  [[nodiscard]] const Value* scalar(std::string_view key) const;
  [[nodiscard]] const Value* array(std::string_view key) const;
  [[nodiscard]] std::int64_t integer_at(const Value& value, std::size_t index) const;
  [[nodiscard]] double number_at(const Value& value, std::size_t index) const;
  [[noreturn]] void fail(const std::string& why) const;
  [[noreturn]] void wrong_type(const Value& value, std::string_view wanted) const;

  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::string label_;
  std::vector<Value> values_;         // sorted by key
  std::vector<Tensor> tensors_;       // in the file's order
  std::vector<std::size_t> by_name_;  // numbers of tensors, sorted by name
};

}  // namespace engine
