// What a launcher on this machine says of a server that it restarts: the text of a file that it
// rewrites all the time until the server serves again.
#pragma once

#include <cstdint>
#include <string>

namespace sparsefleet {

struct RestartNote {
  // Whether the launcher has written it within the last seconds: it still works on the restart.
  bool is_current = false;
  std::string text;  // "the launcher restarted it 12 s ago (...)"; empty: there is none
};

// `directory` is that of the job's state; empty: nobody leaves notes. Thread-safe.
RestartNote ReadRestartNote(const std::string& directory, std::uint32_t server);

}  // namespace sparsefleet
