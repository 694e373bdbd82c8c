// Receives the keys without a row that training pulls request. Such a pull may create rows, or
// count keys toward admission.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string_view>

#include "key/key.h"
#include "status/status.h"

namespace sparsefleet {

// Thread-safe.
class BirthLog {
 public:
  virtual ~BirthLog() = default;
  // Held while rows are created; taken before any table lock.
  virtual std::shared_lock<std::shared_mutex> Enter() = 0;
  // Called before the rows are created. After an error none is.
  virtual Status Append(std::string_view table, std::span<const Key> keys, std::uint64_t step,
                        std::uint32_t seconds) = 0;
};

}  // namespace sparsefleet
