// What a launcher on this machine reports about a server that it is restarting: the text of a
// file that it keeps rewriting until the server serves again.
#pragma once

#include <cstdint>
#include <string>

namespace sparsefleet {

struct RestartNote {
  // Whether the launcher has written it within the last few seconds, so is still working on the
  // restart.
  bool is_current = false;
  std::string text;  // "the launcher restarted it 12 s ago (...)"; empty: there is none
};

// `directory`: where the job keeps its state; empty: there are no notes. Thread-safe.
RestartNote ReadRestartNote(const std::string& directory, std::uint32_t server);

}  // namespace sparsefleet
