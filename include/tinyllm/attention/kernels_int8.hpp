// SPDX-License-Identifier: Apache-2.0
// Int8Products: scores and weighted sums over int8 rows in integers: queries and weights become 15-bit integers times a scale
// of their own, products and sums are exact, and the scales are multiplied in at the end.
//
//     stream<Int8Products>(job);
//
// Internal, and empty unless TINYLLM_LEVEL is defined, like kernels_common.hpp (no #pragma once). Needs the level's
// put_query, dots, put_weights and value_sums (int8_*.hpp). A query is off by 1/32638 of its largest element at most, a weight
// by 1/65534 of the tile's largest: little beside what rounding the rows to int8 has cost.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

struct Int8Products {
  static constexpr Index row_bytes(Index d) { return d; }
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
    dots<G>(keys, n, d, q + 16, stride, sums, fetch_with_keys(job.fetching, run, row, d));
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

  /// sums[g] += Σ weights[g][i] · value, over the keys [first[g], end[g]) of the tile that begins at position `tile`.
  template <unsigned G>
  TINYLLM_INLINE static void add_values(const AttentionJob& job, const StoredRun* run, Index tile, const Index* first,
                                        const Index* end, const float* weights, float* sums, float* more) {
    constexpr Index stride = attention_detail::score_stride;
    const Index d = job.d;
    const Index from = first[0];
    const Index to = end[G - 1];
    alignas(64) float scales[stride] = {};
    for_each_run(run, tile + from, tile + to, [&](const StoredRun& at, Index position, Index n) {
      __builtin_memcpy(scales + (position - tile), at.value_scales + (position - at.first),
                       static_cast<std::size_t>(n) * sizeof(float));
    });
    alignas(64) Weights integers[G];
    float units[G];
    for (unsigned g = 0; g < G; ++g) units[g] = round_weights(weights + g * stride, scales, first[g], end[g], integers[g]);
    const Index acc_stride = (d + 63) / 64 * 64;
    bool fresh = true;
    for_each_run(run, tile + from, tile + to, [&](const StoredRun& at, Index position, Index n) {
      const Index row = position - at.first;
      const std::int8_t* values = static_cast<const std::int8_t*>(at.values) + row * d;
      value_sums<G>(values, n, d, integers, position - tile, more, acc_stride, fresh,
                    [&](Index column, Index count) { return fetch_with_values(job.fetching, at, row, n, d, column, count); });
      fresh = false;
    });
    const Index out_stride = attention_detail::padded(d);
    for (unsigned g = 0; g < G; ++g) {
      const Lanes unit = broadcast(units[g]);
      const float* from_sums = more + g * acc_stride;
      float* out = sums + g * out_stride;
      for (Index c = 0; c < d; c += width) store(out + c, fma(to_float(from_sums + c), unit, load(out + c)));
    }
  }

 private:
  /// Below this a largest magnitude cannot be divided by.
  static constexpr float smallest = 2e-34F;

  /// Weights times scales as integers; returns what one of them stands for.
  static float round_weights(const float* weights, const float* scales, Index first, Index end, Weights& integers) {
    alignas(64) float numbers[attention_detail::score_stride] = {};
    if (first >= end) {
      put_weights(numbers, integers);
      return 0.0F;
    }
    const Index n = (end + width - 1) / width * width;
    for (Index i = first / width * width; i < n; i += width) store(numbers + i, multiply(load(weights + i), load(scales + i)));
    for (Index i = first / width * width; i < first; ++i) numbers[i] = 0.0F;
    for (Index i = end; i < n; ++i) numbers[i] = 0.0F;
    Lanes highest = zero();
    Lanes zeros = zero();
    for (Index i = 0; i < n; i += width) {
      highest = maximum(load(numbers + i), highest);
      zeros = fma(load(numbers + i), zero(), zeros);
    }
    const float largest = horizontal_maximum(highest);
    const float none = horizontal_sum(zeros);
    const bool usable = none == 0.0F && largest > smallest;
    const Lanes factor = broadcast(usable ? 32767.0F / largest : 0.0F);
    for (Index i = 0; i < n; i += width) store(numbers + i, usable ? multiply(load(numbers + i), factor) : zero());
    put_weights(numbers, integers);
    return none == 0.0F ? (usable ? largest / 32767.0F : 0.0F) : none;
  }
};

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
