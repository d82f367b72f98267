// SPDX-License-Identifier: Apache-2.0
// What attention reads and writes: a view of stored keys and values, strided float rows, and the options of a call.
//
//     static_assert(tinyllm::Attendable<tinyllm::KVView<Eigen::half>>);
//     tinyllm::attend(view, q, out, workspace, {.window = 4096});
//
// Units: positions count keys of the view; strides count floats. Rows are borrowed for the length of a call.
#pragma once

#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace tinyllm {

/// The type that a view's keys and values are stored in.
template <class View>
using StoredType = std::remove_cvref_t<decltype(*std::declval<const View&>().segment(0, 0, 0).keys)>;

/// A view that attention can read: for (batch, kv head) a list of segments of rows, as KVView and every cache's view are.
/// The segments of a head hold `rows()` positions together, each row's `d_head()` elements one after the other. Segments of
/// int8 rows have `key_scales` and `value_scales` as well, a float a row. A view whose values are narrower than its keys, or
/// whose rows do not lie one after the other, says so by `d_value()` and `row_stride()`; int8 rows are neither.
template <class View>
concept Attendable = requires(const View& view) {
  { view.rows() } -> std::convertible_to<Index>;
  { view.batch() } -> std::convertible_to<Index>;
  { view.n_heads() } -> std::convertible_to<Index>;
  { view.d_head() } -> std::convertible_to<Index>;
  { view.n_segments() } -> std::convertible_to<Index>;
  { view.segment(0, 0, 0).rows } -> std::convertible_to<Index>;
  { view.segment(0, 0, 0).values } -> std::convertible_to<const StoredType<View>*>;
}
&&StorageType<StoredType<View>>;

/// Float rows that are read: a matrix, or the columns of one from some column on.
/// Shape: [rows, cols], `stride` floats from row to row
struct ConstRows {
  const float* data;
  Index rows;
  Index cols;
  Index stride;

  ConstRows(const float* first, Index n_rows, Index n_cols, Index row_stride)
      : data(first), rows(n_rows), cols(n_cols), stride(row_stride) {}
  ConstRows(const RowMatrix& matrix) : ConstRows(matrix.data(), matrix.rows(), matrix.cols(), matrix.cols()) {}
};

/// Float rows that are written.
/// Shape: [rows, cols], `stride` floats from row to row
struct Rows {
  float* data;
  Index rows;
  Index cols;
  Index stride;

  Rows(float* first, Index n_rows, Index n_cols, Index row_stride)
      : data(first), rows(n_rows), cols(n_cols), stride(row_stride) {}
  Rows(RowMatrix& matrix) : Rows(matrix.data(), matrix.rows(), matrix.cols(), matrix.cols()) {}
};

/// What a call gives up for speed.
enum class Exactness : std::uint8_t {
  /// Results depend on how many queries come together, in the last bits (over int8 rows, in what rounding to 15 bits costs).
  rounding,
  /// The result of a query depends on the keys it sees and their positions alone: the same bits whether it came alone, in a
  /// chunk or with the whole prompt, over one segment or many, on any number of threads, at one level.
  /// Where attention multiplies bytes or pairs of bfloat16 (attend.hpp) this is all there is.
  /// Cost: decoding is as fast; chunks of many queries take up to 1.4 times as long at the best levels, longer at old ones.
  reproducible,
};

/// How a call of `attend` differs from plain causal attention.
struct AttendOptions {
  /// What q · k is multiplied by; 1 / sqrt(d) if absent.
  std::optional<float> scale = {};
  /// The position of the first query: query t sees keys up to query_offset + t. If absent the queries are the view's last.
  /// May be negative (queries that see nothing) or beyond the view (queries that see everything).
  std::optional<Index> query_offset = {};
  /// A query sees only this many newest keys, its own position included; all if absent.
  std::optional<Index> window = {};
  Exactness exactness = Exactness::rounding;
  /// If not null, receives ln Σ exp(score) of each query and head; -inf where no key is seen.
  /// Shape: [B·T, H_q]
  float* log_sum_exp = nullptr;
  /// The instruction set to use; the best one if absent.
  std::optional<CpuLevel> level = {};
};

inline namespace TINYLLM_BUILD {
namespace attention_detail {

/// The sizes of a call, checked.
struct AttendShape {
  Index batch;
  Index tokens;  // T
  Index n_kv_heads;
  Index group;          // query heads a kv head
  Index d;              // columns of a query and of a key
  Index d_value;        // columns of a value and of a result
  Index row;            // elements from one stored row to the next
  std::size_t element;  // bytes of a stored element
  Index rows;
  Index query_offset;
  Index window;
  Index n_heads() const { return n_kv_heads * group; }
};

/// Throws: std::invalid_argument if the shapes do not fit each other.
template <Attendable View>
AttendShape attend_shape(const View& view, const ConstRows& q, const Rows& out, const AttendOptions& options) {
  const Index d = view.d_head();
  Index d_value = d;
  Index row = d;
  if constexpr (requires { view.d_value(); }) d_value = view.d_value();
  if constexpr (requires { view.row_stride(); }) row = view.row_stride();
  const Index batch = view.batch();
  const Index heads = view.n_heads();
  if (d < 1 || batch < 1 || heads < 1 || q.cols < 1 || q.cols % (heads * d) != 0 || q.rows % batch != 0) {
    throw std::invalid_argument(detail::message("attend: queries of [", q.rows, ", ", q.cols, "] do not fit ", batch,
                                                " sequences of ", heads, " kv heads of width ", d));
  }
  if (std::same_as<StoredType<View>, std::int8_t> && (d_value != d || row != d)) {
    throw std::invalid_argument(detail::message("attend: int8 rows of width ", d, " with values of width ", d_value, ", ", row,
                                                " apart, not dense ones of one width"));
  }
  if (out.rows != q.rows || out.cols != q.cols / d * d_value || q.stride < q.cols || out.stride < out.cols) {
    throw std::invalid_argument(detail::message("attend: queries of [", q.rows, ", ", q.cols, "], rows ", q.stride,
                                                " apart, but out of [", out.rows, ", ", out.cols, "], rows ", out.stride,
                                                " apart"));
  }
  if (options.window && *options.window < 1) {
    throw std::invalid_argument(detail::message("attend: a window of ", *options.window, " keys"));
  }
  if (options.level && !runs(*options.level)) {
    throw std::invalid_argument(detail::message("attend: this machine does not run level ", name(*options.level)));
  }
  const Index tokens = q.rows / batch;
  constexpr Index far = std::numeric_limits<Index>::max() / 8;  // sums of a few positions cannot overflow
  const Index offset = std::clamp(options.query_offset.value_or(view.rows() - tokens), -far, far);
  return {.batch = batch,
          .tokens = tokens,
          .n_kv_heads = heads,
          .group = q.cols / (heads * d),
          .d = d,
          .d_value = d_value,
          .row = row,
          .element = sizeof(StoredType<View>),
          .rows = view.rows(),
          .query_offset = offset,
          .window = std::min(options.window.value_or(4 * far), 4 * far)};
}

}  // namespace attention_detail
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
