// Builds push requests: sums repeated keys, partitions rows by owner, and rejects non-finite values
// before anything is sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "client/call.h"
#include "client/client_core.h"
#include "client/row_scratch.h"
#include "client/table_lookup.h"
#include "client/value_places.h"
#include "merge/dense_parts.h"
#include "status/status.h"
#include "store/store.h"
#include "transport/messages.h"

namespace sparsefleet {

// One push while it is built. Not thread-safe.
class PushCall {
 public:
  // The sections must stay valid until the requests are sent.
  PushCall(ClientCore& core, std::span<const PushSection> sections, std::uint64_t step);

  // kNonFinite where a table with that policy would reject the push as a whole.
  Status Build(const CallClock& clock);

  // By server. Every server gets a section of every sparse table, and its part of a dense one.
  std::span<const PushRequest> requests() const { return requests_; }
  // One server's share of the call, for a request built from requests(); call once per server. The
  // reply is written into the sections' `out` and this object, which must outlive the call.
  ServerPart PartOf(std::uint32_t server, GatheredBody request);
  // Sums the results of the servers that were sent a part, after they have replied, and puts
  // requested rows in place. Nothing is known about a server whose answer was lost.
  Result<PushResult> Finish(std::span<const ServerPart> parts);
  // Duplicate counts of a dense push that every server skips: all but one.
  std::uint64_t repeated_rejections() const { return repeated_rejections_; }

 private:
  Status Check(const PushSection& section, const TableInfo& info) const;
  Status CheckWanted(const PushSection& section, const TableInfo& info) const;
  Status AddSparse(std::size_t i);
  void AddDense(std::size_t i);
  void AddWantedRows(std::size_t i);
  // Rounds `count` values, the concatenated parts from `begin`, to 16 bits for one server.
  std::span<const Bf16> Narrow(std::size_t section, std::uint32_t server, DenseParts parts,
                               std::uint64_t begin, std::uint64_t count);

  ClientCore& core_;
  const std::span<const PushSection> sections_;
  ScratchPool::Lease scratch_;
  std::vector<TableInfo> infos_;
  std::vector<PushRequest> requests_;  // by server
  // Where each server's reply goes.
  struct Reply {
    std::array<std::byte, kPushResultBytes> result;
    std::vector<std::span<std::byte>> rows;
    std::vector<std::span<std::byte>> values;
  };
  std::vector<Reply> replies_;
  ValuePlaces places_;
  std::vector<bool> sends_bf16_;  // by server
  std::uint64_t rounding_seed_ = 0;
  std::uint64_t repeated_rejections_ = 0;
};

}  // namespace sparsefleet
