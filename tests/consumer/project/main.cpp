// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/tinyllm.hpp>

tinyllm::Index positions_elsewhere();
void attend_elsewhere(const tinyllm::KVView<float>& view, const tinyllm::RowMatrix& q, tinyllm::RowMatrix& out);

int main() {
  tinyllm::KVCache<float> cache({.n_layers = 1, .n_kv_heads = 1, .d_head = 2, .max_len = 4});
  const tinyllm::RowMatrix x = tinyllm::RowMatrix::Ones(3, 2);
  const auto view = cache.update(0, tinyllm::ChunkView::from_projection(x, 1), tinyllm::ChunkView::from_projection(x, 1));
  // All values are ones, and so are what two files make of them.
  tinyllm::RowMatrix out(3, 2);
  tinyllm::AttendWorkspace workspace;
  tinyllm::attend(view, {x.data(), 3, 2, 2}, {out.data(), 3, 2, 2}, workspace);
  tinyllm::RowMatrix same(3, 2);
  attend_elsewhere(view, x, same);
  return cache.seq_len() == positions_elsewhere() && out.isOnes(1e-6F) && same == out ? 0 : 1;
}
