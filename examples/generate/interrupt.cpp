// SPDX-License-Identifier: Apache-2.0
#include "interrupt.hpp"

#include <csignal>

namespace cli {
namespace {

// All that a signal handler may touch.
volatile std::sig_atomic_t seen = 0;

extern "C" void note_interrupt(int /*signal*/) { seen = 1; }

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = note_interrupt;
  // A write under way is not torn; the second Ctrl-C finds the system's own handler.
  action.sa_flags = static_cast<int>(static_cast<unsigned>(SA_RESTART) | static_cast<unsigned>(SA_RESETHAND));
  sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return seen != 0; }

}  // namespace cli
