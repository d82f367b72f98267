// SPDX-License-Identifier: Apache-2.0
// Random sequences of update, truncate, torn passes, clear, clone and move on every cache against lists of rows.
#include "property/cases.hpp"

#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/cache/latent_cache.hpp>
#include <tinyllm/cache/paged_kv_cache.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

using namespace tinyllm;

namespace {

// What the test must know of a cache: its sizes, the widths of the two chunks that update takes, and where a row lies.
struct Sizes {
  Index layers, batch, heads, max_len;
  Index widths[2];
};

// Where a row lies, and its scale if it has one.
template <class Dtype>
struct RowAt {
  const Dtype* elements;
  const float* scale = nullptr;
};

template <class Dtype, class View>
RowAt<Dtype> row_of(const View& view, int part, Index b, Index h, Index row) {
  for (Index i = 0;; ++i) {
    const KVSegment<Dtype> segment = view.segment(b, h, i);
    if (row < segment.rows) {
      const float* scales = part == 0 ? segment.key_scales : segment.value_scales;
      return {(part == 0 ? segment.keys : segment.values) + row * view.d_head(), scales == nullptr ? nullptr : scales + row};
    }
    row -= segment.rows;
  }
}

template <class Dtype>
struct Contiguous {
  using Element = Dtype;
  using Cache = KVCache<Dtype>;
  static Sizes sizes(Sizes wanted) {
    wanted.widths[1] = wanted.widths[0];
    return wanted;
  }
  static Cache make(const Sizes& s) {
    return Cache({.n_layers = s.layers, .n_kv_heads = s.heads, .d_head = s.widths[0], .max_len = s.max_len, .batch = s.batch});
  }
  static RowAt<Dtype> row(const KVView<Dtype>& view, int part, Index b, Index h, Index row) {
    return row_of<Dtype>(view, part, b, h, row);
  }
};

template <class Dtype>
struct Paged {
  using Element = Dtype;
  using Cache = PagedKVCache<Dtype>;
  static Sizes sizes(Sizes wanted) {
    wanted.widths[1] = wanted.widths[0];
    wanted.batch = 1;
    return wanted;
  }
  static Cache make(const Sizes& s) {
    const Index block_size = 1 + s.max_len * 7 % 5;
    return Cache({.n_layers = s.layers, .n_kv_heads = s.heads, .d_head = s.widths[0], .max_len = s.max_len}, block_size);
  }
  static RowAt<Dtype> row(const PagedKVView<Dtype>& view, int part, Index b, Index h, Index row) {
    return row_of<Dtype>(view, part, b, h, row);
  }
};

template <class Dtype>
struct Latent {
  using Element = Dtype;
  using Cache = LatentCache<Dtype>;
  static Sizes sizes(Sizes wanted) {
    wanted.heads = 1;
    return wanted;
  }
  static Cache make(const Sizes& s) {
    return Cache(
        {.n_layers = s.layers, .d_latent = s.widths[0], .d_rope = s.widths[1], .max_len = s.max_len, .batch = s.batch});
  }
  static RowAt<Dtype> row(const LatentView<Dtype>& view, int part, Index b, Index, Index row) {
    const auto rows = part == 0 ? view.latents(b) : view.rope_keys(b);
    return {rows.data() + row * rows.outerStride()};
  }
};

// A row as a cache keeps it; with int8 the bytes of its scale stand behind it.
template <class Dtype>
std::vector<Dtype> stored_row(const std::vector<float>& numbers) {
  std::vector<Dtype> row;
  if constexpr (std::is_same_v<Dtype, std::int8_t>) {
    float largest = 0;
    for (const float x : numbers) largest = std::max(largest, std::abs(x));
    const float scale = largest / 127.0F;
    for (const float x : numbers)
      row.push_back(static_cast<std::int8_t>(largest == 0 ? 0 : std::nearbyint(x * (127.0F / largest))));
    const auto bytes = std::bit_cast<std::array<std::int8_t, sizeof scale>>(scale);
    row.insert(row.end(), bytes.begin(), bytes.end());
  } else {
    for (const float x : numbers) row.push_back(Dtype(x));
  }
  return row;
}

// A cache as anyone would write it first: for each layer, sequence, head and part a list of rows.
template <class Subject>
class NaiveCache {
 public:
  using Dtype = typename Subject::Element;
  using Row = std::vector<Dtype>;

  explicit NaiveCache(const Sizes& sizes) : sizes_(sizes), layers_(static_cast<std::size_t>(sizes.layers)) {
    for (Layer& layer : layers_) {
      for (auto& part : layer.parts) part.resize(static_cast<std::size_t>(sizes.batch * sizes.heads));
    }
  }

  // False where the real cache must refuse.
  bool update(Index layer, const std::vector<float> (&chunks)[2], Index tokens) {
    Layer& target = layers_[static_cast<std::size_t>(layer)];
    if (target.length + tokens > sizes_.max_len) return false;
    for (int part = 0; part < 2; ++part) {
      std::size_t at = 0;
      for (std::vector<Row>& head : target.parts[part]) {
        for (Index t = 0; t < tokens; ++t) {
          const auto first = chunks[part].begin() + static_cast<std::ptrdiff_t>(at);
          head.push_back(stored_row<Dtype>(std::vector<float>(first, first + sizes_.widths[part])));
          at += static_cast<std::size_t>(sizes_.widths[part]);
        }
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
      for (auto& part : layer.parts) {
        for (std::vector<Row>& head : part) head.resize(static_cast<std::size_t>(n));
      }
    }
    return true;
  }

  bool same_as(const typename Subject::Cache& cache) const {
    if (cache.seq_len() != seq_len()) return false;
    for (Index l = 0; l < sizes_.layers; ++l) {
      const Layer& layer = layers_[static_cast<std::size_t>(l)];
      const auto view = cache.view(l);
      if (cache.seq_len(l) != layer.length || view.rows() != layer.length) return false;
      for (int part = 0; part < 2; ++part) {
        for (Index b = 0; b < sizes_.batch; ++b) {
          for (Index h = 0; h < sizes_.heads; ++h) {
            const std::vector<Row>& rows = layer.parts[part][static_cast<std::size_t>(b * sizes_.heads + h)];
            for (Index r = 0; r < layer.length; ++r) {
              const Row& row = rows[static_cast<std::size_t>(r)];
              const RowAt<Dtype> at = Subject::row(view, part, b, h, r);
              const auto width = static_cast<std::size_t>(sizes_.widths[part]);
              if (std::memcmp(at.elements, row.data(), width * sizeof(Dtype)) != 0) return false;
              if (at.scale != nullptr && std::memcmp(at.scale, row.data() + width, sizeof(float)) != 0) return false;
            }
          }
        }
      }
    }
    return true;
  }

 private:
  struct Layer {
    Index length = 0;
    std::vector<std::vector<Row>> parts[2];
  };
  Sizes sizes_;
  std::vector<Layer> layers_;
};

Index pick(std::mt19937& random, Index below) { return static_cast<Index>(random() % static_cast<unsigned>(below)); }

std::vector<float> random_floats(std::mt19937& random, Index n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  for (float& x : out) x = static_cast<float>(static_cast<int>(random() % 20001) - 10000) * 1.7e-3F;
  return out;
}

template <class Subject>
std::size_t run_sequence(unsigned seed, std::size_t operations) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  const Sizes sizes = Subject::sizes({.layers = 1 + pick(random, 3),
                                      .batch = 1 + pick(random, 2),
                                      .heads = 1 + pick(random, 3),
                                      .max_len = 1 + pick(random, 20),
                                      .widths = {1 + pick(random, 9), 1 + pick(random, 9)}});
  auto cache = Subject::make(sizes);
  NaiveCache<Subject> naive(sizes);
  const auto append = [&](Index layer, Index tokens) {
    const auto shape = [&](int part) {
      return ChunkShape{.batch = sizes.batch, .heads = sizes.heads, .tokens = tokens, .d = sizes.widths[part]};
    };
    const Index rows = sizes.batch * sizes.heads * tokens;
    const std::vector<float> chunks[2] = {random_floats(random, rows * sizes.widths[0]),
                                          random_floats(random, rows * sizes.widths[1])};
    const ChunkView first(chunks[0].data(), shape(0));
    const ChunkView second(chunks[1].data(), shape(1));
    if (naive.update(layer, chunks, tokens)) {
      cache.update(layer, first, second);
    } else {
      CHECK_THROWS_AS(cache.update(layer, first, second), CacheFull);
    }
  };
  for (std::size_t i = 0; i < operations; ++i) {
    const Index choice = pick(random, 100);
    if (choice < 60) {  // a whole pass, or as much of one as fits
      const Index tokens = 1 + pick(random, 5);
      for (Index layer = 0; layer < sizes.layers; ++layer) append(layer, tokens);
    } else if (choice < 72) {  // a torn pass
      const Index tokens = 1 + pick(random, 4);
      const Index layers = pick(random, sizes.layers + 1);
      for (Index layer = 0; layer < layers; ++layer) append(layer, tokens);
    } else if (choice < 80) {
      append(pick(random, sizes.layers), 1 + pick(random, 3));
    } else if (choice < 84) {
      cache.truncate(cache.seq_len());
      naive.truncate(naive.seq_len());
    } else if (choice < 94) {
      const Index n = pick(random, sizes.max_len + 3) - 1;
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
      auto moved = std::move(cache);
      cache.clear();  // one that was moved from is empty
      CHECK(cache.seq_len() == 0);
      cache = std::move(moved);
    }
    REQUIRE(naive.same_as(cache));
  }
  return operations;
}

}  // namespace

TEST_CASE_TEMPLATE("property: caches against lists of rows", Subject, Contiguous<float>, Contiguous<Eigen::half>,
                   Contiguous<Eigen::bfloat16>, Contiguous<std::int8_t>, Paged<float>, Paged<Eigen::half>,
                   Paged<Eigen::bfloat16>, Paged<std::int8_t>, Latent<float>, Latent<Eigen::half>, Latent<Eigen::bfloat16>) {
  const std::size_t wanted = property::cases(20'000);
  std::size_t done = 0;
  unsigned seed = 0;
  while (done < wanted) done += run_sequence<Subject>(seed++, 60);
  MESSAGE(done << " operations, seeds 0 to " << seed - 1);
}
