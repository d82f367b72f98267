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

template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  static constexpr std::size_t alignment = 64;

  /// Throws: std::length_error if the bytes are no Index, std::bad_alloc if the system refuses.
  explicit AlignedBuffer(Index count)
      : data_(static_cast<T*>(::operator new (static_cast<std::size_t>(checked_product({count, static_cast<Index>(sizeof(T))})),
                                              std::align_val_t{alignment}))) {}

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { ::operator delete (memory, std::align_val_t{alignment}); }
  };
  std::unique_ptr<T, Free> data_;
};

}  // namespace tinyllm
