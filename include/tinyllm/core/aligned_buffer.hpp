// SPDX-License-Identifier: Apache-2.0
// AlignedBuffer: uninitialised memory for trivially copyable elements, aligned to cache lines.
//
//     AlignedBuffer<float> rows(tinyllm::checked_product({n, d}));
//
// Nothing is written at construction, so the system gives pages only as they are touched. Move-only.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tinyllm {

/// The product of sizes.
/// Throws: std::invalid_argument if one is below 1, std::length_error if the product is no Index.
[[nodiscard]] inline Index checked_product(std::initializer_list<Index> sizes) {
  Index product = 1;
  for (const Index size : sizes) {
    if (size < 1) throw std::invalid_argument(detail::message("a size must be at least 1, not ", size));
    if (product > std::numeric_limits<Index>::max() / size) throw std::length_error("a product of sizes overflows");
    product *= size;
  }
  return product;
}

namespace detail {

/// Memory for a large buffer comes from the system directly where it can be had without being promised: a cache for the
/// longest context may be larger than the machine's memory as long as it is not filled.
inline constexpr std::size_t large_buffer = std::size_t{1} << 20;

/// Throws: std::bad_alloc
inline void* allocate_untouched(std::size_t bytes, std::size_t alignment) {
#if defined(__linux__)
  if (bytes >= large_buffer) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return memory;
  }
#endif
  return ::operator new (bytes, std::align_val_t{alignment});
}

inline void free_untouched(void* memory, std::size_t bytes, std::size_t alignment) noexcept {
#if defined(__linux__)
  if (bytes >= large_buffer) {
    ::munmap(memory, bytes);
    return;
  }
#endif
  ::operator delete (memory, std::align_val_t{alignment});
}

}  // namespace detail

/// Room for a number of elements.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  static constexpr std::size_t alignment = 64;

  /// Throws: std::invalid_argument if count < 1, std::length_error if the bytes are no Index, std::bad_alloc if the system
  ///   refuses.
  explicit AlignedBuffer(Index count) : AlignedBuffer(checked_product({count, static_cast<Index>(sizeof(T))}), Bytes{}) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }

 private:
  struct Bytes {};
  struct Free {
    std::size_t bytes;
    void operator()(T* memory) const { detail::free_untouched(memory, bytes, alignment); }
  };

  AlignedBuffer(Index bytes, Bytes)
      : data_(static_cast<T*>(detail::allocate_untouched(static_cast<std::size_t>(bytes), alignment)),
              Free{static_cast<std::size_t>(bytes)}) {}

  std::unique_ptr<T, Free> data_;
};

}  // namespace tinyllm
