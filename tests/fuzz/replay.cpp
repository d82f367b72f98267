// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz body without a fuzzer: on the files named, and on many changes of them made from fixed seeds.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes changed(Bytes bytes, std::mt19937& random) {
  for (std::size_t n = 1 + random() % 4; n > 0; --n) {
    const std::size_t at = bytes.empty() ? 0 : random() % bytes.size();
    const auto offset = static_cast<std::ptrdiff_t>(at);
    const auto byte = static_cast<std::uint8_t>(random());
    const unsigned kind = bytes.empty() ? 0 : static_cast<unsigned>(random() % 4);
    if (kind == 0) {
      bytes.insert(bytes.begin() + offset, byte);
    } else if (kind == 1) {
      bytes[at] = byte;
    } else if (kind == 2) {
      bytes.erase(bytes.begin() + offset);
    } else {
      bytes.resize(at);
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> inputs(1);
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::mt19937 random(1);
  for (const Bytes& input : inputs) {
    LLVMFuzzerTestOneInput(input.data(), input.size());
    Bytes bytes = input;
    for (int i = 0; i < 2000; ++i) {
      if (i % 20 == 0) bytes = input;
      bytes = changed(std::move(bytes), random);
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
    }
  }
  std::cout << inputs.size() << " inputs and their changes\n";
  return 0;
}
