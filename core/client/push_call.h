// Gradients on their way to the servers: repeated keys summed, rows dealt to their owners, nothing
// sent that a server would refuse for its values.
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
#include "merge/dense_parts.h"
#include "status/status.h"
#include "store/store.h"
#include "transport/messages.h"

namespace sparsefleet {

// One push while it is put together. Not thread-safe.
class PushCall {
 public:
  // The sections must stay where they are until the requests are sent.
  PushCall(ClientCore& core, std::span<const PushSection> sections, std::uint64_t step);

  // kNonFinite where a table with that policy would refuse the push as a whole.
  Status Build(const CallClock& clock);

  // By server. Every server gets a section of every sparse table, and of a dense one its part.
  std::span<const PushRequest> requests() const { return requests_; }
  // A server's share of the call, with a request made of requests(); once a server. Its reply comes
  // into the sections' `out` and into what Finish() adds up: this object must outlive the call.
  ServerPart PartOf(std::uint32_t server, GatheredBody request);
  // Over the servers that were sent a part, which have replied. Then wanted rows are in their
  // place.
  Result<PushResult> Finish();
  // Of a dense push that each server skips and counts: all but one of those.
  std::uint64_t repeated_rejections() const { return repeated_rejections_; }

 private:
  Status Check(const PushSection& section, const TableInfo& info) const;
  Status CheckWanted(const PushSection& section, const TableInfo& info) const;
  Status AddSparse(std::size_t i);
  void AddDense(std::size_t i);
  void AddWantedRows(std::size_t i);
  void Expect(std::vector<std::span<std::byte>>& reply, std::span<float> out);

  ClientCore& core_;
  const std::span<const PushSection> sections_;
  ScratchPool::Lease scratch_;
  std::vector<TableInfo> infos_;
  std::vector<PushRequest> requests_;  // by server
  // Where its reply goes, by server.
  struct Reply {
    bool is_due = false;
    std::array<std::byte, kPushResultBytes> result;
    std::vector<std::span<std::byte>> rows;
    std::vector<std::span<std::byte>> values;
  };
  std::vector<Reply> replies_;
  std::array<std::byte, 4> padding_;  // read and forgotten
  std::uint64_t repeated_rejections_ = 0;
};

}  // namespace sparsefleet
