// SPDX-License-Identifier: Apache-2.0

#include "gguf.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "gguf_cursor.hpp"

namespace engine {
namespace {

constexpr std::size_t smallest_pair = 8 + 4 + 1;            // key length, type, one byte of value
constexpr std::size_t smallest_tensor = 8 + 4 + 8 + 4 + 8;  // name length, dimension count, one dimension, type, offset
constexpr int deepest_array = 4;

struct ArrayHead {
  std::uint32_t type;
  std::uint64_t count;
};

ArrayHead read_array(GgufCursor& cursor, const std::string& label, std::string_view key, int depth);

void skip_value(GgufCursor& cursor, std::uint32_t type, const std::string& label, std::string_view key, int depth) {
  if (type == value_type::string) {
    cursor.text("a metadata string");
  } else if (type == value_type::array) {
    read_array(cursor, label, key, depth);
  } else if (const std::size_t size = fixed_size(type); size != 0) {
    cursor.take(size, "a metadata value");
  } else {
    throw FileError(label + ": metadata " + in_quotes(key) + " has the unknown type " + std::to_string(type));
  }
}

// Reads an array's head and passes over its elements.
ArrayHead read_array(GgufCursor& cursor, const std::string& label, std::string_view key, int depth) {
  if (depth == deepest_array) {
    throw FileError(label + ": metadata " + in_quotes(key) + " nests arrays more than " + std::to_string(deepest_array) +
                    " deep");
  }
  const auto type = cursor.number<std::uint32_t>("a metadata array");
  const auto count = cursor.number<std::uint64_t>("a metadata array");
  if (const std::size_t size = fixed_size(type); size != 0) {
    cursor.expect(count, size, "array elements");
    cursor.take(count * size, "a metadata array");
  } else {
    cursor.expect(count, type == value_type::array ? 12 : 8, "array elements");
    for (std::uint64_t i = 0; i < count; ++i) {
      skip_value(cursor, type, label, key, depth + 1);
    }
    if (count == 0 && type != value_type::string && type != value_type::array) {
      throw FileError(label + ": metadata " + in_quotes(key) + " is an array of the unknown type " + std::to_string(type));
    }
  }
  return {type, count};
}

// a * b, or nothing if that does not fit.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
  if (a != 0 && b > std::numeric_limits<std::uint64_t>::max() / a) {
    return std::nullopt;
  }
  return a * b;
}

// All zero for a type that is not known.
BlockLayout layout_or_zero(TensorType type) {
  switch (type) {
    case TensorType::F32: return {1, 4};
    case TensorType::F16:
    case TensorType::BF16: return {1, 2};
    case TensorType::Q4_0: return {32, 18};
    case TensorType::Q4_1: return {32, 20};
    case TensorType::Q5_0: return {32, 22};
    case TensorType::Q8_0: return {32, 34};
    case TensorType::Q4_K: return {256, 144};
    case TensorType::Q6_K: return {256, 210};
  }
  return {0, 0};
}

}  // namespace

std::string_view name(TensorType type) {
  switch (type) {
    case TensorType::F32: return "F32";
    case TensorType::F16: return "F16";
    case TensorType::Q4_0: return "Q4_0";
    case TensorType::Q4_1: return "Q4_1";
    case TensorType::Q5_0: return "Q5_0";
    case TensorType::Q8_0: return "Q8_0";
    case TensorType::Q4_K: return "Q4_K";
    case TensorType::Q6_K: return "Q6_K";
    case TensorType::BF16: return "BF16";
  }
  return "unknown";
}

BlockLayout block_layout(TensorType type) {
  const BlockLayout layout = layout_or_zero(type);
  if (layout.elements == 0) {
    throw FileError("tensor type " + std::to_string(static_cast<std::uint32_t>(type)) + " is not supported");
  }
  return layout;
}

std::size_t Tensor::row_bytes() const {
  const BlockLayout layout = block_layout(type);
  return static_cast<std::size_t>(cols) / layout.elements * layout.bytes;
}

Gguf::Gguf(const std::filesystem::path& path) : file_(path), bytes_(file_->bytes()), label_(in_quotes(path.string())) {
  parse();
}

Gguf::Gguf(std::span<const std::byte> bytes) : bytes_(bytes), label_("GGUF data") { parse(); }

void Gguf::parse() {
  GgufCursor cursor(bytes_, label_);
  if (bytes_.size() < 4 || as_text(bytes_.first(4)) != "GGUF") {
    fail("is not a GGUF file (it does not start with \"GGUF\")");
  }
  cursor.take(4, "the header");
  const auto version = cursor.number<std::uint32_t>("the header");
  if (version == 0x02000000 || version == 0x03000000) {
    fail("is a big-endian GGUF file; only little-endian ones are supported");
  }
  if (version != 2 && version != 3) {
    fail("is GGUF version " + std::to_string(version) + "; versions 2 and 3 are supported");
  }
  const auto tensor_count = cursor.number<std::uint64_t>("the header");
  const auto pair_count = cursor.number<std::uint64_t>("the header");
  parse_metadata(cursor, pair_count);
  parse_tensors(cursor, tensor_count);
}

void Gguf::parse_metadata(GgufCursor& cursor, std::uint64_t count) {
  cursor.expect(count, smallest_pair, "metadata entries");
  values_.reserve(static_cast<std::size_t>(std::min<std::uint64_t>(count, 1024)));
  for (std::uint64_t i = 0; i < count; ++i) {
    Value value{};
    value.key = cursor.text("a metadata key");
    if (value.key.empty()) {
      fail("has a metadata entry without a name");
    }
    value.type = cursor.number<std::uint32_t>("a metadata value");
    value.array = value.type == value_type::array;
    value.count = 1;
    std::size_t start = cursor.position();
    if (value.array) {
      const ArrayHead head = read_array(cursor, label_, value.key, 0);
      value.type = head.type;
      value.count = head.count;
      start += 12;
    } else {
      skip_value(cursor, value.type, label_, value.key, 0);
    }
    value.data = bytes_.subspan(start, cursor.position() - start);
    values_.push_back(value);
  }
  std::sort(values_.begin(), values_.end(), [](const Value& a, const Value& b) { return a.key < b.key; });
  const auto twice =
      std::adjacent_find(values_.begin(), values_.end(), [](const Value& a, const Value& b) { return a.key == b.key; });
  if (twice != values_.end()) {
    fail("has metadata " + in_quotes(twice->key) + " twice");
  }
}

void Gguf::parse_tensors(GgufCursor& cursor, std::uint64_t count) {
  const std::int64_t alignment = integer("general.alignment").value_or(32);
  if (alignment <= 0 || alignment > (std::int64_t{1} << 31) || !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    fail("has the alignment " + std::to_string(alignment) + ", which is not a power of two");
  }
  const auto step = static_cast<std::uint64_t>(alignment);

  cursor.expect(count, smallest_tensor, "tensors");
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < count; ++i) {
    Tensor tensor{std::string(cursor.text("a tensor's name")), TensorType::F32, 1, 1, {}};
    const std::string title = "tensor " + in_quotes(tensor.name);
    const auto dimensions = cursor.number<std::uint32_t>("a tensor's description");
    if (dimensions < 1 || dimensions > 4) {
      fail(title + " has " + std::to_string(dimensions) + " dimensions; 1 to 4 are possible");
    }
    std::uint64_t rows = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      const auto size = cursor.number<std::uint64_t>("a tensor's description");
      constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      const auto grown = d == 0 ? std::uint64_t{1} : product(rows, size);
      if (size < 1 || size > largest || !grown || *grown > largest) {
        fail(title + " has the impossible dimension " + std::to_string(size));
      }
      if (d == 0) {
        tensor.cols = static_cast<std::int64_t>(size);
      } else {
        rows = *grown;
      }
    }
    tensor.rows = static_cast<std::int64_t>(rows);
    tensor.type = static_cast<TensorType>(cursor.number<std::uint32_t>("a tensor's description"));
    offsets.push_back(cursor.number<std::uint64_t>("a tensor's description"));
    if (offsets.back() % step != 0) {
      fail(title + " starts at offset " + std::to_string(offsets.back()) + ", not a multiple of " + std::to_string(step));
    }
    tensors_.push_back(std::move(tensor));
  }

  // The data begins at the next multiple of the alignment; without tensors the file may end before it.
  const std::size_t padding = static_cast<std::size_t>((step - cursor.position() % step) % step);
  const auto data = bytes_.subspan(cursor.position() + std::min(padding, cursor.left()));
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = tensors_[i];
    const std::string title = "tensor " + in_quotes(tensor.name);
    const BlockLayout layout = layout_or_zero(tensor.type);
    if (layout.elements == 0) {
      continue;  // its size cannot be known
    }
    const auto cols = static_cast<std::uint64_t>(tensor.cols);
    if (cols % layout.elements != 0) {
      fail(title + " has rows of " + std::to_string(cols) + " elements, not a multiple of the " +
           std::to_string(layout.elements) + " in a block of " + std::string(engine::name(tensor.type)));
    }
    const auto row = product(cols / layout.elements, layout.bytes);
    const auto size = row ? product(*row, static_cast<std::uint64_t>(tensor.rows)) : std::nullopt;
    if (!size || offsets[i] > data.size() || *size > data.size() - offsets[i]) {
      fail(title + " lies outside the file");
    }
    tensor.data = data.subspan(static_cast<std::size_t>(offsets[i]), static_cast<std::size_t>(*size));
  }

  by_name_.resize(tensors_.size());
  for (std::size_t i = 0; i < by_name_.size(); ++i) {
    by_name_[i] = i;
  }
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::size_t a, std::size_t b) { return tensors_[a].name < tensors_[b].name; });
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    if (tensors_[by_name_[i]].name == tensors_[by_name_[i - 1]].name) {
      fail("has tensor " + in_quotes(tensors_[by_name_[i]].name) + " twice");
    }
  }
}

const Tensor* Gguf::find(std::string_view tensor_name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), tensor_name,
                                   [&](std::size_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  if (at == by_name_.end() || tensors_[*at].name != tensor_name) {
    return nullptr;
  }
  const Tensor& found = tensors_[*at];
  if (layout_or_zero(found.type).elements == 0) {
    fail("tensor " + in_quotes(found.name) + " has type " + std::to_string(static_cast<std::uint32_t>(found.type)) +
         ", which is not supported");
  }
  return &found;
}

const Tensor& Gguf::tensor(std::string_view tensor_name) const {
  const Tensor* const found = find(tensor_name);
  if (found == nullptr) {
    fail("has no tensor " + in_quotes(tensor_name));
  }
  return *found;
}

void Gguf::fail(const std::string& why) const { throw FileError(label_ + ": " + why); }

}  // namespace engine
