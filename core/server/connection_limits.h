// How many connections a server accepts, given how many files this process may open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "status/status.h"

namespace sparsefleet {

// Connections share the process's file descriptors with checkpoints and everything else, so they
// get a budget, and connections that have not proven the job key yet get a small part of it.
struct ConnectionLimits {
  std::size_t proven = 0;
  std::size_t unproven = 0;
  std::size_t unproven_per_address = 0;
  std::uint64_t open_files = 0;  // RLIMIT_NOFILE of the process

  std::string FullText() const;  // why a connection is refused when all are in use
};

// Raises the soft RLIMIT_NOFILE as far as the requested connections need and the hard limit allows,
// then divides the descriptors. `proven` may be lower than `max_connections`. 0 for either of the
// other two selects a default.
// kIo if too few descriptors are left for connections, kInvalidArgument if `max_unproven` uses up
// the budget.
Result<ConnectionLimits> PlanConnections(std::uint32_t max_connections, std::uint32_t max_unproven,
                                         std::uint32_t max_unproven_per_address);

}  // namespace sparsefleet
