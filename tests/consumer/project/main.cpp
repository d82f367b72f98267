// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/tinyllm.hpp>

tinyllm::Index positions_elsewhere();

int main() {
  tinyllm::KVCache<float> cache({.n_layers = 1, .n_kv_heads = 1, .d_head = 2, .max_len = 4});
  const tinyllm::RowMatrix x = tinyllm::RowMatrix::Ones(3, 2);
  cache.update(0, tinyllm::ChunkView::from_projection(x, 1), tinyllm::ChunkView::from_projection(x, 1));
  return cache.seq_len() == positions_elsewhere() ? 0 : 1;
}
