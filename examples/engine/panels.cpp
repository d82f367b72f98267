// SPDX-License-Identifier: Apache-2.0
#include "panels.hpp"

#include "quants.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

namespace engine {
namespace {

constexpr std::size_t lanes = panel_rows;
constexpr std::size_t block_cols = 32;
constexpr std::size_t large_page = std::size_t{1} << 21;

PanelFormat format_of(TensorType type) {
  switch (type) {
    case TensorType::F32: return PanelFormat::f32;
    case TensorType::F16: return PanelFormat::f16;
    case TensorType::BF16: return PanelFormat::bf16;
    case TensorType::Q4_0: return PanelFormat::nibbles;
    case TensorType::Q4_1: return PanelFormat::nibbles_minima;
    case TensorType::Q4_K: return PanelFormat::nibbles_float_minima;
    case TensorType::Q8_0:
    case TensorType::Q5_0: return PanelFormat::bytes;
    case TensorType::Q6_K: return PanelFormat::bytes_two_scales;
  }
  throw FileError("tensor type " + std::to_string(static_cast<std::uint32_t>(type)) + " is not supported");
}

struct BlockSizes {
  std::size_t head;  // bytes of scales and minima in front of the numbers
  std::size_t row;   // bytes of one row's numbers
  std::size_t bytes() const { return head + lanes * row; }
};

// Pre: is_quantized(format)
BlockSizes sizes_of(PanelFormat format) {
  switch (format) {
    case PanelFormat::nibbles: return {lanes * 2, 16};
    case PanelFormat::nibbles_minima: return {lanes * 4, 16};
    case PanelFormat::nibbles_float_minima: return {lanes * 8, 16};
    case PanelFormat::bytes: return {lanes * 2, 32};
    default: return {lanes * 8, 32};
  }
}

std::size_t float_bytes(PanelFormat format) { return format == PanelFormat::f32 ? 4 : 2; }

std::size_t bytes_of_panel(PanelFormat format, std::size_t cols) {
  if (!is_quantized(format)) return lanes * cols * float_bytes(format);
  return cols / block_cols * sizes_of(format).bytes();
}

// Thirty-two columns of one row as a panel holds them, and its one or two pairs of scale and minimum.
struct Block {
  std::uint8_t q[32];  // nibbles: only sixteen of them
  std::uint16_t half[2];
  float wide[2];
};

std::uint8_t byte_at(const std::byte* p) { return std::to_integer<std::uint8_t>(*p); }

void copy_nibbles(const std::byte* block, std::size_t scales, Block& to) {
  std::memcpy(to.half, block, 2 * scales);
  std::memcpy(to.q, block + 2 * scales, 16);
}

void read_q8_0(const std::byte* block, Block& to) {
  std::memcpy(to.half, block, 2);
  for (std::size_t i = 0; i < 32; ++i) to.q[i] = static_cast<std::uint8_t>(byte_at(block + 2 + i) ^ 0x80U);
}

void read_q5_0(const std::byte* block, Block& to) {
  std::memcpy(to.half, block, 2);
  std::uint32_t high = 0;
  std::memcpy(&high, block + 2, sizeof high);
  for (std::size_t i = 0; i < 16; ++i) {
    const unsigned both = byte_at(block + 6 + i);
    to.q[i] = static_cast<std::uint8_t>(112U + ((both & 15U) | (((high >> i) & 1U) << 4)));
    to.q[16 + i] = static_cast<std::uint8_t>(112U + ((both >> 4) | (((high >> (16 + i)) & 1U) << 4)));
  }
}

// Part `part` of the eight of a block of 256.
void read_q4_k(const std::byte* block, std::size_t part, Block& to) {
  std::uint16_t bits[2];
  std::memcpy(bits, block, sizeof bits);
  const KScale scale = q4_k_scale(block + 4, part);
  to.wide[0] = half_to_float(bits[0]) * static_cast<float>(scale.scale);
  to.wide[1] = -(half_to_float(bits[1]) * static_cast<float>(scale.minimum));
  const std::byte* q = block + 16 + 32 * (part / 2);
  const unsigned shift = part % 2 * 4;
  for (std::size_t i = 0; i < 16; ++i) {
    const unsigned low = (byte_at(q + i) >> shift) & 15U;
    const unsigned high = (byte_at(q + 16 + i) >> shift) & 15U;
    to.q[i] = static_cast<std::uint8_t>(low | (high << 4));
  }
}

void read_q6_k(const std::byte* block, std::size_t part, Block& to) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, block + 208, sizeof bits);
  for (std::size_t i = 0; i < 2; ++i) {
    const auto scale = std::to_integer<std::int8_t>(block[192 + 2 * part + i]);
    to.wide[i] = half_to_float(bits) * static_cast<float>(scale);
  }
  // Each half of 128 values: four runs of 32, two in the low nibbles of 64 bytes and two in the high ones.
  const std::size_t half = part / 4;
  const std::size_t run = part % 4;
  for (std::size_t i = 0; i < 32; ++i) {
    const unsigned low = (byte_at(block + 64 * half + 32 * (run % 2) + i) >> (run / 2 * 4)) & 15U;
    const unsigned high = (byte_at(block + 128 + 32 * half + i) >> (2 * run)) & 3U;
    to.q[i] = static_cast<std::uint8_t>(96U + (low | (high << 4)));
  }
}

// Columns [32·b, 32·b + 32) of a row of the file, whose blocks take `bytes`.
void read_block(TensorType type, std::size_t bytes, const std::byte* row, std::size_t b, Block& to) {
  switch (type) {
    case TensorType::Q4_0: return copy_nibbles(row + b * bytes, 1, to);
    case TensorType::Q4_1: return copy_nibbles(row + b * bytes, 2, to);
    case TensorType::Q8_0: return read_q8_0(row + b * bytes, to);
    case TensorType::Q5_0: return read_q5_0(row + b * bytes, to);
    case TensorType::Q4_K: return read_q4_k(row + b / 8 * bytes, b % 8, to);
    default: return read_q6_k(row + b / 8 * bytes, b % 8, to);
  }
}

// Puts a row's block into its lane.
void write_block(PanelFormat format, const Block& from, std::size_t lane, std::byte* block) {
  const BlockSizes sizes = sizes_of(format);
  const bool wide = sizes.head == lanes * 8;
  const std::size_t scale_bytes = wide ? 4 : 2;
  const std::size_t scales = sizes.head / lanes / scale_bytes;
  for (std::size_t i = 0; i < scales; ++i) {
    const void* const scale = wide ? static_cast<const void*>(from.wide + i) : from.half + i;
    std::memcpy(block + (i * lanes + lane) * scale_bytes, scale, scale_bytes);
  }
  for (std::size_t i = 0; i < sizes.row; i += 4) std::memcpy(block + sizes.head + i * lanes + 4 * lane, from.q + i, 4);
}

template <std::size_t Bytes>
void pack_floats(const std::byte* row, std::size_t cols, std::size_t lane, std::byte* panel) {
  for (std::size_t k = 0; k < cols; ++k) std::memcpy(panel + (k * lanes + lane) * Bytes, row + k * Bytes, Bytes);
}

float half_at(const std::byte* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return half_to_float(bits);
}

float float_at(const std::byte* p) {
  float value = 0;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// One lane of a block as floats.
void unpack_block(PanelFormat format, const std::byte* block, std::size_t lane, float* out) {
  const BlockSizes sizes = sizes_of(format);
  const std::byte* const q = block + sizes.head;
  for (std::size_t i = 0; i < block_cols; ++i) {
    const std::size_t in_row = sizes.row == 32 ? i : i % 16;
    unsigned value = byte_at(q + in_row / 4 * 4 * lanes + 4 * lane + in_row % 4);
    if (sizes.row == 16) value = i < 16 ? value & 15U : value >> 4;
    const auto number = static_cast<float>(value);
    const auto scale = [&](std::size_t which) {
      return sizes.head == lanes * 8 ? float_at(block + (which * lanes + lane) * 4)
                                     : half_at(block + (which * lanes + lane) * 2);
    };
    switch (format) {
      case PanelFormat::nibbles: out[i] = scale(0) * (number - 8); break;
      case PanelFormat::bytes: out[i] = scale(0) * (number - 128); break;
      case PanelFormat::bytes_two_scales: out[i] = scale(i / 16) * (number - 128); break;
      default: out[i] = scale(0) * number + scale(1); break;
    }
  }
}

}  // namespace

PanelMemory::PanelMemory(std::size_t bytes) {
  bytes = (std::max<std::size_t>(bytes, 1) + large_page - 1) / large_page * large_page;
  // One large page more than needed, so that a whole number of them lies inside; the rest is never touched.
  const std::size_t mapped = bytes + large_page;
  void* const memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const std::size_t before = (large_page - address % large_page) % large_page;
  if (before > 0) ::munmap(memory, before);
  std::byte* const start = static_cast<std::byte*>(memory) + before;
  if (before < large_page) ::munmap(start + bytes, large_page - before);
  memory_ = std::unique_ptr<void, Free>(start, Free{bytes});
  ::madvise(start, bytes, MADV_HUGEPAGE);  // a wish
}

void PanelMemory::Free::operator()(void* memory) const { ::munmap(memory, bytes); }

WeightMatrix::WeightMatrix(const Tensor& tensor) {
  auto memory = std::make_shared<PanelMemory>(memory_bytes(tensor));
  *this = WeightMatrix(tensor, memory->data());
  own_ = std::move(memory);
  pack(tensor, 0, n_panels());
}

WeightMatrix::WeightMatrix(const Tensor& tensor, std::byte* memory)
    : format_(format_of(tensor.type)),
      data_(memory),
      panel_bytes_(bytes_of_panel(format_, static_cast<std::size_t>(tensor.cols))),
      rows_(tensor.rows),
      cols_(tensor.cols) {}

std::size_t WeightMatrix::memory_bytes(const Tensor& tensor) {
  const PanelFormat format = format_of(tensor.type);
  const auto panels = (static_cast<std::size_t>(tensor.rows) + lanes - 1) / lanes;
  const std::size_t bytes = panels * bytes_of_panel(format, static_cast<std::size_t>(tensor.cols));
  return (bytes + 63) / 64 * 64;
}

void WeightMatrix::pack(const Tensor& tensor, Index first, Index n) const {
  const std::size_t row_bytes = tensor.row_bytes();
  const auto cols = static_cast<std::size_t>(cols_);
  const Index end = std::min(rows_, (first + n) * panel_rows);
  const std::size_t file_block = block_layout(tensor.type).bytes;
  const std::size_t panel_block = is_quantized(format_) ? sizes_of(format_).bytes() : 0;
  for (Index r = first * panel_rows; r < end; ++r) {
    const std::byte* const row = tensor.data.data() + static_cast<std::size_t>(r) * row_bytes;
    std::byte* const panel = data_ + static_cast<std::size_t>(r / panel_rows) * panel_bytes_;
    const auto lane = static_cast<std::size_t>(r % panel_rows);
    if (format_ == PanelFormat::f32) {
      pack_floats<4>(row, cols, lane, panel);
    } else if (!is_quantized(format_)) {
      pack_floats<2>(row, cols, lane, panel);
    } else {
      Block block;
      for (std::size_t b = 0; b < cols / block_cols; ++b) {
        read_block(tensor.type, file_block, row, b, block);
        write_block(format_, block, lane, panel + b * panel_block);
      }
    }
  }
}

Panels WeightMatrix::panels(Index first, Index n) const {
  return {format_, data_ + static_cast<std::size_t>(first) * panel_bytes_, panel_bytes_,
          std::min(rows_ - first * panel_rows, n * panel_rows), cols_};
}

void WeightMatrix::unpack_row(Index row, std::span<float> out) const {
  const std::byte* const panel = data_ + static_cast<std::size_t>(row / panel_rows) * panel_bytes_;
  const auto lane = static_cast<std::size_t>(row % panel_rows);
  const auto cols = static_cast<std::size_t>(cols_);
  if (is_quantized(format_)) {
    for (std::size_t b = 0; b < cols / block_cols; ++b) {
      unpack_block(format_, panel + b * sizes_of(format_).bytes(), lane, out.data() + b * block_cols);
    }
    return;
  }
  for (std::size_t k = 0; k < cols; ++k) {
    const std::byte* const at = panel + (k * lanes + lane) * float_bytes(format_);
    if (format_ == PanelFormat::f32) {
      out[k] = float_at(at);
    } else if (format_ == PanelFormat::f16) {
      out[k] = half_at(at);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, at, sizeof bits);
      out[k] = bfloat16_to_float(bits);
    }
  }
}

}  // namespace engine
