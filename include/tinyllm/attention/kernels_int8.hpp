// SPDX-License-Identifier: Apache-2.0
// Int8Products: scores and weighted sums over int8 rows in integers: queries and weights become 15-bit integers times a scale
// of their own, products and sums are exact, and the scales are multiplied in at the end.
//
//     stream<Int8Products>(job);
//
// Internal, and empty unless TINYLLM_LEVEL is defined, like kernels_common.hpp (no #pragma once). Needs the level's
// put_query, dots, put_weights and value_sums (int8_*.hpp). A query is off by 1/32638 of its largest element at most, a weight
// by 1/32767 of the tile's largest: little beside what rounding the rows to int8 has cost.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

struct Int8Products {
  /// Long tiles: each costs rounding the weights.
  static Index tile_rows(Index) { return attention_detail::longest_tile; }
  static Index query_floats(Index d) { return attention_detail::packed_query(d); }

  /// Two floats, the scale and a constant of the level's, then from the sixteenth float on the integers.
  static void pack(const float* q, Index d, float scale, float* packed) {
    alignas(64) float part[64];
    const auto take = [&](Index c) {
      const Index n = smaller(d - c, 64);
      for (Index i = 0; i < n; ++i) part[i] = q[c + i] * scale;
      for (Index i = n; i < 64; ++i) part[i] = 0.0F;
    };
    Lanes highest = zero();
    Lanes zeros = zero();
    for (Index c = 0; c < d; c += 64) {
      take(c);
      for (Index i = 0; i < 64; i += width) {
        highest = maximum(absolute(load(part + i)), highest);
        zeros = fma(load(part + i), zero(), zeros);
      }
    }
    const float largest = horizontal_maximum(highest);
    const float none = horizontal_sum(zeros);
    const bool usable = none == 0.0F && largest > smallest;
    // All sums of products stay below 2^31.
    const float by_width = 16777216.0F / static_cast<float>(d);
    const float most = by_width < 16319.0F ? by_width : 16319.0F;
    const Lanes factor = broadcast(usable ? most / largest : 0.0F);
    const Lanes magic = broadcast(12582912.0F);  // adding it rounds to an integer
    float constant = 0.0F;
    for (Index c = 0; c < d; c += 64) {
      take(c);
      for (Index i = 0; i < 64; i += width) {
        const Lanes whole = subtract(add(multiply(load(part + i), factor), magic), magic);
        store(part + i, usable ? whole : zero());
      }
      constant += put_query(part, packed + 16, c);
    }
    packed[0] = none == 0.0F ? (usable ? largest / most : 0.0F) : none;
    packed[1] = constant;
  }

  /// scores[g][i] = query g · key row + i, for G queries.
  template <unsigned G>
  TINYLLM_INLINE static void scores(const AttentionJob& job, const StoredRun& run, Index row, Index n, const float* q,
                                    float* scores) {
    const Index d = job.d;
    const Index stride = query_floats(d);
    const std::int8_t* keys = static_cast<const std::int8_t*>(run.keys) + row * d;
    alignas(64) std::int32_t sums[G * attention_detail::score_stride];
    const Fetch fetched = fetch_with_keys(job.fetching, run, row, d);
    if (fetched.bytes == 0) {
      dots<G, false>(keys, n, d, q + 16, stride, sums, fetched);
    } else {
      dots<G, true>(keys, n, d, q + 16, stride, sums, fetched);
    }
    alignas(64) float scales[attention_detail::score_stride];
    __builtin_memcpy(scales, run.key_scales + row, static_cast<std::size_t>(n) * sizeof(float));
    for (Index i = n; i < n + width; ++i) scales[i] = 0.0F;
    for (unsigned g = 0; g < G; ++g) {
      const Lanes scale = broadcast(q[g * stride]);
      const Lanes constant = broadcast(q[g * stride + 1]);
      const std::int32_t* from = sums + g * attention_detail::score_stride;
      float* to = scores + g * attention_detail::score_stride;
      for (Index i = 0; i < n; i += width) {
        store(to + i, multiply(corrected(from + i, constant), multiply(load(scales + i), scale)));
      }
    }
  }

  /// The weights of G pairs for the keys [first[g], end[g]) of the tile that begins at position `tile`, times the values'
  /// scales, as integers times a unit.
  template <unsigned G>
  class Tile {
   public:
    struct Sink {
      const float* scales;
      float largest_scale;
      Weights& weights;
      float& unit;
      Lanes factor = {};

      /// One unit is 1/32767 of the largest scale times a power of two that no weight exceeds.
      TINYLLM_INLINE void begin(Lanes highest, Lanes base) {
        float bases[width];
        store(bases, base);
        const float largest = power_of_two_above(horizontal_maximum(highest) - bases[0]) * largest_scale;
        unit = largest <= smallest ? 0.0F : largest / 32767.0F;  // not a number if a scale is none
        factor = broadcast(largest > smallest ? 32767.0F / largest : 0.0F);
      }
      TINYLLM_INLINE void put(Index i, Lanes weight) {
        put_weights(multiply(multiply(weight, load(scales + i)), factor), i, weights);
      }
    };

    TINYLLM_INLINE Tile(const AttentionJob& job, const StoredRun* run, Index tile, const Index* first, const Index* end,
                        const float*)
        : job_(job), run_(run), tile_(tile), from_(first[0]), to_(end[G - 1]) {
      for (Index i = from_ / width * width; i < to_ + width; i += width) store(scales_ + i, zero());
      for (Index i = 0; i < from_; i += width) store(scales_ + i, zero());
      for_each_run(run, tile + from_, tile + to_, [&](const StoredRun& at, Index position, Index n) {
        __builtin_memcpy(scales_ + (position - tile), at.value_scales + (position - at.first),
                         static_cast<std::size_t>(n) * sizeof(float));
      });
      for (unsigned g = 0; g < G; ++g) {
        units_[g] = 0.0F;
        // Weights beyond the whole vectors of [0, end) are those of keys that the pair does not see.
        clear_weights(first[g] < end[g] ? (end[g] + width - 1) / width * width : 0, weights_[g]);
        const bool as_before = g > 0 && first[g] == first[g - 1] && end[g] == end[g - 1];
        largest_[g] = as_before ? largest_[g - 1] : largest_scale(first[g], end[g]);
      }
      // What is no number has made its mark; a weight of 0 for those that do not see it needs a number.
      for (Index i = 0; i < to_; i += width) {
        store(scales_ + i, maximum(load(scales_ + i), zero()));
      }
    }

    TINYLLM_INLINE Sink sink(unsigned g) { return {scales_, largest_[g], weights_[g], units_[g]}; }

    /// sums[g] += Σ weight · value
    TINYLLM_INLINE void add_values(float* sums, float* more) const {
      const Index d = job_.d;
      const Index acc_stride = (d + 63) / 64 * 64;
      bool fresh = true;
      for_each_run(run_, tile_ + from_, tile_ + to_, [&](const StoredRun& at, Index position, Index n) {
        const Index row = position - at.first;
        const std::int8_t* values = static_cast<const std::int8_t*>(at.values) + row * d;
        const auto fetched = [&](Index column, Index count) {
          return fetch_with_values(job_, at, position, n, d, column, count);
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
      }
    }

   private:
    /// The largest scale of the keys [first, end), or no number if one is none: a row that was not all finite.
    float largest_scale(Index first, Index end) const {
      alignas(64) float own[attention_detail::score_stride] = {};
      if (first < end) {
        __builtin_memcpy(own + first, scales_ + first, static_cast<std::size_t>(end - first) * sizeof(float));
      }
      Lanes highest = zero();
      Lanes zeros = zero();
      for (Index i = 0; i < end; i += width) {
        highest = maximum(load(own + i), highest);
        zeros = fma(load(own + i), zero(), zeros);
      }
      return horizontal_maximum(highest) + horizontal_sum(zeros);
    }

    const AttentionJob& job_;
    const StoredRun* run_;
    Index tile_;
    Index from_;
    Index to_;
    alignas(64) float scales_[attention_detail::score_stride];
    float largest_[G];
    float units_[G];
    alignas(64) Weights weights_[G];
  };

 private:
  /// 2^n >= 2^x for x <= 0, or 0 for a very small one; 1 for what is no number.
  static float power_of_two_above(float x) {
    if (x < -126.0F) return 0.0F;
    if (!(x < 0.0F)) return 1.0F;
    const std::int32_t bits = (static_cast<std::int32_t>(x) + 127) << 23;  // towards zero: upwards
    float power;
    __builtin_memcpy(&power, &bits, sizeof power);
    return power;
  }
  /// Below this a largest magnitude cannot be divided by.
  static constexpr float smallest = 2e-34F;
};

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
