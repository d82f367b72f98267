// SPDX-License-Identifier: Apache-2.0
// generate: text from a GGUF model, streamed as it is made; a worked example of the library.
#include "options.hpp"
#include "run.hpp"

#include <exception>
#include <iostream>
#include <new>
#include <string_view>

namespace {

constexpr int bad_input = 2;

// One line, whatever a file name or a flag in it may hold.
int fail(std::string_view why) {
  std::cerr << "generate: ";
  for (const char c : why) {
    const auto byte = static_cast<unsigned char>(c);
    std::cerr << (byte < 0x20 || byte == 0x7F ? '?' : c);
  }
  std::cerr << '\n';
  return bad_input;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto options = cli::parse_options(argc, argv);
    return options ? cli::run(*options) : 0;
  } catch (const std::bad_alloc&) {
    return fail("there is not enough memory for this");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}
