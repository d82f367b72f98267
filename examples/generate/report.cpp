// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <limits>
#include <numeric>
#include <sstream>
#include <string_view>

namespace cli {
namespace {

using Json = nlohmann::ordered_json;
using tinyllm::Index;
using tinyllm::TokenId;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n'; }

// Tokens of the prompt that went through the model.
Index prefill_tokens(const Report& report) { return report.run.stats.prompt_tokens - report.run.stats.cached_tokens; }

// Tokens chosen behind the first, which counts as prefill. An end token was chosen too.
Index decode_steps(const Report& report) {
  const tinyllm::Generation& run = report.run;
  const Index chosen = run.stats.completion_tokens + (run.stop_kind == tinyllm::StopKind::eos ? 1 : 0);
  return report.nll ? 0 : std::max<Index>(chosen - 1, 0);
}

Index completion_tokens(const BatchReport& report) {
  Index sum = 0;
  for (const Report& result : report.results) sum += result.run.stats.completion_tokens;
  return sum;
}

std::optional<double> per_second(Index tokens, double seconds) {
  if (tokens <= 0 || !(seconds > 0)) return std::nullopt;
  return static_cast<double>(tokens) / seconds;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

void put_answer(Json& json, const Report& report) {
  const tinyllm::Generation& run = report.run;
  const bool answered = !report.nll;
  const auto put = [&](const char* key, const auto& value) { json[key] = answered ? Json(value) : Json(nullptr); };
  put("text", run.text);
  json["prompt_ids"] = run.prompt_ids;
  put("ids", run.ids);
  put("pieces", report.pieces);
  put("logprobs", run.logprobs);
  put("finish_reason", to_string(run.finish_reason));
  put("stop_kind", to_string(run.stop_kind));
  json["matched_stop"] = or_null(run.matched_stop);
}

Json timings_json(const Report& report) {
  const auto& timings = report.run.timings;
  const bool prefilled = report.run.stats.forward_calls > 0;
  Json json;
  json["load_s"] = report.load_s;
  json["prefill_s"] = prefilled ? Json(timings.prefill_s) : Json(nullptr);
  json["decode_s"] = report.nll ? Json(nullptr) : Json(timings.decode_s);
  json["prefill_tokens_per_s"] = prefilled ? or_null(per_second(prefill_tokens(report), timings.prefill_s)) : Json(nullptr);
  json["decode_tokens_per_s"] = or_null(per_second(decode_steps(report), timings.decode_s));
  return json;
}

Json stats_json(const tinyllm::GenerationStats& stats) {
  Json json;
  json["prompt_tokens"] = stats.prompt_tokens;
  json["completion_tokens"] = stats.completion_tokens;
  json["cached_tokens"] = stats.cached_tokens;
  json["forward_calls"] = stats.forward_calls;
  json["forward_rows"] = stats.forward_rows;
  json["cache_bytes"] = stats.cache_bytes;
  return json;
}

Json report_json(const Report& report) {
  Json json;
  put_answer(json, report);
  json["prompt_logits"] = or_null(report.prompt_logits);
  json["nll"] = or_null(report.nll);
  json["perplexity"] = report.nll ? Json(std::exp(*report.nll)) : Json(nullptr);
  json["timings"] = timings_json(report);
  json["stats"] = stats_json(report.run.stats);
  return json;
}

// Of all requests together.
tinyllm::GenerationStats total_stats(const BatchReport& report) {
  tinyllm::GenerationStats total;
  for (const Report& result : report.results) {
    total.prompt_tokens += result.run.stats.prompt_tokens;
    total.cached_tokens += result.run.stats.cached_tokens;
  }
  total.completion_tokens = completion_tokens(report);
  total.forward_calls = report.forward_calls;
  total.forward_rows = report.forward_rows;
  total.cache_bytes = report.cache_bytes;
  return total;
}

void write_speed(std::ostream& out, const char* what, Index tokens, double seconds) {
  out << what << ' ' << tokens << " tokens in " << seconds << " s";
  if (const auto speed = per_second(tokens, seconds)) out << " (" << *speed << " tokens/s)";
  out << '\n';
}

}  // namespace

TopLogits top_logits(std::span<const float> logits, Index k) {
  const auto size = static_cast<Index>(logits.size());
  const auto value = [&](TokenId id) {
    const float logit = logits[static_cast<std::size_t>(id)];
    return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
  };
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min(k, size);
  std::partial_sort(ids.begin(), end, ids.end(),
                    [&](TokenId a, TokenId b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
  TopLogits top;
  for (auto id = ids.begin(); id != end; ++id) top.emplace_back(*id, logits[static_cast<std::size_t>(*id)]);
  return top;
}

std::string to_json(const Report& report) { return dump(report_json(report)); }

std::string to_json(const BatchReport& report) {
  Json json;
  json["results"] = Json::array();
  for (const Report& result : report.results) json["results"].push_back(report_json(result));
  Json& timings = json["timings"];
  timings["load_s"] = report.load_s;
  timings["total_s"] = report.total_s;
  timings["tokens_per_s"] = or_null(per_second(completion_tokens(report), report.total_s));
  json["stats"] = stats_json(total_stats(report));
  json["stats"]["requests"] = report.results.size();
  json["stats"]["preemptions"] = report.preemptions;
  return dump(json);
}

std::string to_json(std::span<const TokenId> ids) { return dump(Json(std::vector<TokenId>(ids.begin(), ids.end()))); }

std::string score_text(const Report& report) {
  std::ostringstream out;
  out << std::setprecision(7) << "nll " << *report.nll << ", perplexity " << std::exp(*report.nll) << ", "
      << report.run.stats.prompt_tokens << " tokens\n";
  return out.str();
}

std::string stats_text(const Report& report) {
  const auto& [run, pieces, logits, nll, load_s] = report;
  std::ostringstream out;
  out << std::setprecision(4) << "load in " << load_s << " s\n";
  write_speed(out, "prefill", prefill_tokens(report), run.timings.prefill_s);
  if (!nll) write_speed(out, "decode", decode_steps(report), run.timings.decode_s);
  out << run.stats.forward_rows << " rows in " << run.stats.forward_calls << " forward passes, cache of "
      << run.stats.cache_bytes << " bytes\n";
  if (!nll) out << run.stats.completion_tokens << " tokens made, ended by " << to_string(run.stop_kind) << '\n';
  return out.str();
}

std::string stats_text(const BatchReport& report) {
  const tinyllm::GenerationStats total = total_stats(report);
  std::ostringstream out;
  out << std::setprecision(4) << "load in " << report.load_s << " s\n";
  write_speed(out, "answers of", total.completion_tokens, report.total_s);
  out << report.results.size() << " prompts of " << total.prompt_tokens << " tokens, " << total.cached_tokens
      << " of them found in the cache\n";
  out << total.forward_rows << " rows in " << total.forward_calls << " forward passes, cache of " << total.cache_bytes
      << " bytes, " << report.preemptions << " preemptions\n";
  return out.str();
}

std::string logits_text(const TopLogits& logits) {
  std::ostringstream out;
  out << std::setprecision(std::numeric_limits<float>::max_digits10);
  for (const auto& [id, logit] : logits) out << id << '\t' << logit << '\n';
  return out.str();
}

}  // namespace cli
