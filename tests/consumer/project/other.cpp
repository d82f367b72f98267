// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/tinyllm.hpp>

tinyllm::Index positions_elsewhere() { return tinyllm::Positions(0, 3).size(); }
