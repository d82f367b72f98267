// SPDX-License-Identifier: Apache-2.0
// The house's rules, read off the headers themselves: which folder may include which, and what no header does.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

std::vector<fs::path> headers() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(INCLUDE_DIR)) {
    if (entry.path().extension() == ".hpp") found.push_back(entry.path());
  }
  return found;
}

// The folder below include/tinyllm, or "" for the two headers that lie there.
std::string folder_of(const fs::path& header) {
  const fs::path parent = fs::relative(header, fs::path(INCLUDE_DIR) / "tinyllm").parent_path();
  return parent.empty() ? "" : parent.begin()->string();
}

}  // namespace

TEST_CASE("include graph: dependencies between the folders go one way") {
  const std::map<std::string, std::set<std::string>> allowed = {
      {"core", {"core"}},
      {"cache", {"core", "cache"}},
      {"attention", {"core", "cache", "attention"}},
      {"text", {"core", "text"}},
      {"sampling", {"core", "sampling"}},
      {"generate", {"core", "cache", "text", "sampling", "generate"}},
      {"batching", {"core", "cache", "text", "sampling", "generate", "batching"}},
  };
  CHECK(headers().size() > 20);
  const std::regex include(R"(#include <tinyllm/([a-z_]+)/)");
  for (const fs::path& header : headers()) {
    if (folder_of(header).empty()) continue;
    CAPTURE(header.string());
    const std::string text = read(header);
    for (std::sregex_iterator match(text.begin(), text.end(), include), end; match != end; ++match) {
      CAPTURE(match->str());
      CHECK(allowed.at(folder_of(header)).contains((*match)[1].str()));
    }
  }
}

TEST_CASE("include graph: every header is reached from the umbrella header") {
  const std::regex include(R"(#include <(tinyllm/[^>]+)>)");
  std::set<std::string> reached = {"tinyllm/tinyllm.hpp"};
  std::vector<std::string> open(reached.begin(), reached.end());
  while (!open.empty()) {
    const std::string text = read(fs::path(INCLUDE_DIR) / open.back());
    open.pop_back();
    for (std::sregex_iterator match(text.begin(), text.end(), include), end; match != end; ++match) {
      if (reached.insert((*match)[1].str()).second) open.push_back((*match)[1].str());
    }
  }
  for (const fs::path& header : headers()) CHECK(reached.contains(fs::relative(header, INCLUDE_DIR).string()));
}

TEST_CASE("include graph: headers need Eigen and ICU alone, never print or exit, and stay short") {
  const std::regex include(R"(#include (<([^>]+)>|"[^"]*"))");
  const std::regex forbidden(R"(std::(cout|cerr|clog|abort|exit|terminate)|\babort\(|\bexit\(|printf\()");
  for (const fs::path& header : headers()) {
    CAPTURE(header.string());
    const std::string text = read(header);
    CHECK(text.starts_with("// SPDX-License-Identifier: Apache-2.0\n"));
    // Kernels are included once for each instruction set, and are empty otherwise.
    CHECK((text.find("\n#pragma once\n") != std::string::npos || text.find("TINYLLM_LEVEL") != std::string::npos));
    CHECK(std::count(text.begin(), text.end(), '\n') <= 400);
    CHECK_FALSE(std::regex_search(text, forbidden));
    for (std::sregex_iterator match(text.begin(), text.end(), include), end; match != end; ++match) {
      const std::string name = (*match)[2].str();
      CAPTURE(name);
      // The standard library's names have neither a folder nor a suffix; intrinsics end in intrin.h.
      const bool standard = !name.empty() && name.find_first_of("/.") == std::string::npos;
      const bool processor = name == "sys/mman.h" || name == "immintrin.h" || name == "arm_neon.h" || name == "cpuid.h";
      CHECK((standard || processor || name.starts_with("tinyllm/") || name.starts_with("Eigen/") ||
             name.starts_with("unicode/")));
    }
  }
}
