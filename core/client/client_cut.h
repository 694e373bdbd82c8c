// A cut through a table on all servers.
#pragma once

#include <memory>
#include <string_view>

#include "client/client_core.h"
#include "status/status.h"
#include "store/store.h"

namespace sparsefleet {

// Opens the cut on all servers at once, to keep their moments close together; each call of the cut
// has `timeout_s`.
Result<std::unique_ptr<StoreCut>> OpenClientCut(std::shared_ptr<ClientCore> core,
                                                std::string_view table, bool only_dirty,
                                                bool clear_dirty, double timeout_s);

}  // namespace sparsefleet
