// SPDX-License-Identifier: Apache-2.0
// Everything that tinyllm offers. Include single headers to compile faster.
#pragma once

#include <tinyllm/cache/cache_concepts.hpp>
#include <tinyllm/cache/causal_mask.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/cache/fill_counts.hpp>
#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/cache/recompute.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/executor.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/causal_lm.hpp>
#include <tinyllm/generate/generate.hpp>
#include <tinyllm/generate/generation.hpp>
#include <tinyllm/generate/generation_run.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/sampling/random.hpp>
#include <tinyllm/sampling/sampler.hpp>
#include <tinyllm/text/byte_decoder.hpp>
#include <tinyllm/text/incremental_decoder.hpp>
#include <tinyllm/text/stop_matcher.hpp>
#include <tinyllm/text/text_stream.hpp>
#include <tinyllm/text/tokenizer.hpp>
#include <tinyllm/text/utf8.hpp>
#include <tinyllm/text/window_decoder.hpp>
#include <tinyllm/version.hpp>
