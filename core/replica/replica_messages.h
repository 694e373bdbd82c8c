// Requests of a durable server to the process that holds a copy of its log.
// Format: docs/wire_format.md. Views point into the body given.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "status/status.h"
#include "transport/messages.h"

namespace sparsefleet {

// Identifies the log, and which of its successive owners is asking.
struct ReplicaHead {
  std::uint32_t server = 0;  // index of the server
  std::uint64_t epoch = 0;
  std::uint64_t owner = 0;  // of the log, see FileHead; 0: the server has none yet
};

// With `claims` the sender becomes the only one that may write: it gets an epoch above all earlier
// ones, at least one more than its own. Without it, the server keeps its epoch.
struct ReplicaOpen {
  ReplicaHead head;
  bool claims = false;
};

// What the replica holds.
struct ReplicaState {
  std::uint64_t epoch = 0;
  std::uint64_t epoch_before = 0;  // of what is held; differs after a claim
  std::uint64_t owner = 0;         // 0: nothing is held
  std::uint64_t next_lsn = 0;      // of the record to come; 0: nothing is held
  std::uint64_t snapshot = 0;      // of the newest one; 0: none
  std::vector<std::uint64_t> segments;
};

// Whole records from number `first_lsn` on; may be empty. The reply is a number: the next record
// that the replica lacks, 0 if it holds nothing. Records that leave a gap are not accepted.
struct ReplicaAppend {
  ReplicaHead head;
  std::uint64_t first_lsn = 0;
  std::span<const std::byte> records;
};

// A part of snapshot `lsn`, from byte `offset` on, which must be where the last one ended; 0 begins
// again. With the last part, the snapshot replaces the log before it. The reply is as for
// ReplicaAppend.
struct ReplicaSnapshot {
  ReplicaHead head;
  std::uint64_t lsn = 0;
  std::uint64_t offset = 0;
  bool is_last = false;
  std::span<const std::byte> bytes;
};

// The reply is up to `max_bytes` of the file from `offset` on; none at its end.
struct ReplicaRead {
  ReplicaHead head;
  bool is_snapshot = false;  // else a segment
  std::uint64_t lsn = 0;
  std::uint64_t offset = 0;
  std::uint64_t max_bytes = 0;
};

Body Encode(const ReplicaOpen& message);
Body Encode(const ReplicaState& message);
GatheredBody Gather(const ReplicaAppend& message);
GatheredBody Gather(const ReplicaSnapshot& message);
Body Encode(const ReplicaRead& message);
Result<ReplicaOpen> DecodeReplicaOpen(std::span<const std::byte> body);
Result<ReplicaState> DecodeReplicaState(std::span<const std::byte> body);
Result<ReplicaAppend> DecodeReplicaAppend(std::span<const std::byte> body);
Result<ReplicaSnapshot> DecodeReplicaSnapshot(std::span<const std::byte> body);
Result<ReplicaRead> DecodeReplicaRead(std::span<const std::byte> body);

}  // namespace sparsefleet
