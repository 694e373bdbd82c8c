// Pull: assigns keys to their servers and reads replies into the caller's memory.
#include <algorithm>
#include <string>
#include <vector>

#include "client/call.h"
#include "client/client.h"
#include "client/client_core.h"
#include "client/table_lookup.h"
#include "client/value_places.h"

namespace sparsefleet {
namespace {

// One pull while it is built and run.
class PullCall {
 public:
  PullCall(ClientCore& core, std::span<const PullSection> sections, PullMode mode,
           std::uint64_t step)
      : core_(core), sections_(sections), scratch_(core.scratch.Take(sections.size())) {
    requests_.resize(core.num_servers());
    replies_.resize(core.num_servers());
    for (auto& request : requests_) {
      request.mode = mode;
      request.step = step;
    }
    for (std::uint32_t i = 0; i < core.num_servers(); ++i) sends_bf16_.push_back(core.SendsBf16(i));
  }

  Status Run(const CallClock& clock);

 private:
  Status Check(const PullSection& section, const TableInfo& info) const;
  void AddSparse(std::size_t i);
  void AddDense(std::size_t i);
  void Add(std::uint32_t server, PullRequest::Section section, std::span<float> to);
  void PutBack();

  ClientCore& core_;
  const std::span<const PullSection> sections_;
  ScratchPool::Lease scratch_;
  std::vector<TableInfo> infos_;
  std::vector<PullRequest> requests_;  // by server
  std::vector<ReplyBuffer> replies_;
  std::vector<bool> sends_bf16_;  // by server
  ValuePlaces places_;
};

Status PullCall::Check(const PullSection& section, const TableInfo& info) const {
  const std::string subject = TableSubject(section.table);
  if (section.dense) {
    const bool fits =
        section.out.size() <= info.size && section.offset <= info.size - section.out.size();
    if (fits && section.keys.empty()) return Status::Ok();
    return {Code::kShapeMismatch,
            subject + "it has " + std::to_string(info.size) + " elements; the pull asks for " +
                std::to_string(section.out.size()) + " from " + std::to_string(section.offset) +
                " on, and for " + std::to_string(section.keys.size()) + " keys"};
  }
  if (section.keys.size() > INT32_MAX) {
    return {Code::kTooLarge, subject + std::to_string(section.keys.size()) +
                                 " keys in one pull, expected at most " +
                                 std::to_string(INT32_MAX)};
  }
  if (section.out.size() == section.keys.size() * info.dim) return Status::Ok();
  return {Code::kShapeMismatch, subject + std::to_string(section.keys.size()) + " keys of width " +
                                    std::to_string(info.dim) + " need room for " +
                                    std::to_string(section.keys.size() * info.dim) +
                                    " values, got " + std::to_string(section.out.size())};
}

void PullCall::Add(std::uint32_t server, PullRequest::Section section, std::span<float> to) {
  section.bf16 = sends_bf16_[server];
  requests_[server].sections.push_back(section);
  places_.Add(replies_[server].parts, to, section.bf16);
}

void PullCall::AddSparse(std::size_t i) {
  const PullSection& section = sections_[i];
  const std::uint32_t dim = infos_[i].dim;
  if (section.keys.empty()) return;
  const std::uint32_t n = core_.num_servers();
  if (n == 1) {
    Add(0, {section.table, false, dim, section.keys.size(), 0, section.keys}, section.out);
    return;
  }
  SectionScratch& scratch = scratch_.section(i);
  scratch.partition.Build(section.keys, n);
  const auto partitioned = Room(scratch.partitioned, section.out.size());
  for (std::uint32_t server = 0; server < n; ++server) {
    const auto keys = scratch.partition.KeysOf(server);
    if (keys.empty()) continue;
    Add(server, {section.table, false, dim, keys.size(), 0, keys},
        partitioned.subspan(scratch.partition.BeginOf(server) * dim, keys.size() * dim));
  }
}

void PullCall::AddDense(std::size_t i) {
  const PullSection& section = sections_[i];
  const TableInfo& info = infos_[i];
  const std::uint64_t end = section.offset + section.out.size();
  for (std::uint32_t server = 0; server < core_.num_servers(); ++server) {
    const DenseRange range =
        DenseRangeOf(section.table, info.size, info.min_block_size, server, core_.num_servers());
    const std::uint64_t from = std::max(range.begin, section.offset);
    const std::uint64_t to = std::min(range.end, end);
    if (from >= to) continue;
    Add(server, {section.table, true, 1, to - from, from - range.begin, {}},
        section.out.subspan(from - section.offset, to - from));
  }
}

Status PullCall::Run(const CallClock& clock) {
  for (const auto& section : sections_) {
    auto info = FindTable(core_, section.table, section.dense, clock);
    if (!info.ok()) return info.status();
    if (Status s = Check(section, info.value()); !s.ok()) return s;
    infos_.push_back(info.value());
  }
  for (std::size_t i = 0; i < sections_.size(); ++i) {
    sections_[i].dense ? AddDense(i) : AddSparse(i);
  }
  std::vector<ServerPart> parts;
  for (std::uint32_t server = 0; server < core_.num_servers(); ++server) {
    if (requests_[server].sections.empty()) continue;
    ServerPart& part = parts.emplace_back(server, Gather(requests_[server]));
    part.reply_bytes = PullReplyBytes(requests_[server]);
    part.reply = std::move(replies_[server]);
    part.reply.in_parts = true;
  }
  const CallSpec spec{MessageType::kPull, TablesSubject(sections_), "pull from", clock.left_s()};
  if (Status s = RunCall(core_, spec, parts); !s.ok()) return s;
  places_.Widen();
  PutBack();
  return Status::Ok();
}

void PullCall::PutBack() {
  if (core_.num_servers() == 1) return;
  for (std::size_t i = 0; i < sections_.size(); ++i) {
    if (sections_[i].dense || sections_[i].keys.empty()) continue;
    SectionScratch& scratch = scratch_.section(i);
    RestoreRows(scratch.partitioned, scratch.partition.positions(), infos_[i].dim,
                sections_[i].out);
  }
}

}  // namespace

Status Client::Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step,
                    double timeout_s) {
  if (Status s = CheckNumSections("pull", sections.size()); !s.ok()) return s;
  const CallClock clock(timeout_s);
  return PullCall(*core_, sections, mode, step).Run(clock);
}

}  // namespace sparsefleet
