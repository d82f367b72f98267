// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "usage_error.hpp"

#include <tinyllm/version.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iostream>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace cli {
namespace {

using tinyllm::Index;
using tinyllm::detail::message;

constexpr float largest_float = std::numeric_limits<float>::max();
constexpr Index largest_index = std::numeric_limits<Index>::max();
constexpr Index most_threads = 1024;

/// The numbers that a flag takes, and how its range is written in messages.
template <class T>
struct Range {
  T least;
  T most;
  const char* text;
  std::optional<T> besides = std::nullopt;  // allowed as well
};

// The whole text must be the number: "5x", "", " 5", "nan" and whatever is out of range are refused.
template <class T>
T parse_number(std::string_view flag, std::string_view text, const Range<T>& range) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !((value >= range.least && value <= range.most) || value == range.besides)) {
    throw UsageError(message(flag, ": '", text, "' is not ", range.text));
  }
  return value;
}

template <class T, class Target>
void add_number(CLI::App& app, const std::string& flag, const Range<T>& range, Target& target, const std::string& help) {
  app.add_option_function<std::string>(
         flag, [flag, range, &target](const std::string& text) { target = parse_number<T>(flag, text, range); }, help)
      ->type_name("N");
}

template <class Target, class Parse>
void add_choice(CLI::App& app, const std::string& flag, const char* choices, Target& target, Parse parse,
                const std::string& help) {
  app.add_option_function<std::string>(
         flag, [&target, parse](const std::string& text) { target = parse(text); }, help)
      ->type_name(choices);
}

tinyllm::CacheMode parse_cache(const std::string& text) {
  if (text != "none" && text != "contiguous" && text != "paged") {
    throw UsageError(message("--cache: '", text, "' is none of none, contiguous and paged"));
  }
  return tinyllm::parse_cache_mode(text);
}

KvDtype parse_kv_dtype(const std::string& text) {
  if (text == "f32") return KvDtype::f32;
  if (text == "f16") return KvDtype::f16;
  if (text == "bf16") return KvDtype::bf16;
  if (text == "q8") return KvDtype::q8;
  throw UsageError(message("--kv-dtype: '", text, "' is none of f32, f16, bf16 and q8"));
}

engine::Activations parse_activations(const std::string& text) {
  if (text == "f32") return engine::Activations::f32;
  if (text == "q8") return engine::Activations::q8;
  throw UsageError(message("--activations: '", text, "' is neither f32 nor q8"));
}

tinyllm::Exactness parse_exactness(const std::string& text) {
  if (text == "reproducible") return tinyllm::Exactness::reproducible;
  if (text == "rounding") return tinyllm::Exactness::rounding;
  throw UsageError(message("--exactness: '", text, "' is neither reproducible nor rounding"));
}

Index hardware_threads() {
  // 0 where the system does not say.
  return std::clamp<Index>(static_cast<Index>(std::thread::hardware_concurrency()), 1, most_threads);
}

/// Where the prompt options put what they find, until it is known that there is exactly one.
struct PromptFlags {
  std::vector<PromptSource> given;
  bool lines = false;  // each line is a prompt
};

void add_prompt_options(CLI::App& app, PromptFlags& flags) {
  const auto found = [&flags](PromptSource::Kind kind) {
    return [&flags, kind](const std::string& value) { flags.given.push_back({kind, value}); };
  };
  app.add_option_function<std::string>("--prompt", found(PromptSource::Kind::text), "The prompt itself")->type_name("TEXT");
  app.add_option_function<std::string>("--file", found(PromptSource::Kind::file), "Read the prompt from a file, byte for byte")
      ->type_name("FILE");
  app.add_option_function<std::string>(
         "stdin",
         [&flags](const std::string& value) {
           if (value != "-")
             throw UsageError(message("unexpected argument '", value, "': give the prompt by --prompt, --file or -"));
           flags.given.push_back({PromptSource::Kind::standard_input, value});
         },
         "-: read the prompt from standard input")
      ->type_name("-");
  app.add_option_function<std::string>(
         "--batch",
         [&flags](const std::string& value) {
           const bool standard_input = value == "-";
           flags.given.push_back({standard_input ? PromptSource::Kind::standard_input : PromptSource::Kind::file, value});
           flags.lines = true;
         },
         "Answer each line of a file (-: of standard input) as a prompt of its own, all together; blank lines are skipped. "
         "Prints the line's number, a tab and its text when it ends; with --json one object with all results in order")
      ->type_name("FILE");
}

void add_ending_options(CLI::App& app, Options& options) {
  const Range<Index> count{0, largest_index, "a whole number, at least 0"};
  add_number(app, "--max-tokens", count, options.sampling.max_tokens, "Most tokens to generate (until the context ends)");
  app.add_option("--stop", options.sampling.stop, "End before this text; may be given several times")
      ->type_name("TEXT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  app.add_flag("--include-stop", options.sampling.include_stop, "End behind the stop text instead");
  app.add_flag("--ignore-eos", options.ignore_eos, "Treat end tokens as tokens like any other and go on");
}

void add_sampling_options(CLI::App& app, Options& options) {
  auto& sampling = options.sampling;
  const Range<float> share{0, 1, "a number from 0 to 1"};
  const Range<float> positive_share{std::numeric_limits<float>::denorm_min(), 1, "a number above 0, at most 1"};
  add_number(app, "--temperature",
             Range<float>{tinyllm::least_temperature, tinyllm::most_temperature, "0, or a number from 1e-30 to 1e30", 0},
             sampling.temperature, "Divides the logits before sampling; 0 is greedy (0)");
  add_number(app, "--top-k", Range<Index>{0, largest_index, "a whole number, at least 0"}, sampling.top_k,
             "Sample from the k most probable ids; 0: all (0)");
  add_number(app, "--top-p", positive_share, sampling.top_p, "Sample from the most probable ids that make up this share (1)");
  add_number(app, "--min-p", share, sampling.min_p, "Drop ids less probable than this share of the most probable one (0)");
  add_number(app, "--repetition-penalty",
             Range<float>{std::numeric_limits<float>::denorm_min(), largest_float, "a number above 0"},
             sampling.repetition_penalty, "Makes ids of prompt and answer less probable; 1: off (1)");
  add_number(app, "--seed", Range<std::uint64_t>{0, std::numeric_limits<std::uint64_t>::max(), "a whole number, 0 to 2^64 - 1"},
             sampling.seed, "Seed of the random numbers (0)");
}

void add_engine_options(CLI::App& app, Options& options) {
  add_choice(app, "--cache", "none|contiguous|paged", options.cache, parse_cache,
             "none computes everything anew for each token, exactly and slowly (contiguous; with --batch paged)");
  add_choice(app, "--kv-dtype", "f32|f16|bf16|q8", options.kv_dtype, parse_kv_dtype,
             "What the cache stores; q8: integers of 8 bits with a scale a row (f16)");
  add_choice(app, "--activations", "f32|q8", options.activations, parse_activations,
             "f32 is exact; q8 rounds what meets quantised weights to 8 bits and is faster (q8)");
  add_choice(
      app, "--exactness", "reproducible|rounding", options.exactness, parse_exactness,
      "reproducible: a prompt's answer is the same alone and in a batch, whatever is beside it, on any number of threads; "
      "rounding: prompts of thousands of tokens go in some 12 % faster, and the last bits depend on such things "
      "(reproducible)");
  add_number(app, "--threads", Range<Index>{1, most_threads, "a whole number, 1 to 1024"}, options.threads,
             "Threads to compute with (one a processor)");
}

void add_output_options(CLI::App& app, Options& options, bool& tokenize, bool& score) {
  const Range<Index> count{0, largest_index, "a whole number, at least 0"};
  add_number(app, "--top-logits", count, options.top_logits, "Show the K highest logits after the prompt");
  app.add_flag("--tokenize", tokenize, "Only print the ids of the text, without begin or end token, as a JSON array");
  app.add_flag("--score", score, "Only read the prompt; print its mean negative log-likelihood (nats a token) and perplexity");
  app.add_flag("--json", options.json, "Print one JSON object instead of the text");
  app.add_flag("--stats", options.stats, "Print times and counts on standard error");
}

std::string version_text() {
  return message("generate (tinyllm) ", TINYLLM_VERSION_MAJOR, '.', TINYLLM_VERSION_MINOR, '.', TINYLLM_VERSION_PATCH);
}

constexpr const char* description =
    "Generates text with a Llama-family model from a GGUF file. Greedy unless told otherwise.\n"
    "Text goes to standard output as it is made, all else to standard error.\n"
    "Exit codes: 0 done, 2 bad input (one line says what), 130 interrupted (what was made is printed).";

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  options.threads = hardware_threads();
  PromptFlags prompts;
  bool tokenize = false;
  bool score = false;

  CLI::App app(description, "generate");
  app.set_version_flag("--version", version_text());
  app.add_option("--model", options.model, "A GGUF file (the bundled model)")->type_name("FILE");
  add_prompt_options(app, prompts);
  add_ending_options(app, options);
  add_sampling_options(app, options);
  add_engine_options(app, options);
  add_output_options(app, options, tokenize, score);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wish) {  // --help or --version
    app.exit(wish, std::cout, std::cerr);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw UsageError(message(error.what(), " (see --help)"));
  }

  if (prompts.given.empty()) throw UsageError("there is no prompt: give --prompt TEXT, --file FILE, - or --batch FILE");
  if (prompts.given.size() > 1) throw UsageError("give only one of --prompt, --file, - and --batch");
  if (tokenize && score) throw UsageError("give only one of --tokenize and --score");
  options.prompt = prompts.given.front();
  options.task = tokenize ? Task::tokenize : score ? Task::score : Task::generate;
  if (prompts.lines) {
    if (options.task != Task::generate) throw UsageError("give only one of --batch, --tokenize and --score");
    if (options.top_logits > 0) throw UsageError("--top-logits shows one prompt's logits: it does not go with --batch");
    if (app.count("--cache") > 0 && options.cache != tinyllm::CacheMode::paged) {
      throw UsageError("--batch needs --cache paged, which it has unless told otherwise");
    }
    if (options.exactness != tinyllm::Exactness::reproducible) {
      throw UsageError("--batch is always reproducible: --exactness rounding does not go with it");
    }
    options.task = Task::batch;
    options.cache = tinyllm::CacheMode::paged;
  }
  return options;
}

}  // namespace cli
