// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: forward_batch must return the logits as a float Eigen matrix
#include <tinyllm/batching/batch_causal_lm.hpp>
#include <tinyllm/cache/paged_kv_cache.hpp>

struct Model {
#ifdef CONTROL
  using Logits = tinyllm::RowMatrix;
#else
  using Logits = Eigen::MatrixXd;
#endif
  template <class Cache>
  Logits forward_batch(std::span<const tinyllm::BatchEntry<Cache>>) {
    return {};
  }
};

int main() { tinyllm::check_batch_causal_lm<Model, tinyllm::PagedKVCache<float>>(); }
