// SPDX-License-Identifier: Apache-2.0
// The text of the products, compiled once for each level: kernels_portable.cpp, kernels_avx2.cpp and kernels_avx512.cpp
// include it within a region of their instruction set, in namespace engine::ENGINE_LEVEL, and no one else does.
//
// A level brings the float lanes of tinyllm::ENGINE_LEVEL, and here:
//   WeightBytes  four consecutive columns of `width` rows; load_bytes, low_nibbles, high_nibbles, next_nibble, next_byte
//   first_nibble, first_byte  the lowest bits of each row as floats
//   NibbleSum, ByteSum  integer sums of weights times activations over one block, and to_lanes of them
//   most_tokens  of a tile
// Nothing here calls a template of anybody else's, and whatever runs in a loop is inlined.

namespace engine {
namespace ENGINE_LEVEL {
namespace {

using namespace tinyllm::ENGINE_LEVEL;

// Sizes of arrays, which g++ wants unsigned.
template <int N>
inline constexpr std::size_t count = N;

// Parts of a panel's sixteen rows, `width` rows each.
inline constexpr int whole_panel = 16 / static_cast<int>(width);

// What the formats differ in.
template <PanelFormat F>
struct Layout {
  static constexpr bool nibbles =
      F == PanelFormat::nibbles || F == PanelFormat::nibbles_minima || F == PanelFormat::nibbles_float_minima;
  static constexpr bool wide = F == PanelFormat::nibbles_float_minima || F == PanelFormat::bytes_two_scales;
  static constexpr bool minima = F == PanelFormat::nibbles_minima || F == PanelFormat::nibbles_float_minima;
  static constexpr bool two_scales = F == PanelFormat::bytes_two_scales;
  static constexpr Index scale_bytes = wide ? 4 : 2;
  static constexpr Index head = panel_rows * scale_bytes * (minima || two_scales ? 2 : 1);
  static constexpr Index quads = nibbles ? 4 : 8;
  static constexpr Index quad_bytes = 4 * panel_rows;
  static constexpr Index bytes = head + quads * quad_bytes;
};

template <class L>
TINYLLM_INLINE Lanes scale_at(const std::byte* block, Index which, int part) {
  const std::byte* const at = block + (which * panel_rows + part * width) * L::scale_bytes;
  if constexpr (L::wide) {
    return load(reinterpret_cast<const float*>(at));
  } else {
    return load_stored(reinterpret_cast<const Eigen::half*>(at));
  }
}

// The results of T tokens and some parts of a panel.
template <int Parts, int T>
struct Tile {
  Lanes sums[count<Parts>][count<T>];
};

template <int Parts, int T>
TINYLLM_INLINE void clear(Tile<Parts, T>& tile) {
  TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) { TINYLLM_UNROLL for (int t = 0; t < T; ++t) tile.sums[p][t] = zero(); }
}

// Where a tile's results go.
struct Target {
  float* data;
  Index stride;
  Index rows;  // of the panel's sixteen that exist
  Store store;
};

TINYLLM_INLINE void put_lanes(const Target& to, float* y, Index first, Lanes sums) {
  if (first + width <= to.rows) {
    store(y + first, to.store == Store::add ? add(load(y + first), sums) : sums);
    return;
  }
  float values[width];
  store(values, sums);
  for (Index i = 0; first + i < to.rows; ++i) y[first + i] = to.store == Store::add ? y[first + i] + values[i] : values[i];
}

template <int Parts, int T>
TINYLLM_INLINE void put(const Target& to, int first_part, Tile<Parts, T>& tile) {
  TINYLLM_UNROLL for (int t = 0; t < T; ++t) {
    TINYLLM_UNROLL for (int p = 0; p < Parts; ++p)
        put_lanes(to, to.data + t * to.stride, (first_part + p) * width, tile.sums[p][t]);
  }
}

// Integer products.

template <class L, int Parts, int T>
TINYLLM_INLINE void block_of_nibbles(const std::byte* block, int first_part, const std::int8_t* q, Index cols,
                                     const BlockScale* scales, Index n_blocks, Tile<Parts, T>& tile) {
  NibbleSum sums[count<Parts>][count<T>];
  TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) { TINYLLM_UNROLL for (int t = 0; t < T; ++t) sums[p][t] = no_nibbles(); }
  TINYLLM_UNROLL for (Index c = 0; c < 4; ++c) {
    TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) {
      const WeightBytes w = load_bytes(block + L::head + c * L::quad_bytes + (first_part + p) * 4 * width);
      const WeightBytes low = low_nibbles(w);
      const WeightBytes high = high_nibbles(w);
      TINYLLM_UNROLL for (int t = 0; t < T; ++t) {
        add_nibbles(sums[p][t], low, q + t * cols + 4 * c);
        add_nibbles(sums[p][t], high, q + t * cols + 16 + 4 * c);
      }
      TINYLLM_UNROLL for (int t = 0; t < T; ++t) pin(sums[p][t]);
    }
  }
  TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) {
    const Lanes scale = scale_at<L>(block, 0, first_part + p);
    Lanes minimum;
    if constexpr (L::minima) {
      minimum = scale_at<L>(block, 1, first_part + p);
    } else {
      minimum = multiply(scale, broadcast(-8.0F));
    }
    TINYLLM_UNROLL for (int t = 0; t < T; ++t) {
      const BlockScale& x = scales[t * n_blocks];
      Lanes& sum = tile.sums[p][t];
      sum = fma(minimum, broadcast(x.sum), sum);
      sum = fma(multiply(scale, broadcast(x.scale)), to_lanes(sums[p][t]), sum);
    }
  }
}

template <class L, int Parts, int T>
TINYLLM_INLINE void block_of_bytes(const std::byte* block, int first_part, const std::int8_t* q, Index cols,
                                   const BlockScale* scales, Index n_blocks, Tile<Parts, T>& tile) {
  TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) {
    ByteSum sums[2][count<T>];
    TINYLLM_UNROLL for (int half = 0; half < 2; ++half) {
      TINYLLM_UNROLL for (int t = 0; t < T; ++t) sums[half][t] = no_bytes(scales[t * n_blocks].offsets[half]);
      TINYLLM_UNROLL for (Index c = 4 * half; c < 4 * half + 4; ++c) {
        const WeightBytes w = load_bytes(block + L::head + c * L::quad_bytes + (first_part + p) * 4 * width);
        TINYLLM_UNROLL for (int t = 0; t < T; ++t) add_bytes(sums[half][t], w, q + t * cols + 4 * c);
        TINYLLM_UNROLL for (int t = 0; t < T; ++t) pin(sums[half][t]);
      }
    }
    const Lanes scale = scale_at<L>(block, 0, first_part + p);
    TINYLLM_UNROLL for (int t = 0; t < T; ++t) {
      const Lanes factor = broadcast(scales[t * n_blocks].scale);
      Lanes& sum = tile.sums[p][t];
      if constexpr (L::two_scales) {
        const Lanes second = scale_at<L>(block, 1, first_part + p);
        sum = fma(multiply(scale, factor), to_lanes(sums[0][t]), sum);
        sum = fma(multiply(second, factor), to_lanes(sums[1][t]), sum);
      } else {
        sum = fma(multiply(scale, factor), to_lanes(both(sums[0][t], sums[1][t])), sum);
      }
    }
  }
}

// How far ahead of a tile of several tokens its weights are asked for.
inline constexpr Index blocks_ahead = 8;

template <PanelFormat F, int Parts, int T>
void quantized_tile(const std::byte* panel, int first_part, const QuantizedRows& x, Index first, Index cols, const Target& to) {
  using L = Layout<F>;
  const Index n_blocks = cols / 32;
  const std::int8_t* q = x.q + first * cols;
  const BlockScale* scales = x.scales + first * n_blocks;
  Tile<Parts, T> tile;
  clear(tile);
  for (Index b = 0; b < n_blocks; ++b, panel += L::bytes, q += 32, ++scales) {
    // With several tokens, blocks are asked for too seldom for the processor to fetch them ahead by itself.
    if constexpr (T >= 4) {
      for (Index at = 0; at < L::bytes; at += 64) __builtin_prefetch(panel + blocks_ahead * L::bytes + at);
    }
    if constexpr (L::nibbles) {
      block_of_nibbles<L>(panel, first_part, q, cols, scales, n_blocks, tile);
    } else {
      block_of_bytes<L>(panel, first_part, q, cols, scales, n_blocks, tile);
    }
  }
  put(to, first_part, tile);
}

// Products in float.

template <int Parts, int T>
TINYLLM_INLINE void add_column(Tile<Parts, T>& tile, int p, Lanes weights, const float* x, Index stride) {
  TINYLLM_UNROLL for (int t = 0; t < T; ++t) tile.sums[p][t] = fma(weights, broadcast(x[t * stride]), tile.sums[p][t]);
}

template <int Parts, int T>
TINYLLM_INLINE void add_tile(Tile<Parts, T>& tile, const Tile<Parts, T>& more) {
  TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) {
    TINYLLM_UNROLL for (int t = 0; t < T; ++t) tile.sums[p][t] = add(tile.sums[p][t], more.sums[p][t]);
  }
}

// A block's columns in two chains, those behind 16 in the second: short enough to overlap, and the same for every T.
template <class L, int Parts, int T>
TINYLLM_INLINE void float_block(const std::byte* block, int first_part, const float* x, Index stride, Tile<Parts, T>& tile) {
  Tile<Parts, T> first;
  Tile<Parts, T> second;
  clear(first);
  clear(second);
  Lanes scale[count<Parts>];
  Lanes minimum[count<Parts>];
  Lanes scale2[count<Parts>];
  TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) {
    scale[p] = scale_at<L>(block, 0, first_part + p);
    scale2[p] = scale[p];
    if constexpr (L::two_scales) scale2[p] = scale_at<L>(block, 1, first_part + p);
    if constexpr (L::minima) {
      minimum[p] = scale_at<L>(block, 1, first_part + p);
    } else {
      minimum[p] = multiply(scale[p], broadcast(L::nibbles ? -8.0F : -128.0F));
    }
  }
  for (Index c = 0; c < 4; ++c) {
    TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) {
      const std::byte* const at = block + L::head + c * L::quad_bytes + (first_part + p) * 4 * width;
      WeightBytes w = load_bytes(at);
      if constexpr (L::nibbles) {
        TINYLLM_UNROLL for (Index i = 0; i < 4; ++i) {
          add_column(first, p, fma(scale[p], first_nibble(w), minimum[p]), x + 4 * c + i, stride);
          w = next_nibble(w);
          add_column(second, p, fma(scale[p], first_nibble(w), minimum[p]), x + 16 + 4 * c + i, stride);
          w = next_nibble(w);
        }
      } else {
        WeightBytes more = load_bytes(at + 4 * L::quad_bytes);
        Lanes minimum2 = minimum[p];
        if constexpr (L::two_scales) minimum2 = multiply(scale2[p], broadcast(-128.0F));
        TINYLLM_UNROLL for (Index i = 0; i < 4; ++i) {
          add_column(first, p, fma(scale[p], first_byte(w), minimum[p]), x + 4 * c + i, stride);
          add_column(second, p, fma(scale2[p], first_byte(more), minimum2), x + 16 + 4 * c + i, stride);
          w = next_byte(w);
          more = next_byte(more);
        }
      }
    }
  }
  add_tile(first, second);
  add_tile(tile, first);
}

template <class Stored, int Parts, int T>
TINYLLM_INLINE void stored_columns(const Stored* w, int first_part, const float* x, Index stride, Index cols,
                                   Tile<Parts, T>& tile) {
  Tile<Parts, T> first;
  Tile<Parts, T> second;
  clear(first);
  clear(second);
  Index k = 0;
  for (; k + 2 <= cols; k += 2) {
    TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) {
      const Stored* const at = w + k * panel_rows + (first_part + p) * width;
      add_column(first, p, load_stored(at), x + k, stride);
      add_column(second, p, load_stored(at + panel_rows), x + k + 1, stride);
    }
  }
  for (; k < cols; ++k) {
    TINYLLM_UNROLL for (int p = 0; p < Parts; ++p) {
      add_column(first, p, load_stored(w + k * panel_rows + (first_part + p) * width), x + k, stride);
    }
  }
  add_tile(first, second);
  add_tile(tile, first);
}

template <class Stored, int Parts, int T>
TINYLLM_INLINE void stored_tile(const std::byte* panel, int first_part, const float* x, Index stride, Index cols,
                                Tile<Parts, T>& tile) {
  constexpr Index step = 32;
  const auto* w = reinterpret_cast<const Stored*>(panel);
  for (Index k = 0; k < cols; k += step, w += step * panel_rows, x += step) {
    stored_columns(w, first_part, x, stride, cols - k < step ? cols - k : step, tile);
  }
}

template <PanelFormat F, int Parts, int T>
void float_tile(const std::byte* panel, int first_part, const FloatRows& rows, Index first, Index cols, const Target& to) {
  const float* x = rows.data + first * rows.stride;
  Tile<Parts, T> tile;
  clear(tile);
  if constexpr (F == PanelFormat::f32) {
    stored_tile<float>(panel, first_part, x, rows.stride, cols, tile);
  } else if constexpr (F == PanelFormat::f16) {
    stored_tile<Eigen::half>(panel, first_part, x, rows.stride, cols, tile);
  } else if constexpr (F == PanelFormat::bf16) {
    stored_tile<Eigen::bfloat16>(panel, first_part, x, rows.stride, cols, tile);
  } else {
    for (Index k = 0; k < cols; k += 32, panel += Layout<F>::bytes)
      float_block<Layout<F>>(panel, first_part, x + k, rows.stride, tile);
  }
  put(to, first_part, tile);
}

// Both kinds behind one name.

template <PanelFormat F, int Parts, int T>
TINYLLM_INLINE void run_tile(const std::byte* panel, int part, const FloatRows& x, Index first, Index cols, const Target& to) {
  float_tile<F, Parts, T>(panel, part, x, first, cols, to);
}
template <PanelFormat F, int Parts, int T>
TINYLLM_INLINE void run_tile(const std::byte* panel, int part, const QuantizedRows& x, Index first, Index cols,
                             const Target& to) {
  quantized_tile<F, Parts, T>(panel, part, x, first, cols, to);
}

// One token takes a panel in the order in which it lies; more of them keep a part's results in registers.
template <PanelFormat F, int T, class Rows>
TINYLLM_INLINE void run_parts(const std::byte* panel, const Rows& x, Index first, Index cols, const Target& to) {
  if constexpr (T == 1) {
    run_tile<F, whole_panel, 1>(panel, 0, x, first, cols, to);
  } else {
    for (int part = 0; part < whole_panel; ++part) run_tile<F, 1, T>(panel, part, x, first, cols, to);
  }
}

template <PanelFormat F, class Rows>
void run_panels(const Panels& w, const Rows& x, const ProductRows& y) {
  const std::byte* panel = w.data;
  for (Index row = 0; row < w.rows; row += panel_rows, panel += w.panel_bytes) {
    Target to{y.data + row, y.stride, w.rows - row, y.store};
    for (Index t = 0; t < x.tokens;) {
      const Index left = x.tokens - t;
      to.data = y.data + t * y.stride + row;
      if (most_tokens >= 8 && left >= 8) {
        if constexpr (most_tokens >= 8) run_parts<F, 8>(panel, x, t, w.cols, to);
        t += 8;
      } else if (left >= 4) {
        run_parts<F, 4>(panel, x, t, w.cols, to);
        t += 4;
      } else if (left >= 2) {
        run_parts<F, 2>(panel, x, t, w.cols, to);
        t += 2;
      } else {
        run_parts<F, 1>(panel, x, t, w.cols, to);
        ++t;
      }
    }
  }
}

void multiply_quantized(const Panels& w, const QuantizedRows& x, const ProductRows& y) {
  switch (w.format) {
    case PanelFormat::nibbles: return run_panels<PanelFormat::nibbles>(w, x, y);
    case PanelFormat::nibbles_minima: return run_panels<PanelFormat::nibbles_minima>(w, x, y);
    case PanelFormat::nibbles_float_minima: return run_panels<PanelFormat::nibbles_float_minima>(w, x, y);
    case PanelFormat::bytes: return run_panels<PanelFormat::bytes>(w, x, y);
    case PanelFormat::bytes_two_scales: return run_panels<PanelFormat::bytes_two_scales>(w, x, y);
    default: return;
  }
}

void multiply_floats(const Panels& w, const FloatRows& x, const ProductRows& y) {
  switch (w.format) {
    case PanelFormat::f32: return run_panels<PanelFormat::f32>(w, x, y);
    case PanelFormat::f16: return run_panels<PanelFormat::f16>(w, x, y);
    case PanelFormat::bf16: return run_panels<PanelFormat::bf16>(w, x, y);
    case PanelFormat::nibbles: return run_panels<PanelFormat::nibbles>(w, x, y);
    case PanelFormat::nibbles_minima: return run_panels<PanelFormat::nibbles_minima>(w, x, y);
    case PanelFormat::nibbles_float_minima: return run_panels<PanelFormat::nibbles_float_minima>(w, x, y);
    case PanelFormat::bytes: return run_panels<PanelFormat::bytes>(w, x, y);
    case PanelFormat::bytes_two_scales: return run_panels<PanelFormat::bytes_two_scales>(w, x, y);
  }
}

}  // namespace
}  // namespace ENGINE_LEVEL
}  // namespace engine
