// SPDX-License-Identifier: Apache-2.0
// A stop string that comes in pieces: nothing of it is ever shown, and nothing else waits.
#include <tinyllm/text/stop_matcher.hpp>

#include <iostream>

int main() {
  tinyllm::StopMatcher matcher({"\nUser:", "END"});
  for (const char* piece : {"Certainly.", "\nUs", "eful words.", "\nUser", ": and more"}) {
    std::string released;
    const bool stopped = matcher.push(piece, released);
    std::cout << '[' << released << ']';
    if (stopped) std::cout << " stopped at \"" << *matcher.matched() << "\"\n";
  }
}
