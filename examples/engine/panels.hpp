// SPDX-License-Identifier: Apache-2.0
// Weight matrices repacked for the kernels: panels of sixteen rows, a row a 32-bit lane, read from front to back.
//
//     engine::WeightMatrix w(gguf.tensor("blk.0.attn_q.weight"));       // repacked into memory of its own
//     w.unpack_row(3, floats);                                          // what the file says row 3 is, exactly
//
// Block formats keep their own numbers; K-quants keep the products of their two scales, as floats. Nothing is rounded.
// Units: sizes in bytes are counted by panel; rows that fill no panel are zeros.
// Errors: `FileError` for a tensor that cannot be read. Lifetime: independent of the file once packed.
// Threads: const members any number; `pack` on different panels at once.
#pragma once

#include "gguf.hpp"

#include <tinyllm/core/types.hpp>

#include <cstddef>
#include <memory>
#include <span>

namespace engine {

using tinyllm::Index;

/// Rows of a panel.
inline constexpr Index panel_rows = 16;

/// How a panel holds its weights. Floats lie [cols][16]. The others are blocks of 32 columns, each of them its scales d
/// [16], minima [16] where w = d·q + m, then q: bytes [8][16][4], or nibbles [4][16][4] whose byte i of sixteen has column i
/// below and 16 + i above.
enum class PanelFormat {
  f32,
  f16,
  bf16,
  nibbles,               // w = d·(q − 8), d half
  nibbles_minima,        // w = d·q + m, both half
  nibbles_float_minima,  // w = d·q + m, both float
  bytes,                 // w = d·(q − 128), d half
  bytes_two_scales,      // w = d·(q − 128), two float d: columns 0..15 and 16..31
};

constexpr bool is_quantized(PanelFormat format) { return format >= PanelFormat::nibbles; }

/// A run of panels.
struct Panels {
  PanelFormat format;
  const std::byte* data;
  std::size_t panel_bytes;
  Index rows;  // of the matrix in this run: the last panel may be filled up with zeros
  Index cols;
};

/// Memory for many matrices, in large pages where the system has them; zero at first.
class PanelMemory {
 public:
  /// Throws: std::bad_alloc
  explicit PanelMemory(std::size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }

 private:
  struct Free {
    std::size_t bytes;
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
};

/// Shape: [rows, cols]; it maps cols inputs to rows outputs.
class WeightMatrix {
 public:
  WeightMatrix() = default;

  /// Packs the tensor into memory of its own.
  /// Throws: `FileError` if this engine cannot read the tensor.
  explicit WeightMatrix(const Tensor& tensor);

  /// A matrix for the tensor in memory that the caller keeps, to be packed. Pre: memory_bytes(tensor) bytes, zero
  WeightMatrix(const Tensor& tensor, std::byte* memory);

  /// Bytes that the panels of a tensor take, a multiple of 64.
  /// Throws: `FileError` if this engine cannot read the tensor.
  static std::size_t memory_bytes(const Tensor& tensor);

  /// Packs panels [first, first + n) from the tensor that this matrix was made for.
  void pack(const Tensor& tensor, Index first, Index n) const;

  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  Index n_panels() const { return (rows_ + panel_rows - 1) / panel_rows; }
  PanelFormat format() const { return format_; }

  /// Pre: 0 <= first, first + n <= n_panels()
  Panels panels(Index first, Index n) const;

  /// Writes one row as floats, as `dequantize_row` does. Shape: out is [cols]
  void unpack_row(Index row, std::span<float> out) const;

 private:
  std::shared_ptr<PanelMemory> own_;
  PanelFormat format_ = PanelFormat::f32;
  std::byte* data_ = nullptr;
  std::size_t panel_bytes_ = 0;
  Index rows_ = 0;
  Index cols_ = 0;
};

}  // namespace engine
