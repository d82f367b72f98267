// SPDX-License-Identifier: Apache-2.0
#include "quants.hpp"

#include <bit>
#include <cstring>
#include <string>

namespace engine {
namespace {

// Block layouts, as the ggml formats define them (little-endian, no padding):
//   Q8_0  f16 d, 32 × int8 q                  w = d·q
//   Q4_0  f16 d, 16 bytes of nibbles          w = d·(q − 8)
//   Q4_1  f16 d, f16 m, 16 bytes of nibbles   w = d·q + m
//   Q5_0  f16 d, u32 high bits, 16 bytes      w = d·(q − 16)
//   Q4_K  f16 d, f16 m, 12 bytes of 6-bit scales and minima, 128 bytes   w = d·s·q − m·t, one (s, t) for 32 values
//   Q6_K  128 low nibbles, 64 bytes of high bit pairs, 16 × int8 s, f16 d   w = d·s·(q − 32), one s for 16 values
// In the blocks of 32, value i is the low nibble of byte i and value 16 + i the high one.

std::uint16_t load_u16(const std::byte* p) noexcept {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return bits;
}

float load_half(const std::byte* p) noexcept { return half_to_float(load_u16(p)); }

int low_nibble(std::byte b) noexcept { return std::to_integer<int>(b & std::byte{0x0F}); }
int high_nibble(std::byte b) noexcept { return std::to_integer<int>(b >> 4); }
float times(float scale, int q) noexcept { return scale * static_cast<float>(q); }

void read_f32(const std::byte* blocks, std::size_t n, float* out) noexcept { std::memcpy(out, blocks, n * sizeof(float)); }

void read_f16(const std::byte* blocks, std::size_t n, float* out) noexcept {
  for (std::size_t i = 0; i < n; ++i) out[i] = load_half(blocks + 2 * i);
}

void read_bf16(const std::byte* blocks, std::size_t n, float* out) noexcept {
  for (std::size_t i = 0; i < n; ++i) out[i] = bfloat16_to_float(load_u16(blocks + 2 * i));
}

void block_q8_0(const std::byte* block, float* out) noexcept {
  const float d = load_half(block);
  for (std::size_t i = 0; i < 32; ++i) out[i] = times(d, std::to_integer<std::int8_t>(block[2 + i]));
}

void block_q4_0(const std::byte* block, float* out) noexcept {
  const float d = load_half(block);
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = times(d, low_nibble(block[2 + i]) - 8);
    out[i + 16] = times(d, high_nibble(block[2 + i]) - 8);
  }
}

void block_q4_1(const std::byte* block, float* out) noexcept {
  const float d = load_half(block);
  const float m = load_half(block + 2);
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = times(d, low_nibble(block[4 + i])) + m;
    out[i + 16] = times(d, high_nibble(block[4 + i])) + m;
  }
}

void block_q5_0(const std::byte* block, float* out) noexcept {
  const float d = load_half(block);
  std::uint32_t high = 0;
  std::memcpy(&high, block + 2, sizeof high);
  for (std::size_t i = 0; i < 16; ++i) {
    const int first = static_cast<int>((high >> i) & 1U) << 4;
    const int second = static_cast<int>((high >> (i + 16)) & 1U) << 4;
    out[i] = times(d, (low_nibble(block[6 + i]) | first) - 16);
    out[i + 16] = times(d, (high_nibble(block[6 + i]) | second) - 16);
  }
}

void block_q4_k(const std::byte* block, float* out) noexcept {
  const float d = load_half(block);
  const float m = load_half(block + 2);
  const std::byte* q = block + 16;  // [128]
  for (std::size_t j = 0; j < 8; ++j) {
    const auto [scale, minimum] = q4_k_scale(block + 4, j);
    const float scaled_d = times(d, scale);
    const float scaled_m = times(m, minimum);
    for (std::size_t i = 0; i < 32; ++i) {
      const std::byte b = q[32 * (j / 2) + i];
      out[32 * j + i] = times(scaled_d, j % 2 == 0 ? low_nibble(b) : high_nibble(b)) - scaled_m;
    }
  }
}

void block_q6_k(const std::byte* block, float* out) noexcept {
  const float d = load_half(block + 208);
  for (std::size_t i = 0; i < 256; ++i) {
    // Each half of 128 values: four runs of 32, two in the low nibbles of 64 bytes and two in the high ones.
    const std::size_t half = i / 128;
    const std::size_t run = i % 128 / 32;
    const std::size_t at = i % 32;
    const std::byte low = block[64 * half + 32 * (run % 2) + at];
    const int high = (std::to_integer<int>(block[128 + 32 * half + at]) >> (2 * run)) & 3;
    const int q = (run < 2 ? low_nibble(low) : high_nibble(low)) | (high << 4);
    const float scale = times(d, std::to_integer<std::int8_t>(block[192 + i / 16]));
    out[i] = times(scale, q - 32);
  }
}

template <void (*Block)(const std::byte*, float*) noexcept, std::size_t Bytes, std::size_t Values>
void read_each(const std::byte* blocks, std::size_t n, float* out) noexcept {
  for (std::size_t b = 0; b < n; ++b) Block(blocks + b * Bytes, out + b * Values);
}

}  // namespace

KScale q4_k_scale(const std::byte* packed, std::size_t part) noexcept {
  const auto byte = [packed](std::size_t i) { return std::to_integer<int>(packed[i]); };
  // Parts 0..3 have six bits each in bytes 0..3 and 4..7, whose two top bits serve parts 4..7.
  if (part < 4) return {byte(part) & 63, byte(part + 4) & 63};
  return {(byte(part + 4) & 0x0F) | ((byte(part - 4) >> 6) << 4), (byte(part + 4) >> 4) | ((byte(part) >> 6) << 4)};
}

float half_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0) {  // zero and subnormals: fraction · 2⁻²⁴, which float holds exactly
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign == 0 ? magnitude : -magnitude;
  }
  const std::uint32_t wide_exponent = exponent == 31 ? 255U : exponent + 112U;
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

float bfloat16_to_float(std::uint16_t bits) noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

BlockReader block_reader(TensorType type) {
  switch (type) {
    case TensorType::F32: return read_f32;
    case TensorType::F16: return read_f16;
    case TensorType::BF16: return read_bf16;
    case TensorType::Q8_0: return read_each<block_q8_0, 34, 32>;
    case TensorType::Q4_0: return read_each<block_q4_0, 18, 32>;
    case TensorType::Q4_1: return read_each<block_q4_1, 20, 32>;
    case TensorType::Q5_0: return read_each<block_q5_0, 22, 32>;
    case TensorType::Q4_K: return read_each<block_q4_k, 144, 256>;
    case TensorType::Q6_K: return read_each<block_q6_k, 210, 256>;
  }
  throw FileError("tensor type " + std::to_string(static_cast<std::uint32_t>(type)) + " is not supported");
}

void dequantize_row(TensorType type, const std::byte* row, std::span<float> out) {
  const BlockReader read = block_reader(type);
  const std::size_t block = block_layout(type).elements;
  if (out.size() % block != 0) {
    throw FileError("a row of " + std::to_string(out.size()) + " values does not divide into " + std::string(name(type)) +
                    " blocks of " + std::to_string(block));
  }
  read(row, out.size() / block, out.data());
}

}  // namespace engine
