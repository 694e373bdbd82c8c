// The addresses of the servers, found before a deadline.
#pragma once

#include <span>
#include <vector>

#include "status/status.h"
#include "transport/socket.h"

namespace sparsefleet {

// Names are looked up side by side, and again until they are there: servers may still be starting.
// kDeadlineExceeded naming the first server that has no address by then. A name server
// that does not answer is left behind, on a thread that ends with its answer.
Result<std::vector<ResolvedEndpoint>> ResolveAll(std::span<const Endpoint> endpoints,
                                                 double timeout_s);

}  // namespace sparsefleet
