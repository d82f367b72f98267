// SPDX-License-Identifier: Apache-2.0
#include "terminal.hpp"

#include "usage_error.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <system_error>

namespace cli {

Output::Output() { std::signal(SIGPIPE, SIG_IGN); }

void Output::write(std::string_view bytes) {
  if (closed_ || bytes.empty()) return;
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() && std::fflush(stdout) == 0;
  if (!written && errno != EPIPE) {
    throw UsageError("cannot write to standard output: " + std::generic_category().message(errno));
  }
  closed_ = !written;
  line_open_ = bytes.back() != '\n';
}

void Output::end_line() {
  if (line_open_ && isatty(STDOUT_FILENO) != 0) write("\n");
}

ProgressBar::ProgressBar(const char* what, tinyllm::Index total)
    : what_(what), total_(total), visible_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() { hide(); }

void ProgressBar::hide() {
  if (shown_) std::fputs("\r\x1b[K", stderr);  // back to the line's start, and clear it
  shown_ = false;
}

void ProgressBar::advance(tinyllm::Index n) {
  done_ += n;
  if (!visible_ || done_ >= total_) return;
  shown_ = true;
  constexpr int width = 40;
  const auto filled = static_cast<std::size_t>(width * done_ / total_);
  const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
  std::fprintf(stderr, "\r%s [%s] %td/%td", what_, bar.c_str(), done_, total_);
}

}  // namespace cli
