// SPDX-License-Identifier: Apache-2.0
// Random sequences of update, truncate, torn passes, clear, clone and move on every cache against lists of rows.
#include "property/cases.hpp"

#include <tinyllm/cache/kv_cache.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <vector>

using namespace tinyllm;

namespace {

// A cache as anyone would write it first: for each layer, sequence and head a list of rows of keys and one of values.
template <class Dtype>
class NaiveCache {
 public:
  using Row = std::vector<Dtype>;

  explicit NaiveCache(const CacheDims& dims) : dims_(dims), layers_(static_cast<std::size_t>(dims.n_layers)) {
    for (Layer& layer : layers_) layer.heads.resize(static_cast<std::size_t>(dims.batch * dims.n_kv_heads));
  }

  // False where the real cache must refuse.
  bool update(Index layer, const std::vector<float>& k, const std::vector<float>& v, Index tokens) {
    Layer& target = layers_[static_cast<std::size_t>(layer)];
    if (target.length + tokens > dims_.max_len) return false;
    std::size_t at = 0;
    for (auto& head : target.heads) {
      for (Index t = 0; t < tokens; ++t) {
        Row key;
        Row value;
        for (Index i = 0; i < dims_.d_head; ++i, ++at) {
          key.push_back(Dtype(k[at]));
          value.push_back(Dtype(v[at]));
        }
        head.first.push_back(key);
        head.second.push_back(value);
      }
    }
    target.length += tokens;
    return true;
  }

  Index seq_len() const {
    Index length = layers_[0].length;
    for (const Layer& layer : layers_) length = std::min(length, layer.length);
    return length;
  }

  bool truncate(Index n) {
    if (n < 0 || n > seq_len()) return false;
    for (Layer& layer : layers_) {
      layer.length = n;
      for (auto& head : layer.heads) {
        head.first.resize(static_cast<std::size_t>(n));
        head.second.resize(static_cast<std::size_t>(n));
      }
    }
    return true;
  }

  bool same_as(const KVCache<Dtype>& cache) const {
    if (cache.seq_len() != seq_len()) return false;
    for (Index l = 0; l < dims_.n_layers; ++l) {
      const Layer& layer = layers_[static_cast<std::size_t>(l)];
      const KVView<Dtype> view = cache.view(l);
      if (cache.seq_len(l) != layer.length || view.rows() != layer.length) return false;
      for (Index b = 0; b < dims_.batch; ++b) {
        for (Index h = 0; h < dims_.n_kv_heads; ++h) {
          const auto& [keys, values] = layer.heads[static_cast<std::size_t>(b * dims_.n_kv_heads + h)];
          Index row = 0;
          for (Index s = 0; s < view.n_segments(); ++s) {
            const KVSegment<Dtype> segment = view.segment(b, h, s);
            for (Index r = 0; r < segment.rows; ++r, ++row) {
              const auto bytes = static_cast<std::size_t>(dims_.d_head) * sizeof(Dtype);
              const auto n = static_cast<std::size_t>(row);
              if (std::memcmp(segment.keys + r * dims_.d_head, keys[n].data(), bytes) != 0) return false;
              if (std::memcmp(segment.values + r * dims_.d_head, values[n].data(), bytes) != 0) return false;
            }
          }
          if (row != layer.length) return false;
        }
      }
    }
    return true;
  }

 private:
  struct Layer {
    Index length = 0;
    std::vector<std::pair<std::vector<Row>, std::vector<Row>>> heads;
  };
  CacheDims dims_;
  std::vector<Layer> layers_;
};

Index pick(std::mt19937& random, Index below) { return static_cast<Index>(random() % static_cast<unsigned>(below)); }

std::vector<float> random_floats(std::mt19937& random, Index n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = static_cast<float>(static_cast<int>(random() % 20001) - 10000) * 1.7e-3F;
  return out;
}

template <class Dtype>
std::size_t run_sequence(unsigned seed, std::size_t operations) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  const CacheDims dims{.n_layers = 1 + pick(random, 3),
                       .n_kv_heads = 1 + pick(random, 3),
                       .d_head = 1 + pick(random, 9),
                       .max_len = 1 + pick(random, 20),
                       .batch = 1 + pick(random, 2)};
  KVCache<Dtype> cache(dims);
  NaiveCache<Dtype> naive(dims);
  const auto append = [&](Index layer, Index tokens) {
    const ChunkShape shape{.batch = dims.batch, .heads = dims.n_kv_heads, .tokens = tokens, .d = dims.d_head};
    const Index n = shape.batch * shape.heads * shape.tokens * shape.d;
    const std::vector<float> k = random_floats(random, n);
    const std::vector<float> v = random_floats(random, n);
    if (naive.update(layer, k, v, tokens)) {
      cache.update(layer, ChunkView(k.data(), shape), ChunkView(v.data(), shape));
    } else {
      CHECK_THROWS_AS(cache.update(layer, ChunkView(k.data(), shape), ChunkView(v.data(), shape)), CacheFull);
    }
  };
  for (std::size_t i = 0; i < operations; ++i) {
    const Index choice = pick(random, 100);
    if (choice < 60) {  // a whole pass, or as much of one as fits
      const Index tokens = 1 + pick(random, 5);
      for (Index layer = 0; layer < dims.n_layers; ++layer) append(layer, tokens);
    } else if (choice < 72) {  // a torn pass
      const Index tokens = 1 + pick(random, 4);
      const Index layers = pick(random, dims.n_layers + 1);
      for (Index layer = 0; layer < layers; ++layer) append(layer, tokens);
    } else if (choice < 80) {
      append(pick(random, dims.n_layers), 1 + pick(random, 3));
    } else if (choice < 84) {
      cache.truncate(cache.seq_len());
      naive.truncate(naive.seq_len());
    } else if (choice < 94) {
      const Index n = pick(random, dims.max_len + 3) - 1;
      if (naive.truncate(n)) {
        cache.truncate(n);
      } else {
        CHECK_THROWS_AS(cache.truncate(n), std::out_of_range);
      }
    } else if (choice < 96) {
      cache.clear();
      naive.truncate(0);
    } else if (choice < 98) {
      cache = cache.clone();
    } else {
      KVCache<Dtype> moved = std::move(cache);
      cache = std::move(moved);
    }
    REQUIRE(naive.same_as(cache));
  }
  return operations;
}

}  // namespace

TEST_CASE_TEMPLATE("property: caches against lists of rows", Dtype, float, Eigen::half, Eigen::bfloat16) {
  const std::size_t wanted = property::cases(20'000);
  std::size_t done = 0;
  unsigned seed = 0;
  while (done < wanted) done += run_sequence<Dtype>(seed++, 60);
  MESSAGE(done << " operations, seeds 0 to " << seed - 1);
}
