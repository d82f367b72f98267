// SPDX-License-Identifier: Apache-2.0
//
// The exception of everything that reads files: one line that names the file and what is wrong with it.
//
//     try { engine::Gguf model(path); }
//     catch (const engine::FileError& error) { std::cerr << error.what() << '\n'; }
//
// Errors: none of its own.
// Lifetime: the text belongs to the exception.

#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace engine {

struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Text out of a file, in quotes, fit for one line of a message: control characters become '?', long text is cut.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 200;
  std::string result = "'";
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  result += text.size() > longest ? "...'" : "'";
  return result;
}

}  // namespace engine
