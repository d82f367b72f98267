// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include <tinyllm/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

namespace engine {
namespace {

constexpr float nothing = -std::numeric_limits<float>::infinity();

// Keys of one tile: K and V of it stay in the first two levels of cache.
constexpr Index key_tile = 64;

// Tiles of sixteen (query, head) pairs that share one converted tile of keys and values.
constexpr Index block_tiles = 4;

// Fewer keys than this are not worth a task of their own while decoding.
constexpr Index least_part = 256;

void grow(std::vector<float>& scratch, Index size) {
  if (static_cast<Index>(scratch.size()) < size) scratch.resize(static_cast<std::size_t>(size));
}

// Scratch of one decode task. Shape: maximum and sum [group], out [group, d], q and scores for one step.
Index part_size(Index group, Index d) { return group * (2 + 2 * d + key_tile); }

// Scratch of one block of pairs. Shape: q and out [d, 16] and the softmax of each tile, scores [key_tile, 16], K, V [key_tile,
// d]
Index tile_size(Index d) { return 2 * d * tile_lanes + static_cast<Index>(sizeof(SoftmaxLanes) / sizeof(float)); }
Index block_size(Index d) { return block_tiles * tile_size(d) + key_tile * (tile_lanes + 2 * d); }

}  // namespace

Attention::Attention(tinyllm::ThreadPool& pool, const AttentionShape& shape, const Kernels& kernels)
    : pool_(pool), shape_(shape), kernels_(kernels), scale_(1.0F / std::sqrt(static_cast<float>(shape.head_dim))) {
  if (shape.n_kv_heads < 1 || shape.n_heads < 1 || shape.head_dim < 1 || shape.n_heads % shape.n_kv_heads != 0) {
    throw std::invalid_argument(tinyllm::detail::message("attention: ", shape.n_heads, " query heads of ", shape.head_dim,
                                                         " do not divide into groups for ", shape.n_kv_heads, " kv heads"));
  }
  segments_.resize(static_cast<std::size_t>(shape.n_kv_heads));
}

void Attention::begin(TensorType type, const ViewShape& view, Index rows, Index tokens) {
  if (view.batch != 1 || view.n_heads != shape_.n_kv_heads || view.d_head != shape_.head_dim || tokens < 1 || rows < tokens) {
    throw std::invalid_argument(tinyllm::detail::message(
        "attention: a view of [B, H, rows, d] = [", view.batch, ", ", view.n_heads, ", ", rows, ", ", view.d_head, "] for ",
        tokens, " queries; expected [1, ", shape_.n_kv_heads, ", at least as many, ", shape_.head_dim, "]"));
  }
  type_ = type;
  rows_ = rows;
  tokens_ = tokens;
  for (std::vector<Segment>& list : segments_) list.clear();
}

void Attention::add_segment(Index kv_head, const std::byte* keys, const std::byte* values, Index rows) {
  std::vector<Segment>& list = segments_[static_cast<std::size_t>(kv_head)];
  const Index first = list.empty() ? 0 : list.back().first + list.back().rows;
  if (rows > 0) list.push_back({keys, values, first, rows});
}

void Attention::run(const RowMatrix& q, RowMatrix& out) {
  if (q.cols() != shape_.n_heads * shape_.head_dim) {
    throw std::invalid_argument(
        tinyllm::detail::message("attention: queries of width ", q.cols(), ", expected ", shape_.n_heads * shape_.head_dim));
  }
  out.resize(q.rows(), q.cols());
  if (q.rows() == 1) {
    decode(q, out);
  } else {
    prefill(q, out);
  }
}

StoredMatrix Attention::rows_of(const std::byte* data, Index first, Index n) const {
  const std::size_t row_bytes = static_cast<std::size_t>(shape_.head_dim) * (type_ == TensorType::F32 ? 4U : 2U);
  return {type_, data + static_cast<std::size_t>(first) * row_bytes, row_bytes, n, shape_.head_dim};
}

template <class F>
void Attention::for_each_run(Index kv_head, Index first, Index end, Index step, F f) const {
  const std::vector<Segment>& list = segments_[static_cast<std::size_t>(kv_head)];
  auto segment = std::upper_bound(list.begin(), list.end(), first, [](Index at, const Segment& s) { return at < s.first; });
  if (segment != list.begin()) --segment;  // the one that holds `first`
  for (; segment != list.end() && segment->first < end; ++segment) {
    const Index last = std::min(end, segment->first + segment->rows);
    for (Index at = std::max(first, segment->first); at < last; at += step) f(*segment, at, std::min(step, last - at));
  }
}

// One query: each task takes a kv head and a range of its keys, with all query heads of the group; the ranges' results
// merge by their maxima and sums.
void Attention::decode(const RowMatrix& q, RowMatrix& out) {
  const Index heads = shape_.n_kv_heads;
  const Index wanted = (4 * pool_.concurrency() + heads - 1) / heads;
  const Index n_parts = std::clamp<Index>(rows_ / least_part, 1, wanted);
  const Index size = part_size(group(), shape_.head_dim);
  grow(scratch_, heads * n_parts * size);
  pool_.run(heads * n_parts, [&](Index task) {
    const Index h = task / n_parts;
    const Index part = task % n_parts;
    decode_part(q.data() + h * group() * shape_.head_dim, h, rows_ * part / n_parts, rows_ * (part + 1) / n_parts,
                scratch_.data() + task * size);
  });
  merge_parts(n_parts, out);
}

void Attention::decode_part(const float* q, Index kv_head, Index first, Index end, float* part) const {
  const Index g = group();
  const Index d = shape_.head_dim;
  float* maximum = part;           // [g]
  float* sum = maximum + g;        // [g]
  float* out = sum + g;            // [g, d]
  float* scaled = out + g * d;     // [g, d]
  float* scores = scaled + g * d;  // [g, key_tile]
  std::fill_n(maximum, g, nothing);
  std::fill_n(sum, g, 0.0F);
  std::fill_n(out, g * d, 0.0F);
  for (Index i = 0; i < g * d; ++i) scaled[i] = q[i] * scale_;
  for_each_run(kv_head, first, end, key_tile, [&](const Segment& segment, Index at, Index n) {
    const StoredMatrix keys = rows_of(segment.keys, at - segment.first, n);
    const StoredMatrix values = rows_of(segment.values, at - segment.first, n);
    for (Index i = 0; i < g; i += max_dot_rows) {
      kernels_.dot_rows(keys, scaled + i * d, d, std::min(max_dot_rows, g - i), scores + i * key_tile, key_tile);
    }
    for (Index i = 0; i < g; ++i) {
      float* row = scores + i * key_tile;
      const float highest = std::max(maximum[i], *std::max_element(row, row + n));
      const float base = highest == nothing ? 0.0F : highest;
      if (highest != maximum[i]) {
        const float rescale = std::exp(maximum[i] - base);
        sum[i] *= rescale;
        for (Index c = 0; c < d; ++c) out[i * d + c] *= rescale;
        maximum[i] = highest;
      }
      sum[i] += kernels_.exp_minus(row, n, base);
    }
    for (Index i = 0; i < g; i += max_dot_rows) {
      kernels_.add_rows(values, scores + i * key_tile, key_tile, std::min(max_dot_rows, g - i), out + i * d, d);
    }
  });
}

void Attention::merge_parts(Index n_parts, RowMatrix& out) const {
  const Index g = group();
  const Index d = shape_.head_dim;
  const Index size = part_size(g, d);
  for (Index head = 0; head < shape_.n_heads; ++head) {
    const float* parts = scratch_.data() + head / g * n_parts * size;
    const Index i = head % g;
    float highest = nothing;
    for (Index p = 0; p < n_parts; ++p) highest = std::max(highest, parts[p * size + i]);
    auto result = out.row(0).segment(head * d, d);
    result.setZero();
    float total = 0;
    for (Index p = 0; p < n_parts && highest != nothing; ++p) {
      const float* part = parts + p * size;
      const float weight = std::exp(part[i] - highest);
      total += weight * part[g + i];
      result += weight * Eigen::Map<const Eigen::RowVectorXf>(part + 2 * g + i * d, d);
    }
    if (total > 0) result /= total;
  }
}

// Many queries: the pairs (query, head of the group) of a kv head are numbered query by query; sixteen of them are the
// lanes of a tile, and a task takes a few tiles that share what it converts.
void Attention::prefill(const RowMatrix& q, RowMatrix& out) {
  const Index pairs = q.rows() * group();
  const Index per_block = block_tiles * tile_lanes;
  const Index blocks = (pairs + per_block - 1) / per_block;
  const Index size = block_size(shape_.head_dim);
  const Index threads = pool_.concurrency();
  grow(scratch_, threads * size);
  std::atomic<Index> next{0};
  pool_.run(threads, [&](Index slot) {
    for (Index task = next.fetch_add(1); task < blocks * shape_.n_kv_heads; task = next.fetch_add(1)) {
      const Index block = blocks - 1 - task / shape_.n_kv_heads;  // the longest first, so that nobody waits for them
      prefill_block(q, out, task % shape_.n_kv_heads, block * per_block, scratch_.data() + slot * size);
    }
  });
}

void Attention::prefill_block(const RowMatrix& q, RowMatrix& out, Index kv_head, Index first_pair, float* scratch) const {
  const Index g = group();
  const Index d = shape_.head_dim;
  const Index end_pair = std::min(tokens_ * g, first_pair + block_tiles * tile_lanes);
  const Index tiles = (end_pair - first_pair + tile_lanes - 1) / tile_lanes;
  float* scores = scratch + block_tiles * tile_size(d);
  float* keys = scores + key_tile * tile_lanes;
  float* values = keys + key_tile * d;

  // A tile: q [d, 16], out [d, 16], SoftmaxLanes as floats.
  for (Index tile = 0; tile < tiles; ++tile) {
    float* packed = scratch + tile * tile_size(d);
    std::fill_n(packed, tile_size(d), 0.0F);
    std::fill_n(packed + 2 * d * tile_lanes, tile_lanes, nothing);
    for (Index lane = 0; lane < tile_lanes; ++lane) {
      const Index pair = first_pair + tile * tile_lanes + lane;
      if (pair >= end_pair) break;
      const float* from = q.data() + pair / g * q.cols() + (kv_head * g + pair % g) * d;
      for (Index c = 0; c < d; ++c) packed[c * tile_lanes + lane] = from[c] * scale_;
    }
  }

  for_each_run(kv_head, 0, visible((end_pair - 1) / g), key_tile, [&](const Segment& segment, Index at, Index n) {
    const auto as_floats = [&](const std::byte* data, float* buffer) {
      const StoredMatrix rows = rows_of(data, at - segment.first, n);
      if (rows.type == TensorType::F32) return reinterpret_cast<const float*>(rows.data);
      kernels_.unpack(rows.type, rows.data, n * d, buffer);  // the rows lie one after the other
      return static_cast<const float*>(buffer);
    };
    const StridedFloats k{as_floats(segment.keys, keys), d, 1, n, d};
    const StridedFloats v{as_floats(segment.values, values), 1, d, d, n};  // transposed by its strides
    for (Index tile = 0; tile < tiles; ++tile) {
      const Index pair = first_pair + tile * tile_lanes;
      prefill_tile(k, v, at, pair, std::min(tile_lanes, end_pair - pair), scratch + tile * tile_size(d), scores);
    }
  });

  for (Index pair = first_pair; pair < end_pair; ++pair) {
    const Index lane = (pair - first_pair) % tile_lanes;
    const float* result = scratch + (pair - first_pair) / tile_lanes * tile_size(d) + d * tile_lanes;
    const float sum = result[d * tile_lanes + tile_lanes + lane];
    float* to = out.data() + pair / g * out.cols() + (kv_head * g + pair % g) * d;
    for (Index c = 0; c < d; ++c) to[c] = sum > 0 ? result[c * tile_lanes + lane] / sum : 0.0F;
  }
}

void Attention::prefill_tile(const StridedFloats& keys, const StridedFloats& values, Index first_key, Index first_pair,
                             Index n_pairs, float* block, float* scores) const {
  const Index d = shape_.head_dim;
  const Index n = keys.rows;
  if (visible((first_pair + n_pairs - 1) / group()) <= first_key) return;  // no lane sees any of these keys
  float* out = block + d * tile_lanes;
  float* state = out + d * tile_lanes;
  SoftmaxLanes lanes;
  std::copy_n(state, tile_lanes, lanes.maximum);
  std::copy_n(state + tile_lanes, tile_lanes, lanes.sum);

  kernels_.tile(keys, block, scores, TileOutput::overwrite);
  for (Index lane = 0; lane < n_pairs; ++lane) {
    const Index seen = visible((first_pair + lane) / group()) - first_key;
    for (Index key = std::max<Index>(seen, 0); key < n; ++key) scores[key * tile_lanes + lane] = nothing;
  }
  kernels_.softmax_lanes(scores, n, lanes);
  for (Index c = 0; c < d; ++c) {
    for (Index lane = 0; lane < tile_lanes; ++lane) out[c * tile_lanes + lane] *= lanes.rescale[lane];
  }
  kernels_.tile(values, scores, out, TileOutput::add);

  std::copy_n(lanes.maximum, tile_lanes, state);
  std::copy_n(lanes.sum, tile_lanes, state + tile_lanes);
}

}  // namespace engine
