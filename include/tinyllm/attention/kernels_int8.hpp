// SPDX-License-Identifier: Apache-2.0
// Int8Products: scores and weighted sums over int8 rows in integers: queries and weights become integers times units of their
// own, products and sums are exact, and the units are multiplied in at the end.
//
//     stream<Int8Products>(job);
//
// Internal, and empty unless TINYLLM_LEVEL is defined, like kernels_common.hpp (no #pragma once). Needs the level's put_query,
// put_units, dots, put_weights and value_sums (int8_*.hpp). An element of a query is off by half a unit, a weight too: with 15
// bits 1/32638 and 1/65534 of the largest, little beside what rounding the rows to int8 has cost; with bytes 1/254 of the
// largest of its block of columns and 1/510 of at most eight times the mean, about as much as the rows have lost.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

class Int8Products {
  // Where weights have few levels, the largest integer stands for most_of_mean times the mean weight of a tile at most: what
  // the few larger ones exceed it by is added on its own. So rounding is off by 1/510 of that, however steep the softmax is.
  static constexpr bool weights_saturate = weight_levels < 1024.0F;
  static constexpr float most_of_mean = 8.0F;
  static constexpr Index most_excesses = attention_detail::longest_tile / 8;  // fewer than one in most_of_mean can be larger
  /// Below this a largest magnitude cannot be divided by.
  static constexpr float smallest = 2e-34F;

 public:
  /// Whether stream_ahead pays: by 5 % with bytes; with words it costs 2 %.
  static constexpr bool scores_ahead = weights_saturate;

  static constexpr Index row_bytes(Index d) { return d; }
  static Index tile_rows(Index d) { return attention_detail::tile_rows(d, true); }
  static Index query_floats(Index d) { return attention_detail::packed_query(d); }

  /// 32 floats of the level's, then the integers. Columns c with the same c % 64 / (64 / query_blocks) share a unit.
  static void pack(const float* q, Index d, float scale, float* packed) {
    alignas(64) float part[64];
    const auto take = [&](Index c) {
      const Index n = smaller(d - c, 64);
      for (Index i = 0; i < n; ++i) part[i] = q[c + i] * scale;
      for (Index i = n; i < 64; ++i) part[i] = 0.0F;
    };
    constexpr Index block = 64 / query_blocks;
    Lanes highest[query_blocks] = {};
    Lanes zeros = zero();
    for (Index c = 0; c < d; c += 64) {
      take(c);
      for (Index i = 0; i < 64; i += width) {
        highest[i / block] = maximum(absolute(load(part + i)), highest[i / block]);
        zeros = fma(load(part + i), zero(), zeros);
      }
    }
    const float none = horizontal_sum(zeros);  // 0, or no number if an element is none
    // All sums of products stay below 2^31, for keys of -128 too.
    const float by_width = 16777216.0F / static_cast<float>(d) - 1.0F;
    const float most = by_width < query_levels ? by_width : query_levels;
    float units[query_blocks];
    float factors[query_blocks];
    for (Index k = 0; k < query_blocks; ++k) {
      const float largest = horizontal_maximum(highest[k]);
      const bool usable = none == 0.0F && largest > smallest;
      units[k] = usable ? largest / most : none;
      factors[k] = usable ? most / largest : 0.0F;
    }
    const Lanes magic = broadcast(12582912.0F);  // adding it rounds to an integer
    float sums[query_blocks] = {};
    for (Index c = 0; c < d; c += 64) {
      take(c);
      for (Index i = 0; i < 64; i += width) {
        const Lanes scaled = none == 0.0F ? multiply(load(part + i), broadcast(factors[i / block])) : zero();
        const Lanes whole = subtract(add(scaled, magic), magic);
        store(part + i, whole);
        sums[i / block] += horizontal_sum(whole);  // of integers below 2^24, so exact
      }
      put_query(part, packed + 32, c);
    }
    put_units(units, sums, packed);
  }

  /// scores[g][i] = query g · key row + i, for G queries.
  template <unsigned G>
  TINYLLM_INLINE static void scores(const AttentionJob& job, const StoredRun& run, Index row, Index n, const float* q,
                                    float* scores) {
    const Index d = job.d;
    const Index stride = query_floats(d);
    const std::int8_t* keys = static_cast<const std::int8_t*>(run.keys) + row * d;
    const Fetch fetched = fetch_with_keys(job.fetching, run, row, d, rows_of_dots);
    const float* key_scales = run.key_scales + row;
    if (fetched.bytes == 0) {
      dots<G, false>(keys, key_scales, n, d, q, stride, scores, fetched);
    } else {
      dots<G, true>(keys, key_scales, n, d, q, stride, scores, fetched);
    }
  }

  /// The weights of G pairs for the keys [first[g], end[g]) of the tile that begins at position `tile`, times the values'
  /// scales, as integers times a unit.
  template <unsigned G>
  class Tile {
   public:
    TINYLLM_INLINE Tile(const AttentionJob& job, const StoredRun* run, Index tile, const Index* first, const Index* end,
                        float* scores)
        : job_(job),
          run_(run),
          tile_(tile),
          first_(first),
          end_(end),
          scores_(scores),
          next_(job, run, tile, first[0], end[G - 1], row_bytes(job.d)) {}

    /// The scores become weights times the values' scales, as integers of a unit that is the pair's own. `maximum` and `sums`
    /// are those so far, sums lane by lane; factors[g] is for what pair g has summed up before.
    TINYLLM_INLINE void soften(float* maximum, float* sums, float* factors) {
      const Index n = (end_[G - 1] + width - 1) / width * width;
      float largest[G];
      load_scales(largest);
      Lanes highest[G];
      hide_unseen<G>(scores_, n, first_, end_);
      highest_scores<G>(scores_, n, highest);
      Lanes base[G];
      Lanes sum[G];
      Lanes total[G];
      alignas(64) float powers[16] = {};  // how far what came before and this tile lie below the maximum
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        const float here = horizontal_maximum(highest[g]);
        const float before = maximum[g];
        maximum[g] = larger(before, here);
        const float top = larger(maximum[g], lowest_score);
        powers[g] = before - top;
        powers[8 + g] = here - top;
        base[g] = broadcast(larger(here, lowest_score));  // where nothing is seen, −inf − base is −inf still
        sum[g] = total[g] = zero();
      }
      fetch_pages(job_, run_, tile_, row_bytes(job_.d));
      const Fetch next = next_.with_weights(width);
      for (Index i = 0; i < n; i += width) {
        fetch<true>(next, i / width);
        const Lanes scale = load(scales_ + i);
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) {
          float* at = scores_ + g * attention_detail::score_stride + i;
          const Lanes weight = exp2(subtract(load(at), base[g]));
          const Lanes scaled = multiply(weight, scale);
          store(at, scaled);
          sum[g] = add(sum[g], weight);
          if constexpr (weights_saturate) total[g] = add(total[g], scaled);
        }
      }
      for (Index i = 0; i < 16; i += width) store(powers + i, exp2(load(powers + i)));
      Lanes to_levels[G];
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        factors[g] = powers[g];
        float* at = sums + g * width;
        store(at, fma(sum[g], broadcast(powers[8 + g]), multiply(load(at), broadcast(factors[g]))));
        float most = largest[g];
        if constexpr (weights_saturate) {
          const float often = horizontal_sum(total[g]) / static_cast<float>(end_[g] - first_[g]) * most_of_mean;
          if (often < most) most = often;
          n_excesses_[g] = 0;
        }
        const float level = most <= smallest ? 0.0F : most / weight_levels;  // not a number if a scale is none
        units_[g] = level * powers[8 + g];
        to_levels[g] = broadcast(most > smallest ? weight_levels / most : 0.0F);
      }
      for (Index i = 0; i < n; i += width) {
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) {
          const Lanes number = multiply(load(scores_ + g * attention_detail::score_stride + i), to_levels[g]);
          put_weights(number, i, weights_[g]);
          if constexpr (weights_saturate) note_excesses(number, i, g);
        }
      }
    }

    /// sums[g] += Σ weight · value
    TINYLLM_INLINE void add_values(float* sums, float* more) const {
      const Index d = job_.d;
      const Index acc_stride = (d + 63) / 64 * 64;
      bool fresh = true;
      for_each_run(run_, tile_ + first_[0], tile_ + end_[G - 1], [&](const StoredRun& at, Index position, Index n) {
        const Index row = position - at.first;
        const std::int8_t* values = static_cast<const std::int8_t*>(at.values) + row * d;
        const auto fetched = [&](Index column, Index step) {
          if (column % 64 != 0) return Fetch{nullptr, 0};
          return next_.with_values(job_, at, position, n, column, 64, step);
        };
        if (job_.fetching == Fetching::none) {
          value_sums<G, false>(values, n, d, weights_, position - tile_, more, acc_stride, fresh, fetched);
        } else {
          value_sums<G, true>(values, n, d, weights_, position - tile_, more, acc_stride, fresh, fetched);
        }
        fresh = false;
      });
      const Index out_stride = attention_detail::padded(d);
      for (unsigned g = 0; g < G; ++g) {
        const Lanes unit = broadcast(units_[g]);
        const float* from_sums = more + g * acc_stride;
        float* out = sums + g * out_stride;
        for (Index c = 0; c < d; c += width) store(out + c, fma(to_float(from_sums + c), unit, load(out + c)));
        if constexpr (weights_saturate) add_excesses(g, out);
      }
    }

   private:
    /// What a weight exceeds the largest integer by, in units.
    struct Excess {
      Index key;
      float units;
    };
    /// Notes which of the numbers [i, i + width) exceed the largest integer.
    TINYLLM_INLINE void note_excesses(Lanes numbers, Index i, unsigned g) {
      unsigned larger_ones = bits_at_least(numbers, broadcast(weight_levels + 0.5F));
      if (larger_ones == 0) return;
      float each[width];
      store(each, numbers);
      for (; larger_ones != 0 && n_excesses_[g] < most_excesses; larger_ones &= larger_ones - 1) {
        const int k = __builtin_ctz(larger_ones);
        excesses_[g][n_excesses_[g]++] = {i + k, each[k] - weight_levels};
      }
    }
    /// out += Σ excess · value
    void add_excesses(unsigned g, float* out) const {
      for (Index i = 0; i < n_excesses_[g]; ++i) {
        const Index position = tile_ + excesses_[g][i].key;
        const StoredRun* run = run_of(job_, run_, position, 1);
        const std::int8_t* value = static_cast<const std::int8_t*>(run->values) + (position - run->first) * job_.d;
        const Lanes factor = broadcast(excesses_[g][i].units * units_[g]);
        alignas(64) std::int8_t last[width] = {};
        for (Index c = 0; c < job_.d; c += width) {
          const std::int8_t* from = value + c;
          if (c + width > job_.d) {
            __builtin_memcpy(last, from, static_cast<std::size_t>(job_.d - c));
            from = last;
          }
          store(out + c, fma(load_stored(from), factor, load(out + c)));
        }
      }
    }

    /// The values' scales of this tile, and the largest that each pair sees, or no number if one is none: a row that was not
    /// all finite.
    TINYLLM_INLINE void load_scales(float* largest) {
      const Index from = first_[0];
      const Index to = end_[G - 1];
      const Index n = (to + width - 1) / width * width;
      for (Index i = 0; i < n; i += width) store(scales_ + i, zero());
      for_each_run(run_, tile_ + from, tile_ + to, [&](const StoredRun& at, Index position, Index rows) {
        copy_floats(at.value_scales + (position - at.first), rows, scales_ + (position - tile_));
      });
      for (unsigned g = 0; g < G; ++g) {
        const bool as_before = g > 0 && first_[g] == first_[g - 1] && end_[g] == end_[g - 1];
        largest[g] = as_before ? largest[g - 1] : largest_scale(first_[g], end_[g]);
      }
      // What is no number has made its mark; a weight of 0 for those that do not see it needs a number, and a finite one.
      for (Index i = 0; i < n; i += width) {
        const Lanes scale = maximum(load(scales_ + i), zero());
        store(scales_ + i, subtract(zero(), maximum(subtract(zero(), scale), broadcast(lowest_score))));
      }
    }
    float largest_scale(Index first, Index end) const {
      Lanes highest = zero();
      Lanes zeros = zero();
      Index i = first;
      for (; i + width <= end; i += width) {
        highest = maximum(load(scales_ + i), highest);
        zeros = fma(load(scales_ + i), zero(), zeros);
      }
      float largest = horizontal_maximum(highest) + horizontal_sum(zeros);
      for (; i < end; ++i) largest = scales_[i] > largest || scales_[i] != scales_[i] ? scales_[i] : largest;
      return largest;
    }

    const AttentionJob& job_;
    const StoredRun* run_;
    Index tile_;
    const Index* first_;
    const Index* end_;
    float* scores_;
    alignas(64) float scales_[attention_detail::score_stride];
    NextKeys next_;
    float units_[G];
    alignas(64) Weights weights_[G];
    Index n_excesses_[G];
    Excess excesses_[G][most_excesses];
  };
};

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
