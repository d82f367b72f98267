// SPDX-License-Identifier: Apache-2.0
// A cache by hand: what update returns, when the length moves, and going back.
#include <tinyllm/cache/kv_cache.hpp>

#include <iostream>

using namespace tinyllm;

int main() {
  KVCache<Eigen::half> cache({.n_layers = 2, .n_kv_heads = 1, .d_head = 2, .max_len = 4});

  // Each layer puts in the keys and values of the new positions and gets all it holds, as stored.
  const RowMatrix k = (RowMatrix(2, 2) << 1, 2, 3, 4.0005F).finished();  // [T, H·d]
  const RowMatrix v = 10 * k;
  for (Index layer = 0; layer < 2; ++layer) {
    const auto view = cache.update(layer, ChunkView::from_projection(k, 1), ChunkView::from_projection(v, 1));
    std::cout << "layer " << layer << " holds " << view.rows() << " rows, the cache " << cache.seq_len() << '\n';
  }
  std::cout << "keys:\n" << cache.view(0).keys(0, 0).cast<float>() << '\n';

  // The next token's position, and what it may see.
  std::cout << "next position " << cache.positions(1)[0] << ", mask " << cache.mask(1).matrix() << '\n';

  // Back to one position: the next append overwrites the rest.
  cache.truncate(1);
  std::cout << "after truncate " << cache.seq_len() << " of " << cache.capacity() << ", " << cache.nbytes() << " bytes\n";

  try {
    const RowMatrix long_chunk = RowMatrix::Zero(4, 2);
    cache.update(0, ChunkView::from_projection(long_chunk, 1), ChunkView::from_projection(long_chunk, 1));
  } catch (const CacheFull& full) {
    std::cout << full.what() << '\n';
  }
}
