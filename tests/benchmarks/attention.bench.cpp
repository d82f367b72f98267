// SPDX-License-Identifier: Apache-2.0
// How fast one decode step's attention reads keys and values, beside how fast this machine reads memory in the same run.
//
//     attention_bench [--dtype float|half|bfloat16] [--level NAME] [--s N] [--threads N] [--repeat N] [--no-eigen] [--prefill]
//
// A working set of 512 MB is walked layer after layer, as decoding does; reading it plainly and attending to it take turns,
// and the best of each counts. GB are 10^9 bytes.
#include <tinyllm/attention/attend.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/executor.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using tinyllm::CpuLevel;
using tinyllm::Index;
using tinyllm::RowMatrix;

namespace {

constexpr Index working_set = Index{512} << 20;

struct Shape {
  const char* name;
  Index n_kv_heads;
  Index group;
  Index d;
};
constexpr Shape shapes[] = {{"9/3x64", 3, 3, 64}, {"32/8x128", 8, 4, 128}};

struct Options {
  std::string dtype;
  std::string level;
  Index s = 0;
  Index threads = 0;
  int repeat = 5;
  bool eigen = true;
  bool prefill = false;
};

template <class F>
double seconds(F f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Keys and values of many layers, every page written.
template <class Dtype>
class Layers {
 public:
  Layers(const Shape& shape, Index s)
      : shape_(shape),
        s_(s),
        half_(shape.n_kv_heads * s * shape.d),
        n_(std::max<Index>(working_set / (2 * half_ * Index{sizeof(Dtype)}), 1)),
        storage_(2 * half_ * n_) {
    std::mt19937 random(1);
    std::normal_distribution<float> values;
    constexpr Index pattern = 65536 + 32;
    for (Index i = 0; i < std::min(pattern, 2 * half_ * n_); ++i) storage_.data()[i] = Dtype(values(random));
    for (Index i = pattern; i < 2 * half_ * n_; i += pattern) {
      std::memcpy(storage_.data() + i, storage_.data(),
                  static_cast<std::size_t>(std::min(pattern, 2 * half_ * n_ - i)) * sizeof(Dtype));
    }
  }

  Index count() const { return n_; }
  double bytes() const { return static_cast<double>(2 * half_ * n_) * static_cast<double>(sizeof(Dtype)); }
  tinyllm::KVView<Dtype> view(Index layer) const {
    const Dtype* keys = storage_.data() + 2 * layer * half_;
    return {keys, keys + half_, s_, {1, shape_.n_kv_heads, shape_.d, half_, s_ * shape_.d}};
  }

  // Reads every byte once, in order, each thread its share, and fetches ahead as the kernels do: what memory can give.
  void read(tinyllm::ThreadPool& pool) const {
    using Vector = std::uint64_t __attribute__((vector_size(16)));
    const auto* first = reinterpret_cast<const Vector*>(storage_.data());
    const Index n = 2 * half_ * n_ * Index{sizeof(Dtype)} / 16 / pool.concurrency();
    pool.run(pool.concurrency(), [&](Index thread) {
      Vector sum[4] = {};
      const Vector* p = first + thread * n;
      for (Index i = 0; i + 4 <= n; i += 4) {
        __builtin_prefetch(p + i + 128);
        for (Index j = 0; j < 4; ++j) sum[j] ^= p[i + j];
      }
      sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
      sink_.store(sum[0][0] ^ sum[0][1], std::memory_order_relaxed);
    });
  }

 private:
  Shape shape_;
  Index s_;
  Index half_;
  Index n_;
  tinyllm::AlignedBuffer<Dtype> storage_;
  mutable std::atomic<std::uint64_t> sink_{0};
};

// What one writes with Eigen alone: a head at a time, the stored matrix cast where it is not float.
template <class Dtype>
void attend_with_eigen(const tinyllm::KVView<Dtype>& view, const RowMatrix& q, RowMatrix& out, Index group) {
  const Index d = view.d_head();
  for (Index h = 0; h < view.n_heads(); ++h) {
    const Eigen::Map<const RowMatrix> queries(q.data() + h * group * d, group, d);
    Eigen::Map<RowMatrix> results(out.data() + h * group * d, group, d);
    RowMatrix scores = queries * view.keys(0, h).template cast<float>().transpose() / std::sqrt(static_cast<float>(d));
    scores.colwise() -= scores.rowwise().maxCoeff().eval();
    scores = scores.array().exp();
    scores.array().colwise() /= scores.rowwise().sum().eval().array();
    results.noalias() = scores * view.values(0, h).template cast<float>();
  }
}

template <class Dtype>
void decode(const char* dtype, const Shape& shape, Index s, const Options& options) {
  const Layers<Dtype> layers(shape, s);
  const RowMatrix q = RowMatrix::Random(1, shape.n_kv_heads * shape.group * shape.d);
  RowMatrix out(q.rows(), q.cols());
  tinyllm::AttendWorkspace workspace;
  for (const Index threads : {1, 2}) {
    if (options.threads != 0 && options.threads != threads) continue;
    tinyllm::ThreadPool pool(threads);
    std::vector<CpuLevel> levels;
    for (const CpuLevel level : tinyllm::cpu_levels) {
      if (tinyllm::runs(level) && (options.level.empty() || options.level == name(level))) levels.push_back(level);
    }
    double read = 1e9;
    std::vector<double> best(levels.size(), 1e9);
    std::vector<double> share(levels.size(), 0.0);
    for (int i = 0; i < options.repeat; ++i) {
      for (std::size_t l = 0; l < levels.size(); ++l) {
        read = std::min(read, seconds([&] { layers.read(pool); }));
        best[l] = std::min(best[l], seconds([&] {
                             for (Index layer = 0; layer < layers.count(); ++layer) {
                               tinyllm::attend(layers.view(layer), q, out, workspace, {.level = levels[l]}, pool);
                             }
                           }));
      }
    }
    for (std::size_t l = 0; l < levels.size(); ++l) {
      std::printf("%-9s %-9s %6td %2td %-12s %6.2f GB/s  %5.1f %% of %.2f GB/s read\n", dtype, shape.name, s, threads,
                  name(levels[l]), layers.bytes() / best[l] / 1e9, 100 * read / best[l], layers.bytes() / read / 1e9);
    }
    if (options.eigen && threads == 1) {
      double eigen = 1e9;
      const Index few = std::min<Index>(layers.count(), 4);
      for (int i = 0; i < 2; ++i) {
        eigen = std::min(eigen, seconds([&] {
                           for (Index layer = 0; layer < few; ++layer)
                             attend_with_eigen(layers.view(layer), q, out, shape.group);
                         }));
      }
      std::printf("%-9s %-9s %6td %2td %-12s %6.2f GB/s\n", dtype, shape.name, s, threads, "plain Eigen",
                  layers.bytes() / eigen / 1e9 * static_cast<double>(few) / static_cast<double>(layers.count()));
    }
    std::fflush(stdout);
  }
}

// A whole prompt at once, in multiply-adds a second.
template <class Dtype>
void prefill(const char* dtype, const Shape& shape, Index s, const Options& options) {
  tinyllm::ThreadPool pool(1);
  const RowMatrix rows = RowMatrix::Random(s, shape.n_kv_heads * shape.d);
  std::vector<Dtype> stored(static_cast<std::size_t>(2 * rows.size()));
  for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = Dtype(rows.data()[i % static_cast<std::size_t>(rows.size())]);
  const Index half = rows.size();
  const tinyllm::KVView<Dtype> view(stored.data(), stored.data() + half, s, {1, shape.n_kv_heads, shape.d, half, s * shape.d});
  const RowMatrix q = RowMatrix::Random(s, shape.n_kv_heads * shape.group * shape.d);
  RowMatrix out(q.rows(), q.cols());
  tinyllm::AttendWorkspace workspace;
  const double products = 2.0 * static_cast<double>(s) * static_cast<double>(s + 1) / 2 * static_cast<double>(q.cols());
  for (const CpuLevel level : tinyllm::cpu_levels) {
    if (!tinyllm::runs(level) || (!options.level.empty() && options.level != name(level))) continue;
    for (const auto exactness : {tinyllm::Exactness::rounding, tinyllm::Exactness::reproducible}) {
      double best = 1e9;
      for (int i = 0; i < options.repeat; ++i) {
        best = std::min(
            best, seconds([&] { tinyllm::attend(view, q, out, workspace, {.exactness = exactness, .level = level}, pool); }));
      }
      std::printf("%-9s %-9s prefill %6td %-12s %-12s %7.2f ms %7.1f GFLOP/s\n", dtype, shape.name, s, name(level),
                  exactness == tinyllm::Exactness::rounding ? "" : "reproducible", 1e3 * best, 2 * products / best / 1e9);
    }
  }
}

template <class Dtype>
void measure(const char* dtype, const Options& options) {
  if (!options.dtype.empty() && options.dtype != dtype) return;
  for (const Shape& shape : shapes) {
    if (options.prefill) {
      prefill<Dtype>(dtype, shape, options.s != 0 ? options.s : 512, options);
      continue;
    }
    for (const Index s : {1024, 8192, 32768}) {
      if (options.s == 0 || options.s == s) decode<Dtype>(dtype, shape, s, options);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--no-eigen") {
      options.eigen = false;
      continue;
    }
    if (argument == "--prefill") {
      options.prefill = true;
      continue;
    }
    if (argument == "--dtype") options.dtype = value;
    if (argument == "--level") options.level = value;
    if (argument == "--s") options.s = std::atol(value.c_str());
    if (argument == "--threads") options.threads = std::atol(value.c_str());
    if (argument == "--repeat") options.repeat = std::atoi(value.c_str());
    ++i;
  }
  measure<float>("float", options);
  measure<Eigen::half>("half", options);
  measure<Eigen::bfloat16>("bfloat16", options);
}
