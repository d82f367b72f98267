// SPDX-License-Identifier: Apache-2.0

#include "mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>
#include <system_error>

namespace engine {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& why) {
  throw FileError(in_quotes(path.string()) + ": " + why);
}

[[noreturn]] void fail_with_errno(const std::filesystem::path& path, const char* action, int code) {
  fail(path, std::string("cannot ") + action + ": " + std::generic_category().message(code));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    fail_with_errno(path, "open", errno);
  }
  const Descriptor descriptor(fd);
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) {
    fail_with_errno(path, "stat", errno);
  }
  if (S_ISDIR(status.st_mode)) {
    fail(path, "is a folder, not a file");
  }
  if (!S_ISREG(status.st_mode)) {
    fail(path, "is not a regular file");
  }
  if (status.st_size <= 0) {
    fail(path, "is empty");
  }
  if (static_cast<std::uintmax_t>(status.st_size) > std::numeric_limits<std::size_t>::max()) {
    fail(path, "is too large to map");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (address == MAP_FAILED) {
    fail_with_errno(path, "map", errno);
  }
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

void MappedFile::advise_dont_need(std::span<const std::byte> part) const noexcept {
  const long reported = ::sysconf(_SC_PAGESIZE);
  if (reported <= 0 || part.empty()) {
    return;
  }
  const auto page = static_cast<std::size_t>(reported);
  const auto from = static_cast<std::size_t>(part.data() - bytes_.data());
  const std::size_t first = (from + page - 1) / page * page;
  const std::size_t end = from + part.size() == bytes_.size() ? bytes_.size() : (from + part.size()) / page * page;
  if (first < end) {
    ::madvise(const_cast<std::byte*>(bytes_.data()) + first, end - first, MADV_DONTNEED);
  }
}

}  // namespace engine
