// SPDX-License-Identifier: Apache-2.0
// The number formats of GGUF tensors: what floats their rows stand for.
//
//     std::vector<float> values(std::size_t(tensor.cols));
//     engine::dequantize_row(tensor.type, tensor.data.data() + row * tensor.row_bytes(), values);
//     // values[i] is what the format defines, rounded to float once
//
// Units: a quantised row is a sequence of blocks of 32 or 256 values each; no block spans rows.
// Errors: `FileError` for a format that cannot be read, or a row that does not divide into blocks.
// Lifetime: nothing is kept.
#pragma once

#include "gguf.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace engine {

/// Writes the floats that `n_blocks` blocks stand for, one block after the other.
using BlockReader = void (*)(const std::byte* blocks, std::size_t n_blocks, float* out) noexcept;

/// The reader of a format; `block_layout(type)` tells the sizes of its blocks.
/// Throws: `FileError` if this engine cannot read it.
BlockReader block_reader(TensorType type);

/// Writes the floats that a row stands for.
/// Shape: out is [cols]; `row` holds the cols / elements blocks of `block_layout(type)`, at any alignment.
/// Throws: `FileError` for an unreadable format or a row that does not divide into its blocks.
void dequantize_row(TensorType type, const std::byte* row, std::span<float> out);

/// Scale and minimum of 32 values of a Q4_K block: factors of its two halves.
struct KScale {
  int scale;
  int minimum;
};

/// Those of part 0..7. Shape: packed is [12]
KScale q4_k_scale(const std::byte* packed, std::size_t part) noexcept;

/// The float that sixteen IEEE binary16 bits stand for, exactly.
float half_to_float(std::uint16_t bits) noexcept;

/// The float that sixteen bfloat16 bits stand for, exactly.
float bfloat16_to_float(std::uint16_t bits) noexcept;

}  // namespace engine
