// SPDX-License-Identifier: Apache-2.0
// expect: (deleted function|implicitly-deleted copy constructor)
#include <tinyllm/cache/kv_cache.hpp>

#include <utility>

int main() {
  tinyllm::KVCache<float> cache({.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 1});
#ifdef CONTROL
  const tinyllm::KVCache<float> other = cache.clone();
#else
  const tinyllm::KVCache<float> other = cache;
#endif
}
