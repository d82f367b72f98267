// SPDX-License-Identifier: Apache-2.0
// expect: (StorageType|constraint)
#include <tinyllm/cache/kv_cache.hpp>

#ifdef CONTROL
using Cache = tinyllm::KVCache<Eigen::bfloat16>;
#else
using Cache = tinyllm::KVCache<double>;
#endif

int main() { Cache cache({.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 1}); }
