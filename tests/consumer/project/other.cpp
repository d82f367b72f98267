// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/tinyllm.hpp>

tinyllm::Index positions_elsewhere() { return tinyllm::Positions(0, 3).size(); }

void attend_elsewhere(const tinyllm::KVView<float>& view, const tinyllm::RowMatrix& q, tinyllm::RowMatrix& out) {
  tinyllm::AttendWorkspace workspace;
  tinyllm::attend(view, {q.data(), q.rows(), q.cols(), q.cols()}, {out.data(), out.rows(), out.cols(), out.cols()}, workspace);
}
