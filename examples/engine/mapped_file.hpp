// SPDX-License-Identifier: Apache-2.0
//
// A regular file mapped read-only into memory.
//
//     engine::MappedFile file("model.gguf");
//     std::span<const std::byte> bytes = file.bytes();
//     file.advise_dont_need(bytes.first(file.bytes().size() / 2));   // its pages may be dropped; reading brings them back
//
// Errors: a missing or empty file, a folder or a device throws FileError naming the path.
// Lifetime: bytes() stays valid, at the same address, until the object that owns the mapping goes; moving it hands the
// mapping on. A file that another process shortens meanwhile raises SIGBUS on reading, as every mapping does.

#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

#include "gguf_error.hpp"

namespace engine {

class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();

  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

  // Tells the system that the whole pages inside `part` are not needed for now. Pre: part lies within bytes().
  void advise_dont_need(std::span<const std::byte> part) const noexcept;

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace engine
