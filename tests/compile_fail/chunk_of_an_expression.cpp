// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: a chunk is read where it lies
#include <tinyllm/cache/chunk_view.hpp>

int main() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Zero(2, 4);
#ifdef CONTROL
  static_cast<void>(tinyllm::ChunkView::from_projection(x, 2));
#else
  static_cast<void>(tinyllm::ChunkView::from_projection(x + x, 2));
#endif
}
