// SPDX-License-Identifier: Apache-2.0
// with_storage: what the command line says of the cache's storage, as a type.
//
//     cli::with_storage(options.kv_dtype, [&]<class Dtype>() { tinyllm::KVCache<Dtype> cache(dims); ... });
//
// Errors: none of its own.
#pragma once

#include "options.hpp"

#include <tinyllm/core/dtype.hpp>

#include <cstdint>

namespace cli {

/// Returns what `f.template operator()<Dtype>()` returns.
template <class F>
auto with_storage(KvDtype dtype, F f) {
  switch (dtype) {
    case KvDtype::f32: return f.template operator()<float>();
    case KvDtype::f16: return f.template operator()<Eigen::half>();
    case KvDtype::bf16: return f.template operator()<Eigen::bfloat16>();
    case KvDtype::q8: break;
  }
  return f.template operator()<std::int8_t>();
}

}  // namespace cli
