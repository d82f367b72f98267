// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include "gguf.hpp"
#include "support/gguf_samples.hpp"
#include "tokenizer.hpp"

using namespace test_support;

namespace {

// Uses all that can be used of a file that may be damaged. Only FileError may come out of it.
bool survives(const Bytes& bytes) {
  try {
    const Gguf file{std::span<const std::byte>(bytes)};
    unsigned sum = 0;
    for (const engine::Tensor& tensor : file.tensors()) {
      for (const std::byte byte : tensor.data) sum += static_cast<unsigned>(byte);
      if (!tensor.data.empty()) CHECK(tensor.row_bytes() * static_cast<std::size_t>(tensor.rows) == tensor.data.size());
    }
    const engine::Tokenizer tokenizer(file);
    (void)tokenizer.decode(tokenizer.encode("abba <|end|> \xFF"));
    return sum < 0xFFFFFFFF;
  } catch (const FileError& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return true;
  }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
#else
constexpr bool sanitized = false;
#endif

// Lets the process take at most this much more memory for data: a larger allocation throws bad_alloc.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::size_t more) {
    ::getrlimit(RLIMIT_AS, &before_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + more;
    if (!sanitized && pages > 0) ::setrlimit(RLIMIT_AS, &limit);
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("a file cut off after any byte is refused, or ends behind all that it describes") {
  const GgufWriter writer = sample();
  const Bytes whole = writer.bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK_FALSE(failure(cut).empty());
    CHECK(failure(cut).find('\n') == std::string::npos);
  }
  CHECK(failure(whole).empty());
}

TEST_CASE("a file with any byte of its header changed is read or refused, with little memory either way") {
  const GgufWriter writer = sample();
  Bytes bytes = writer.bytes();
  const MemoryLimit limit(std::size_t{256} << 20);
  for (std::size_t i = 0; i < writer.data_start(); ++i) {
    const std::byte original = bytes[i];
    for (const unsigned value :
         {0x00U, 0xFFU, 0x7FU, 0x80U, static_cast<unsigned>(original) ^ 1U, static_cast<unsigned>(original) + 1U}) {
      CAPTURE(i);
      CAPTURE(value);
      bytes[i] = static_cast<std::byte>(value & 0xFF);
      CHECK(survives(bytes));
    }
    bytes[i] = original;
  }
}

TEST_CASE("counts that no file could hold are refused before anything is reserved for them") {
  const MemoryLimit limit(std::size_t{256} << 20);
  for (const std::uint64_t count : {std::uint64_t{1000}, std::uint64_t{1} << 32, std::uint64_t{1} << 60, ~std::uint64_t{0}}) {
    CAPTURE(count);
    CHECK(contains(failure(GgufWriter().claim(count, 0).bytes()), "more than the file can hold"));
    CHECK(contains(failure(GgufWriter().claim(0, count).bytes()), "more than the file can hold"));
    for (const std::uint32_t type : {0U, 8U, 9U, 12U}) {
      Bytes array;
      append(array, type);
      append(array, count);
      CHECK(contains(failure(GgufWriter().raw("k", test_support::gguf_array, array).bytes()), "more than the file can hold"));
    }
    Bytes text;
    append(text, count);
    CHECK(contains(failure(GgufWriter().raw("k", test_support::gguf_string, text).bytes()), "the file ends within"));
  }
}
