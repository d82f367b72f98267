// SPDX-License-Identifier: Apache-2.0
//
// Any bytes read as a GGUF file, its tensors and its tokenizer: FileError or a usable object, nothing else.
//
// The part of the input behind its first 0xFE 0xFF is the text to encode; without one the whole input is.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "gguf.hpp"
#include "tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t mark = input.find("\xFE\xFF");
  const std::string_view text = mark == std::string_view::npos ? input : input.substr(mark + 2);
  const auto bytes = std::as_bytes(std::span(data, std::min(mark, size)));
  try {
    const engine::Gguf file(bytes);
    std::size_t sum = 0;
    for (const engine::Tensor& tensor : file.tensors()) {
      for (const std::byte byte : tensor.data) sum += static_cast<std::size_t>(byte);
      if (!tensor.data.empty() && tensor.row_bytes() * static_cast<std::size_t>(tensor.rows) != tensor.data.size())
        std::abort();
    }
    if (sum > size * 255 * file.tensors().size()) std::abort();
    const engine::Tokenizer tokenizer(file);
    for (const bool special : {false, true}) {
      for (const std::int32_t id : tokenizer.encode(text, {special, special})) {
        if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
        if (tokenizer.token_bytes(id).size() > size) std::abort();
      }
    }
  } catch (const engine::FileError&) {
    // what damaged files give
  }
  return 0;
}
