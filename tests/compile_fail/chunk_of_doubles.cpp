// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: a chunk holds float values
#include <tinyllm/cache/chunk_view.hpp>

#ifdef CONTROL
using Matrix = Eigen::MatrixXf;
#else
using Matrix = Eigen::MatrixXd;
#endif

int main() {
  const Matrix x = Matrix::Zero(2, 4);
  static_cast<void>(tinyllm::ChunkView::from_projection(x, 2));
}
