// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/attention/attend.hpp>
#include <tinyllm/attention/merge.hpp>
#include <tinyllm/attention/reference.hpp>

#include "segmented_view.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

using test_support::SegmentedView;
using tinyllm::AttendOptions;
using tinyllm::AttendWorkspace;
using tinyllm::CpuLevel;
using tinyllm::Exactness;
using tinyllm::Index;
using tinyllm::RowMatrix;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<CpuLevel> levels_here() {
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : tinyllm::cpu_levels) {
    if (tinyllm::runs(level)) levels.push_back(level);
  }
  return levels;
}

RowMatrix random_rows(Index rows, Index cols, std::mt19937& random, float scale = 1) {
  std::normal_distribution<float> values(0, scale);
  RowMatrix m(rows, cols);
  for (Index i = 0; i < m.size(); ++i) m.data()[i] = values(random);
  return m;
}

struct Case {
  Index d;
  Index group;
  Index kv_heads;
  Index batch;
  Index rows;
  Index tokens;
  Index segment_rows;
  AttendOptions options;
};

// Everything small and odd, and now and then long enough for several spans.
Case random_case(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<Index> from) { return from.begin()[random() % from.size()]; };
  Case c{.d = pick({1, 3, 8, 16, 24, 40, 64, 65, 96, 128, 130}),
         .group = pick({1, 2, 3, 4, 5, 7, 8, 16, 17}),
         .kv_heads = pick({1, 2}),
         .batch = pick({1, 1, 2}),
         .rows = pick({1, 2, 7, 15, 33, 64, 100, 513, 700, 1300}),
         .tokens = pick({1, 1, 1, 2, 3, 5, 9, 33, 70}),
         .segment_rows = pick({1, 5, 16, 64, 5000}),
         .options = {}};
  if (c.rows > 500) {
    c.kv_heads = 1;
    c.tokens = std::min<Index>(c.tokens, 3);
  }
  if (random() % 4 == 0) c.options.window = pick({1, 2, 10, 100, 600});
  if (random() % 4 == 0) c.options.query_offset = c.rows - c.tokens + pick({-5, -1, 1, 40, -2000, 2000});
  if (random() % 4 == 0) c.options.scale = 0.3F;
  if (random() % 3 == 0) c.options.exactness = Exactness::reproducible;
  return c;
}

double worst(const RowMatrix& a, const RowMatrix& b) {
  double error = 0;
  for (Index i = 0; i < a.size(); ++i) {
    const double one = std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]));
    error = std::isfinite(one) ? std::max(error, one) : 1e30;
  }
  return error;
}

// The same of log-sum-exp, -inf for a query that sees nothing.
double worst_lse(const RowMatrix& a, const RowMatrix& b) {
  double error = 0;
  for (Index i = 0; i < a.size(); ++i) {
    if (a.data()[i] == -infinity && b.data()[i] == -infinity) continue;
    const double one = std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]));
    error = std::isfinite(one) ? std::max(error, one) : 1e30;
  }
  return error;
}

struct Expected {
  RowMatrix out;
  RowMatrix lse;
};

// Rounding in float of sums of d products and of up to 1300 weighted values of size 1: a few 1e-6. The reference reads the
// same stored numbers, so no type needs more.
constexpr double tolerance = 2e-5;
// With int8 queries and weights are rounded to 15 bits of their largest, where bytes are not multiplied: errors of some 1e-4 in
// scores around 10 and of values around 3: 1e-4 of the result.
template <class Dtype>
constexpr double tolerance_of = std::is_same_v<Dtype, std::int8_t> ? 1e-3 : tolerance;

// Where the processor multiplies bytes, queries are rounded to 127 steps of the largest among 16 of every 64 columns, as the
// header says. The scores are exact otherwise.
RowMatrix rounded_to_bytes(const RowMatrix& q, Index d, std::optional<float> scale) {
  const float s = scale.value_or(1.0F / std::sqrt(static_cast<float>(d))) * 1.44269504088896341F;
  RowMatrix rounded(q.rows(), q.cols());
  for (Index first = 0; first < q.size(); first += d) {
    float largest[4] = {};
    const auto block = [](Index c) { return c % 64 / 16; };
    for (Index c = 0; c < d; ++c) largest[block(c)] = std::max(largest[block(c)], std::abs(q.data()[first + c] * s));
    for (Index c = 0; c < d; ++c) {
      const float step = largest[block(c)] / 127.0F;
      const float whole = std::nearbyint(q.data()[first + c] * s * (127.0F / largest[block(c)]));
      rounded.data()[first + c] = step == 0.0F ? 0.0F : whole * step / s;
    }
  }
  return rounded;
}
constexpr bool multiplies_bytes(CpuLevel level) { return level >= CpuLevel::avx512_vnni; }

template <class View>
double largest_value(const View& view) {
  double largest = 0;
  for (Index i = 0; i < view.n_segments(); ++i) {
    for (Index b = 0; b < view.batch(); ++b) {
      for (Index h = 0; h < view.n_heads(); ++h) {
        const auto segment = view.segment(b, h, i);
        for (Index j = 0; j < segment.rows * view.d_head(); ++j) {
          double scale = 1;
          if constexpr (std::is_same_v<tinyllm::StoredType<View>, std::int8_t>) {
            scale = static_cast<double>(segment.value_scales[j / view.d_head()]);
          }
          largest = std::max(largest, scale * std::abs(static_cast<double>(segment.values[j])));
        }
      }
    }
  }
  return largest;
}
// Weights are off by half of 1/255 of eight times the mean, so results by 8/510 of the largest value.
template <class View>
double tolerance_of_bytes(const View& view) {
  return 8.0 / 510.0 * largest_value(view);
}

// Where the processor multiplies pairs of bfloat16, queries of four heads and more to a kv head are rounded to them, and so are
// weights: off by 1/512 of themselves at most.
constexpr bool multiplies_pairs(CpuLevel level, Index group) { return level >= CpuLevel::avx512_bf16 && group >= 4; }
RowMatrix rounded_to_bfloat16(const RowMatrix& q) { return q.cast<Eigen::bfloat16>().cast<float>(); }
template <class View>
double tolerance_of_pairs(const View& view) {
  return largest_value(view) / 512.0;
}

// What a level makes of queries, and by how much its results may differ from those of such queries.
template <class Dtype>
struct Rounding {
  RowMatrix queries;
  double allowed;
};
template <class Dtype, class View>
Rounding<Dtype> rounding_of(CpuLevel level, const View& view, const RowMatrix& q, const AttendOptions& options) {
  if constexpr (std::is_same_v<Dtype, std::int8_t>) {
    if (multiplies_bytes(level)) return {rounded_to_bytes(q, view.d_head(), options.scale), tolerance_of_bytes(view)};
  }
  if constexpr (std::is_same_v<Dtype, Eigen::bfloat16>) {
    if (multiplies_pairs(level, q.cols() / (view.n_heads() * view.d_head()))) {
      return {rounded_to_bfloat16(q), tolerance_of_pairs(view)};
    }
  }
  return {q, 0};
}

template <class Dtype, class E>
void check_random(unsigned seed, int n_cases, E& executor) {
  std::mt19937 random(seed);
  AttendWorkspace workspace;
  for (int i = 0; i < n_cases; ++i) {
    Case c = random_case(random);
    const SegmentedView<Dtype> view({c.batch, c.kv_heads, c.rows, c.d, c.segment_rows}, random);
    const RowMatrix q = random_rows(c.batch * c.tokens, c.kv_heads * c.group * c.d, random);
    RowMatrix lse(q.rows(), c.kv_heads * c.group);
    Expected expected{RowMatrix(q.rows(), q.cols()), RowMatrix(lse.rows(), lse.cols())};
    RowMatrix queries;  // what `expected` is of
    for (const CpuLevel level : levels_here()) {
      CAPTURE(name(level));
      CAPTURE(i);
      CAPTURE(c.d);
      CAPTURE(c.group);
      CAPTURE(c.rows);
      CAPTURE(c.tokens);
      const Rounding<Dtype> rounding = rounding_of<Dtype>(level, view, q, c.options);
      if (queries.size() == 0 || queries != rounding.queries) {
        queries = rounding.queries;
        c.options.log_sum_exp = expected.lse.data();
        tinyllm::reference_attention(view, queries, expected.out, c.options);
      }
      c.options.log_sum_exp = lse.data();
      c.options.level = level;
      RowMatrix out = RowMatrix::Constant(q.rows(), q.cols(), 77.0F);
      tinyllm::attend(view, q, out, workspace, c.options, executor);
      CHECK(worst(out, expected.out) < tolerance_of<Dtype> + rounding.allowed);
      CHECK(worst_lse(lse, expected.lse) < (std::is_same_v<Dtype, std::int8_t> ? 1e-3 : 1e-4));
    }
  }
}

}  // namespace

TEST_CASE("attend: equals the reference over random shapes, in every type, at every level") {
  tinyllm::SerialExecutor serial;
  check_random<float>(1, 40, serial);
  check_random<Eigen::half>(2, 40, serial);
  check_random<Eigen::bfloat16>(3, 40, serial);
  check_random<std::int8_t>(7, 40, serial);
}

TEST_CASE("attend: equals the reference on several threads") {
  tinyllm::ThreadPool pool(3);
  check_random<float>(4, 15, pool);
  check_random<Eigen::half>(5, 15, pool);
  check_random<Eigen::bfloat16>(6, 15, pool);
  check_random<std::int8_t>(8, 15, pool);
}

namespace {

template <class Dtype>
void check_extremes() {
  for (const CpuLevel level : levels_here()) {
    for (const Exactness exactness : {Exactness::rounding, Exactness::reproducible}) {
      for (const Index tokens : {1, 10}) {
        CAPTURE(name(level));
        CAPTURE(tokens);
        AttendWorkspace workspace;
        const AttendOptions options{.scale = 1.0F, .exactness = exactness, .level = level};
        std::mt19937 random(1);
        // All scores -1e5: a softmax like any other.
        SegmentedView<Dtype> view({1, 1, 100, 16, 5000}, random);
        view.fill_keys([](Index, Index c) { return c == 0 ? -1.0F : 0.0F; });
        RowMatrix q = RowMatrix::Zero(tokens, 16);
        q.col(0).setConstant(1e5F);
        RowMatrix out(tokens, 16);
        RowMatrix expected(tokens, 16);
        tinyllm::attend(view, q, out, workspace, options);
        tinyllm::reference_attention(view, q, expected, options);
        CHECK(worst(out, expected) < tolerance_of<Dtype>);
        // q·k = 3e5 for every key, values of 6e4, 40,000 keys: sums far beyond half.
        SegmentedView<Dtype> large({1, 1, 40000, 16, 50000}, random);
        large.fill_keys([](Index, Index) { return 250.0F; });
        large.fill_values([](Index row, Index c) { return row % 2 == 0 ? 6e4F : 5e4F + static_cast<float>(c) * 100.0F; });
        q.setConstant(75.0F);
        tinyllm::attend(large, q, out, workspace, options);
        RowMatrix last(1, 16);
        tinyllm::reference_attention(large, RowMatrix(q.bottomRows(1)), last, options);
        for (Index c = 0; c < 16; ++c) {
          CHECK(std::abs(out(tokens - 1, c) / last(0, c) - 1.0F) < 1e-3F);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("attend: extreme scores and values stay finite and right") {
  check_extremes<float>();
  check_extremes<Eigen::half>();
  check_extremes<Eigen::bfloat16>();
  check_extremes<std::int8_t>();
}

TEST_CASE_TEMPLATE("attend: a key that is masked is as if it were not there, whatever it holds", Dtype, float, Eigen::half,
                   Eigen::bfloat16, std::int8_t) {
  for (const CpuLevel level : levels_here()) {
    for (const Exactness exactness : {Exactness::rounding, Exactness::reproducible}) {
      for (const Index group : {3, 5}) {
        constexpr Index d = 40;
        CAPTURE(name(level));
        CAPTURE(group);
        std::mt19937 random(8);
        SegmentedView<Dtype> view({1, 1, 40, d, 5000}, random);
        const RowMatrix q = random_rows(20, group * d, random);
        AttendWorkspace workspace;
        RowMatrix expected(20, group * d);
        AttendOptions options{.window = 12, .exactness = exactness, .level = level};
        tinyllm::attend(view, q, expected, workspace, options);
        for (const float poison : {infinity, std::nanf("")}) {
          SegmentedView<Dtype> poisoned = view;
          // Query 10 is at position 30 and sees 19 .. 30.
          poisoned.set_row(31, poison);
          poisoned.set_row(18, poison);
          RowMatrix out(20, group * d);
          tinyllm::attend(poisoned, q, out, workspace, options);
          CHECK(out.row(10) == expected.row(10));
          CHECK_FALSE(out.row(11).allFinite());
          CHECK_FALSE(out.row(9).allFinite());
        }
      }
    }
  }
}

TEST_CASE("attend: bfloat16 values under weights that are bfloat16 numbers are exact to float's rounding") {
  for (const Index d : {24, 64, 96, 130}) {
    for (const Index rows : {1, 2, 31, 400}) {
      for (const Index segment_rows : {3, 5000}) {
        std::mt19937 random(4);
        const SegmentedView<Eigen::bfloat16> view({1, 2, rows, d, segment_rows}, random);
        const RowMatrix q = RowMatrix::Zero(7, 2 * 6 * d);  // so that all weights are 1
        RowMatrix expected(7, q.cols());
        RowMatrix out(7, q.cols());
        const AttendOptions window{.window = 100};
        tinyllm::reference_attention(view, q, expected, window);
        for (const CpuLevel level : levels_here()) {
          CAPTURE(name(level));
          CAPTURE(d);
          CAPTURE(rows);
          AttendWorkspace workspace;
          tinyllm::attend(view, q, out, workspace, {.window = 100, .level = level});
          CHECK(worst(out, expected) < tolerance);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("attend: a query that sees nothing gives zeros, and a query that is no number gives none", Dtype, float,
                   Eigen::half, Eigen::bfloat16) {
  std::mt19937 random(8);
  for (const CpuLevel level : levels_here()) {
    for (const Index tokens : {2, 40}) {
      const SegmentedView<Dtype> view({1, 2, 50, 24, 7}, random);
      RowMatrix q = random_rows(tokens, 8 * 24, random);
      q.row(1).setConstant(std::bit_cast<float>(std::uint32_t{0x7fc00001}));  // one of many
      RowMatrix out = RowMatrix::Constant(tokens, q.cols(), 5.0F);
      RowMatrix lse(tokens, 8);
      AttendWorkspace workspace;
      tinyllm::attend(view, q, out, workspace, {.query_offset = -1, .log_sum_exp = lse.data(), .level = level});
      CHECK((out.row(0).array() == 0.0F).all());
      CHECK(lse(0, 0) == -infinity);
      CHECK(out.row(1).array().isNaN().all());
    }
  }
}

TEST_CASE("attend: strided queries and results, and nothing else, are touched") {
  std::mt19937 random(8);
  const SegmentedView<float> view({2, 1, 30, 16, 7}, random);
  RowMatrix wide = random_rows(6, 50, random);
  RowMatrix out = RowMatrix::Constant(6, 60, 9.0F);
  RowMatrix expected(6, 32);
  AttendWorkspace workspace;
  tinyllm::attend(view, {wide.data() + 3, 6, 32, 50}, {out.data() + 5, 6, 32, 60}, workspace);
  tinyllm::reference_attention(view, RowMatrix(wide.middleCols(3, 32)), expected);
  CHECK(worst(out.middleCols(5, 32), expected) < tolerance);
  CHECK((out.leftCols(5).array() == 9.0F).all());
  CHECK((out.rightCols(23).array() == 9.0F).all());
}

namespace {

// Rows [0, n) of a view.
template <class Dtype>
class Shorter {
 public:
  Shorter(const SegmentedView<Dtype>& view, Index rows) : view_(view), rows_(rows) {}
  Index rows() const { return rows_; }
  Index batch() const { return view_.batch(); }
  Index n_heads() const { return view_.n_heads(); }
  Index d_head() const { return view_.d_head(); }
  Index n_segments() const { return view_.n_segments(); }
  tinyllm::KVSegment<Dtype> segment(Index b, Index h, Index i) const {
    tinyllm::KVSegment<Dtype> s = view_.segment(b, h, i);
    s.rows = std::clamp<Index>(rows_ - i * view_.segment_rows(), 0, s.rows);
    return s;
  }

 private:
  const SegmentedView<Dtype>& view_;
  Index rows_;
};

template <class Dtype>
void check_reproducible(Index d, Index group, std::optional<Index> window) {
  constexpr Index rows = 1100;
  for (const CpuLevel level : levels_here()) {
    CAPTURE(name(level));
    CAPTURE(d);
    std::mt19937 random(12);
    const SegmentedView<Dtype> whole({1, 2, rows, d, 5000}, random);
    const SegmentedView<Dtype> paged = whole.cut(16);
    const SegmentedView<Dtype> odd = whole.cut(13);
    const RowMatrix q = random_rows(rows, 2 * group * d, random);
    AttendWorkspace workspace;
    const AttendOptions options{.window = window, .exactness = Exactness::reproducible, .level = level};
    RowMatrix expected(rows, q.cols());
    tinyllm::attend(whole, q, expected, workspace, options);
    tinyllm::ThreadPool pool(2);
    RowMatrix out(rows, q.cols());
    tinyllm::attend(paged, q, out, workspace, options, pool);
    CHECK(out == expected);
    tinyllm::attend(odd, q, out, workspace, options);
    CHECK(out == expected);
    // Chunks, then single steps, over the cache as it was then.
    out.setZero();
    for (Index first = 0; first < rows;) {
      const Index n = first < 900 ? std::min<Index>(rows - first, 150) : first < 1060 ? 7 : 1;
      const Index taken = std::min(n, rows - first);
      const Shorter<Dtype> past(first % 2 == 0 ? whole : paged, first + taken);
      const tinyllm::ConstRows chunk(q.data() + first * q.cols(), taken, q.cols(), q.cols());
      const tinyllm::Rows result(out.data() + first * q.cols(), taken, q.cols(), q.cols());
      if (first % 3 == 0) {
        tinyllm::attend(past, chunk, result, workspace, options, pool);
      } else {
        tinyllm::attend(past, chunk, result, workspace, options);
      }
      first += taken;
    }
    CHECK(out == expected);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("attend: a sum that is zero has the same sign however the keys are cut", Dtype, float, Eigen::half,
                   Eigen::bfloat16) {
  constexpr Index d = 40;
  for (const CpuLevel level : levels_here()) {
    CAPTURE(name(level));
    std::mt19937 random(1);
    SegmentedView<Dtype> whole({1, 1, 2, d, 2}, random);
    // One weight is 2^-126, and half of that counts as nothing where bfloat16 is multiplied.
    whole.fill_keys([](Index row, Index c) { return row == 0 && c == 0 ? -126.0F : 0.0F; });
    whole.fill_values([](Index row, Index) { return row == 0 ? -0.5F : -0.0F; });
    RowMatrix q = RowMatrix::Zero(1, 4 * d);
    for (Index head = 0; head < 4; ++head) q(0, head * d) = 1;
    RowMatrix expected(1, q.cols());
    RowMatrix out(1, q.cols());
    AttendWorkspace workspace;
    const AttendOptions options{.scale = 0.693147180559945F, .exactness = Exactness::reproducible, .level = level};
    tinyllm::attend(whole, q, expected, workspace, options);
    tinyllm::attend(whole.cut(1), q, out, workspace, options);
    for (Index c = 0; c < q.cols(); ++c) {
      CHECK(std::bit_cast<std::uint32_t>(out(0, c)) == std::bit_cast<std::uint32_t>(expected(0, c)));
    }
  }
}

TEST_CASE("attend: reproducible results are bit-identical warm and cold, chunked or whole, paged or not, on 1 or 2 threads") {
  check_reproducible<float>(64, 1, {});
  check_reproducible<Eigen::half>(32, 3, {});
  check_reproducible<Eigen::half>(20, 5, 700);
  check_reproducible<Eigen::bfloat16>(32, 2, {});
  check_reproducible<Eigen::bfloat16>(36, 1, 100);
  check_reproducible<Eigen::bfloat16>(72, 4, {});
  check_reproducible<Eigen::bfloat16>(36, 7, 101);
  check_reproducible<std::int8_t>(64, 3, {});
  check_reproducible<std::int8_t>(36, 2, 100);
}

namespace {

// Segments of two rows whose elements lie one after the other, and whose scales lie each in an array of its own.
struct ScalesApart {
  static constexpr Index n = 9;
  static constexpr Index d = 16;
  std::vector<std::int8_t> keys = std::vector<std::int8_t>(2 * n * d);
  std::vector<std::int8_t> values = std::vector<std::int8_t>(2 * n * d);
  std::vector<std::vector<float>> key_scales;
  std::vector<std::vector<float>> value_scales;
  bool keys_apart;
  bool values_apart;

  ScalesApart(std::mt19937& random, bool k_apart, bool v_apart) : keys_apart(k_apart), values_apart(v_apart) {
    for (std::vector<std::int8_t>* elements : {&keys, &values}) {
      for (std::int8_t& x : *elements) x = static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127);
    }
    for (auto* scales : {&key_scales, &value_scales}) {
      const bool apart = scales == &key_scales ? keys_apart : values_apart;
      for (Index i = 0; i < (apart ? n : 1); ++i) {
        std::vector<float> of_segment(apart ? 2 : static_cast<std::size_t>(2 * n));
        for (float& scale : of_segment) scale = static_cast<float>(1 + random() % 30) / 1000;
        scales->push_back(of_segment);
      }
    }
  }
  Index rows() const { return 2 * n; }
  Index batch() const { return 1; }
  Index n_heads() const { return 1; }
  Index d_head() const { return d; }
  Index n_segments() const { return n; }
  tinyllm::KVSegment<std::int8_t> segment(Index, Index, Index i) const {
    const auto of = [i](const std::vector<std::vector<float>>& scales, bool apart) {
      return apart ? scales[static_cast<std::size_t>(i)].data() : scales[0].data() + 2 * i;
    };
    return {keys.data() + 2 * i * d, values.data() + 2 * i * d, 2, of(key_scales, keys_apart), of(value_scales, values_apart)};
  }
};

// Rows of `d` elements, `row` apart, of which a value takes `d_value`.
template <class Dtype>
struct Strided {
  Index d;
  Index value;
  Index row;
  std::vector<Dtype> elements = std::vector<Dtype>(300, Dtype(1));
  std::vector<float> scales = std::vector<float>(3, 1.0F);
  Index rows() const { return 3; }
  Index batch() const { return 1; }
  Index n_heads() const { return 1; }
  Index d_head() const { return d; }
  Index d_value() const { return value; }
  Index row_stride() const { return row; }
  Index n_segments() const { return 1; }
  tinyllm::KVSegment<Dtype> segment(Index, Index, Index) const {
    return {elements.data(), elements.data(), 3, scales.data(), scales.data()};
  }
};

}  // namespace

TEST_CASE("attend: int8 segments whose rows lie together and whose scales do not are read each with its own") {
  for (const int apart : {0, 1, 2, 3}) {
    CAPTURE(apart);
    std::mt19937 random(5);
    const ScalesApart view(random, apart % 2 == 1, apart / 2 == 1);
    AttendWorkspace workspace;
    for (const Index tokens : {1, 10}) {
      const RowMatrix q = rounded_to_bytes(random_rows(tokens, ScalesApart::d, random), ScalesApart::d, {});
      RowMatrix expected(tokens, ScalesApart::d);
      tinyllm::reference_attention(view, q, expected);
      for (const CpuLevel level : levels_here()) {
        CAPTURE(name(level));
        RowMatrix out(tokens, ScalesApart::d);
        tinyllm::attend(view, q, out, workspace, {.level = level});
        const double of_bytes = multiplies_bytes(level) ? tolerance_of_bytes(view) : 0.0;
        CHECK(worst(out, expected) < tolerance_of<std::int8_t> + of_bytes);
      }
    }
  }
}

TEST_CASE("attend: an int8 row whose scale is infinite is as if it were not there for queries that do not see it") {
  Strided<std::int8_t> view{16, 16, 16};  // all keys and values 1
  view.scales[2] = infinity;
  for (const CpuLevel level : levels_here()) {
    CAPTURE(name(level));
    AttendWorkspace workspace;
    RowMatrix out(3, 16);
    tinyllm::attend(view, RowMatrix::Ones(3, 16).eval(), out, workspace, {.level = level});
    CHECK(worst(out.topRows(2), RowMatrix::Ones(2, 16)) < 1e-3);
    CHECK_FALSE(out.row(2).allFinite());
  }
}

namespace {

double root_mean_square(const RowMatrix& a, const RowMatrix& b) {
  return std::sqrt((a.cast<double>() - b.cast<double>()).squaredNorm() / static_cast<double>(a.size()));
}

// How many times what storing the rows has cost a level's products cost on top of it.
template <class Dtype>
double cost_of_products(Index d, float scale, CpuLevel level) {
  constexpr Index rows = 1000;
  std::mt19937 random(9);
  std::mt19937 same(9);
  const SegmentedView<Dtype> stored({1, 1, rows, d, 5000}, random);
  const SegmentedView<float> exact({1, 1, rows, d, 5000}, same);
  const RowMatrix q = random_rows(1, 16 * d, random);
  AttendWorkspace workspace;
  const AttendOptions options{.scale = scale / std::sqrt(static_cast<float>(d)), .level = level};
  RowMatrix out(1, q.cols());
  RowMatrix of_stored(1, q.cols());
  RowMatrix of_exact(1, q.cols());
  tinyllm::attend(stored, q, out, workspace, options);
  tinyllm::reference_attention(stored, q, of_stored, options);
  tinyllm::reference_attention(exact, q, of_exact, options);
  return root_mean_square(out, of_stored) / root_mean_square(of_stored, of_exact);
}

}  // namespace

TEST_CASE("attend: products of rounded queries and weights cost about as much as storing rounded rows has, others nothing") {
  for (const CpuLevel level : levels_here()) {
    for (const Index d : {64, 128}) {
      for (const float scale : {0.3F, 1.0F, 3.0F, 10.0F}) {  // from a flat softmax to one of few keys
        CAPTURE(name(level));
        CAPTURE(d);
        CAPTURE(scale);
        CHECK(cost_of_products<std::int8_t>(d, scale, level) < (multiplies_bytes(level) ? 1.5 : 0.01));
        CHECK(cost_of_products<Eigen::bfloat16>(d, scale, level) < (multiplies_pairs(level, 16) ? 1.5 : 0.01));
      }
    }
  }
}

TEST_CASE("attend: int8 values of a few keys that outweigh all others count in full") {
  constexpr Index d = 32;
  for (Index heavy = 1; heavy <= 17; ++heavy) {
    CAPTURE(heavy);
    std::mt19937 random(static_cast<unsigned>(heavy));
    SegmentedView<std::int8_t> view({1, 1, 128, d, 5000}, random);
    view.fill_keys([&](Index row, Index c) { return c == 0 && row % 7 == 3 && row / 7 < heavy ? 1.0F : 0.0F; });
    RowMatrix q = RowMatrix::Zero(1, d);
    q(0, 0) = 6;  // e^6 times the weight of the others
    AttendWorkspace workspace;
    RowMatrix expected(1, d);
    tinyllm::reference_attention(view, q, expected, {.scale = 1.0F});
    for (const CpuLevel level : levels_here()) {
      CAPTURE(name(level));
      RowMatrix out(1, d);
      tinyllm::attend(view, q, out, workspace, {.scale = 1.0F, .level = level});
      const double of_bytes = multiplies_bytes(level) ? tolerance_of_bytes(view) : 0.0;
      CHECK(worst(out, expected) < tolerance_of<std::int8_t> + of_bytes);
    }
  }
}

TEST_CASE("attend: int8 rows must be dense and as wide as the values") {
  AttendWorkspace workspace;
  const RowMatrix q = RowMatrix::Ones(1, 16);
  RowMatrix out(1, 16);
  RowMatrix narrow(1, 8);
  CHECK_NOTHROW(tinyllm::attend(Strided<std::int8_t>{16, 16, 16}, q, out, workspace));
  CHECK_THROWS_AS(tinyllm::attend(Strided<std::int8_t>{16, 16, 20}, q, out, workspace), std::invalid_argument);
  CHECK_THROWS_AS(tinyllm::attend(Strided<std::int8_t>{16, 8, 16}, q, narrow, workspace), std::invalid_argument);
  CHECK_THROWS_AS(tinyllm::reference_attention(Strided<std::int8_t>{16, 16, 20}, q, out), std::invalid_argument);
  CHECK_NOTHROW(tinyllm::attend(Strided<float>{16, 16, 20}, q, out, workspace));
  CHECK_NOTHROW(tinyllm::attend(Strided<float>{16, 8, 20}, q, narrow, workspace));
  CHECK((narrow.array() == 1.0F).all());
}

TEST_CASE("attend: shapes that do not fit are refused") {
  std::mt19937 random(1);
  const SegmentedView<float> view({2, 2, 3, 8, 16}, random);
  AttendWorkspace workspace;
  RowMatrix out(2, 32);
  const RowMatrix q = RowMatrix::Zero(2, 32);
  CHECK_NOTHROW(tinyllm::attend(view, q, out, workspace));
  CHECK_THROWS_AS(tinyllm::attend(view, RowMatrix::Zero(2, 24).eval(), out, workspace), std::invalid_argument);
  CHECK_THROWS_AS(tinyllm::attend(view, RowMatrix::Zero(3, 32).eval(), out, workspace), std::invalid_argument);
  CHECK_THROWS_AS(tinyllm::attend(view, RowMatrix::Zero(4, 32).eval(), out, workspace), std::invalid_argument);
  CHECK_THROWS_AS(tinyllm::attend(view, q, out, workspace, {.window = 0}), std::invalid_argument);
  for (const CpuLevel level : tinyllm::cpu_levels) {
    if (tinyllm::runs(level)) continue;
    CHECK_THROWS_AS(tinyllm::attend(view, q, out, workspace, {.level = level}), std::invalid_argument);
  }
}

TEST_CASE("attend: an empty view and no queries are no error") {
  std::mt19937 random(1);
  const SegmentedView<float> empty({1, 1, 0, 8, 16}, random);
  AttendWorkspace workspace;
  RowMatrix out = RowMatrix::Ones(20, 8);
  tinyllm::attend(empty, RowMatrix::Ones(20, 8).eval(), out, workspace);
  CHECK((out.array() == 0.0F).all());
  out.setOnes();
  tinyllm::attend(empty, RowMatrix::Ones(20, 8).eval(), out, workspace, {.exactness = Exactness::reproducible});
  CHECK((out.array() == 0.0F).all());
  RowMatrix none(0, 8);
  tinyllm::attend(empty, RowMatrix(0, 8), none, workspace);
}

TEST_CASE("attend: the workspace grows to what calls need and no further") {
  tinyllm::ThreadPool pool(2);
  std::mt19937 random(1);
  const SegmentedView<Eigen::half> view({1, 3, 1500, 64, 100}, random);
  const RowMatrix q = random_rows(1, 9 * 64, random);
  RowMatrix out(1, 9 * 64);
  AttendWorkspace workspace;
  tinyllm::attend(view, q, out, workspace, {}, pool);
  const std::size_t bytes = workspace.nbytes();
  for (int i = 0; i < 3; ++i) tinyllm::attend(view, q, out, workspace, {}, pool);
  CHECK(workspace.nbytes() == bytes);
}

TEST_CASE("merge: parts of the keys merge into the whole, empty parts change nothing") {
  std::mt19937 random(1);
  const SegmentedView<float> view({1, 1, 90, 16, 30}, random);
  const RowMatrix q = random_rows(1, 16, random);
  AttendWorkspace workspace;
  RowMatrix expected(1, 16);
  float expected_lse = 0;
  tinyllm::attend(view, q, expected, workspace, {.log_sum_exp = &expected_lse});
  RowMatrix parts(5, 16);
  float lse[5];
  // Keys 0..29, 30..59, 60..89 by windows that end there; then two parts without keys.
  for (Index i = 0; i < 5; ++i) {
    tinyllm::attend(view, q, {parts.data() + i * 16, 1, 16, 16}, workspace,
                    {.query_offset = i < 3 ? i * 30 + 29 : -1, .window = 30, .log_sum_exp = lse + i});
  }
  for (const std::vector<Index>& order : {std::vector<Index>{0, 1, 2}, {3, 0, 4, 1, 2}, {2, 1, 0, 3}, {3, 4, 2, 0, 1}}) {
    RowMatrix out = parts.row(order[0]);
    float total = lse[order[0]];
    for (std::size_t i = 1; i < order.size(); ++i) {
      const float* more = parts.data() + order[i] * 16;
      tinyllm::merge_by_log_sum_exp({out.data(), 16}, total, {more, 16}, lse[order[i]]);
    }
    CHECK(worst(out, expected) < tolerance);
    CHECK(std::abs(total - expected_lse) < 1e-5F);
  }
  RowMatrix nothing = parts.row(3);
  float none = lse[3];
  tinyllm::merge_by_log_sum_exp({nothing.data(), 16}, none, {parts.data() + 64, 16}, lse[4]);
  CHECK(none == -infinity);
  CHECK((nothing.array() == 0.0F).all());
  float huge = 1e6F;
  RowMatrix a = RowMatrix::Ones(1, 16);
  const RowMatrix b = RowMatrix::Constant(1, 16, 3.0F);
  tinyllm::merge_by_log_sum_exp({a.data(), 16}, huge, {b.data(), 16}, 1e6F);
  CHECK(a(0, 0) == 2.0F);
  std::vector<float> three(3);
  CHECK_THROWS_AS(tinyllm::merge_by_log_sum_exp(three, huge, {b.data(), 16}, 1.0F), std::invalid_argument);
}
