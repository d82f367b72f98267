// SPDX-License-Identifier: Apache-2.0
// The program's two outputs: standard output for what was asked for, standard error for a progress bar.
//
//     cli::Output output;
//     output.write(piece);                          // flushed, so that a reader has it now
//     cli::ProgressBar bar("prefill", 4096);
//     bar.advance(512);
//
// Errors: UsageError when standard output cannot be written to. A reader that has gone away is none: `closed()` says so.
#pragma once

#include <tinyllm/core/types.hpp>

#include <string_view>

namespace cli {

class Output {
 public:
  /// Takes the death sentence off a write to a closed pipe.
  Output();

  /// Throws: UsageError if the bytes cannot be written and a reader is still there.
  void write(std::string_view bytes);

  /// Ends the line if a person is watching; a pipe gets the text as it is.
  void end_line();

  /// The reader wants no more.
  bool closed() const { return closed_; }

 private:
  bool closed_ = false;
  bool line_open_ = false;
};

/// One line on a terminal that shows how far a long step is; nothing elsewhere and for steps of one part.
class ProgressBar {
 public:
  ProgressBar(const char* what, tinyllm::Index total);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  void advance(tinyllm::Index n);
  /// Clears the line for something else, until the next `advance`.
  void hide();

 private:
  const char* what_;
  tinyllm::Index total_;
  tinyllm::Index done_ = 0;
  bool visible_;
  bool shown_ = false;
};

}  // namespace cli
