// Resolves the addresses of the servers before a deadline.
#pragma once

#include <span>
#include <vector>

#include "status/status.h"
#include "transport/socket.h"

namespace sparsefleet {

// Looks up names in parallel and retries until they resolve: servers may still be starting.
// kDeadlineExceeded naming the first server without an address by then. A lookup that never returns
// is abandoned, on a thread that ends with it.
Result<std::vector<ResolvedEndpoint>> ResolveAll(std::span<const Endpoint> endpoints,
                                                 double timeout_s);

}  // namespace sparsefleet
