// SPDX-License-Identifier: Apache-2.0
#include "prompt.hpp"

#include "usage_error.hpp"

#include <tinyllm/core/error.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <system_error>

namespace cli {
namespace {

[[noreturn]] void fail(const std::string& name) {
  throw UsageError(tinyllm::detail::message("cannot read ", name, ": ", std::generic_category().message(errno)));
}

std::string read_all(std::FILE* file, const std::string& name) {
  std::string bytes;
  char buffer[1 << 16];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, file)) bytes.append(buffer, n);
  if (std::ferror(file) != 0) fail(name);  // a folder, too, opens well and fails here
  return bytes;
}

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string read_file(const std::string& path) {
  const std::string name = "'" + path + "'";
  const std::unique_ptr<std::FILE, Close> file(std::fopen(path.c_str(), "rb"));
  if (!file) fail(name);
  return read_all(file.get(), name);
}

}  // namespace

std::string read_prompt(const PromptSource& source) {
  switch (source.kind) {
    case PromptSource::Kind::text: return source.value;
    case PromptSource::Kind::file: return read_file(source.value);
    case PromptSource::Kind::standard_input: return read_all(stdin, "standard input");
  }
  return {};
}

}  // namespace cli
