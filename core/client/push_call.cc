#include "client/push_call.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "key/key.h"
#include "optimizer/kernels.h"
#include "transport/bf16.h"

namespace sparsefleet {
namespace {

bool AllFinite(std::span<const float> values) {
  return BestKernels().all_finite(values.data(), values.size());
}

// Adds elements [begin, end) of the concatenated parts as the section's values.
void TakeRange(DenseParts parts, std::uint64_t begin, std::uint64_t end,
               PushRequest::Section& section) {
  std::uint64_t at = 0;
  for (const auto& part : parts) {
    const std::uint64_t from = std::max(at, begin);
    const std::uint64_t to = std::min(at + part.size(), end);
    if (from < to) {
      const auto taken = part.subspan(from - at, to - from);
      if (section.values.empty()) {
        section.values = taken;
      } else {
        section.more_values.push_back(taken);
      }
    }
    at += part.size();
  }
}

Status NonFiniteElement(std::string_view table, DenseParts parts) {
  std::size_t at = 0;
  for (const auto& part : parts) {
    const auto bad = std::ranges::find_if_not(part, [](float x) { return std::isfinite(x); });
    at += static_cast<std::size_t>(bad - part.begin());
    if (bad == part.end()) continue;
    return {Code::kNonFinite, TableSubject(table) + "element " + std::to_string(at) +
                                  " of the gradient is " + std::to_string(*bad) +
                                  "; nothing was applied"};
  }
  return Status::Ok();
}

Status NonFinite(const PushSection& section, std::uint32_t dim) {
  std::size_t at = 0;
  while (at + 1 < section.gradients.size() && std::isfinite(section.gradients[at])) ++at;
  const std::string value = std::to_string(section.gradients[at]);
  return {Code::kNonFinite, TableSubject(section.table) + "gradient of key " +
                                std::to_string(section.keys[at / dim]) + " (row " +
                                std::to_string(at / dim) + ", column " + std::to_string(at % dim) +
                                ") is " + value + "; nothing was applied"};
}

}  // namespace

PushCall::PushCall(ClientCore& core, std::span<const PushSection> sections, std::uint64_t step)
    : core_(core), sections_(sections), scratch_(core.scratch.Take(sections.size())) {
  requests_.resize(core.num_servers());
  replies_.resize(core.num_servers());
  for (auto& request : requests_) request.step = step;
  for (std::uint32_t i = 0; i < core.num_servers(); ++i) sends_bf16_.push_back(core.SendsBf16(i));
  if (std::find(sends_bf16_.begin(), sends_bf16_.end(), true) != sends_bf16_.end()) {
    rounding_seed_ = core.NextRoundingSeed(step);
  }
  // Marks are not a section of any table.
  for (const PushSection& section : sections) {
    if (section.marks.empty()) continue;
    for (auto& request : requests_) request.marks = section.marks;
  }
}

Status PushCall::Check(const PushSection& section, const TableInfo& info) const {
  const std::string subject = TableSubject(section.table);
  const std::size_t num_keys = section.keys.size();
  if (num_keys > INT32_MAX) {
    return {Code::kTooLarge, subject + std::to_string(num_keys) +
                                 " keys in one push, expected at most " +
                                 std::to_string(INT32_MAX)};
  }
  if (!section.dense && !section.parts.empty()) {
    return {Code::kShapeMismatch, subject + "only a dense table takes a gradient in parts"};
  }
  if (Status s = CheckWanted(section, info); !s.ok()) return s;
  if (section.wants_rows()) return Status::Ok();
  const std::uint64_t wanted = section.dense ? info.size : num_keys * info.dim;
  const DenseParts parts = section.all_parts();
  if (SizeOfParts(parts) != wanted || (section.dense && num_keys > 0)) {
    return {Code::kShapeMismatch,
            subject + std::to_string(num_keys) + " keys and " + std::to_string(SizeOfParts(parts)) +
                " values, expected " +
                (section.dense ? "no keys and all " + std::to_string(wanted) + " elements"
                               : std::to_string(info.dim) + " values per key")};
  }
  // Checked before any server gets its part: a push is rejected as a whole.
  if (info.non_finite == NonFinitePolicy::kRaise && !AllFinite(parts)) {
    return section.dense ? NonFiniteElement(section.table, parts) : NonFinite(section, info.dim);
  }
  return Status::Ok();
}

Status PushCall::CheckWanted(const PushSection& section, const TableInfo& info) const {
  if (section.out.empty()) return Status::Ok();
  const bool may_want = section.dense || section.wants_rows();
  const std::uint64_t wanted = section.dense ? info.size : section.keys.size() * info.dim;
  if (may_want && section.out.size() == wanted) return Status::Ok();
  return {
      Code::kShapeMismatch,
      TableSubject(section.table) + "room for " + std::to_string(section.out.size()) +
          " values after the push, expected " +
          (may_want ? "none or " + std::to_string(wanted) : "none for rows that are pushed to")};
}

Status PushCall::AddSparse(std::size_t i) {
  const PushSection& section = sections_[i];
  const std::uint32_t dim = infos_[i].dim;
  const std::uint32_t n = core_.num_servers();
  SectionScratch& scratch = scratch_.section(i);
  auto keys = section.keys;
  auto values = section.gradients;
  if (!section.keys_are_unique) {
    scratch.unique.Build(keys);
    if (scratch.unique.has_repeats()) {
      const auto summed = Room(scratch.summed, scratch.unique.size() * dim);
      SumRows(values, scratch.unique.inverse(), dim, summed);
      keys = scratch.unique.keys();
      values = summed;
      if (infos_[i].non_finite == NonFinitePolicy::kRaise && !AllFinite(values)) {
        return {Code::kNonFinite, TableSubject(section.table) +
                                      "gradients of a repeated key add up to infinity; nothing was "
                                      "applied"};
      }
    }
  }
  if (n > 1) {
    scratch.partition.Build(keys, n);
    const auto partitioned = Room(scratch.partitioned, values.size());
    PartitionRows(values, scratch.partition.positions(), dim, partitioned);
    values = partitioned;
  }
  // Every server, even one that owns none of the keys: each counts the pushes of a table.
  for (std::uint32_t server = 0; server < n; ++server) {
    const auto part = n > 1 ? scratch.partition.KeysOf(server) : keys;
    const std::size_t begin = n > 1 ? scratch.partition.BeginOf(server) : 0;
    requests_[server].sections.push_back({section.table, false, true, section.add, dim, part.size(),
                                          part, values.subspan(begin * dim, part.size() * dim)});
    if (!sends_bf16_[server]) continue;
    PushRequest::Section& request = requests_[server].sections.back();
    request.bf16 = true;
    request.narrow = Narrow(i, server, {&values, 1}, begin * dim, part.size() * dim);
  }
  return Status::Ok();
}

void PushCall::AddDense(std::size_t i) {
  const PushSection& section = sections_[i];
  const TableInfo& info = infos_[i];
  const std::uint32_t n = core_.num_servers();
  DenseParts parts = section.all_parts();
  std::span<const float> poison;
  // If the table rejects such pushes, Check() has already looked.
  const bool is_poisoned = n > 1 && info.non_finite != NonFinitePolicy::kRaise && !AllFinite(parts);
  if (is_poisoned) {
    // The whole push must be skipped, so every server's part has to be non-finite.
    const auto copy = Room(scratch_.section(i).partitioned, info.size);
    std::ranges::fill(copy, std::numeric_limits<float>::quiet_NaN());
    poison = copy;
    parts = {&poison, 1};
  }
  std::uint64_t holders = 0;
  for (std::uint32_t server = 0; server < n; ++server) {
    const DenseRange range = DenseRangeOf(section.table, info.size, info.min_block_size, server, n);
    if (range.size() == 0) continue;
    ++holders;
    PushRequest::Section& request = requests_[server].sections.emplace_back();
    request.table = section.table;
    request.dense = true;
    request.add = section.add;
    request.dim = 1;
    request.count = range.size();
    request.wants_values = !section.out.empty();
    request.bf16 = sends_bf16_[server];
    if (request.bf16) {
      request.narrow = Narrow(i, server, parts, range.begin, range.size());
    } else {
      TakeRange(parts, range.begin, range.end, request);
    }
    if (section.out.empty()) continue;
    places_.Add(replies_[server].values, section.out.subspan(range.begin, range.size()),
                request.bf16);
  }
  // Each server reports the skipped push; count it once.
  if (is_poisoned && holders > 0) repeated_rejections_ += holders - 1;
}

void PushCall::AddWantedRows(std::size_t i) {
  const PushSection& section = sections_[i];
  const std::uint32_t dim = infos_[i].dim;
  const std::uint32_t n = core_.num_servers();
  SectionScratch& scratch = scratch_.section(i);
  if (n > 1) scratch.partition.Build(section.keys, n);
  const auto rows = n > 1 ? Room(scratch.partitioned, section.out.size()) : section.out;
  for (std::uint32_t server = 0; server < n; ++server) {
    const auto keys = n > 1 ? scratch.partition.KeysOf(server) : section.keys;
    if (keys.empty()) continue;
    const std::size_t begin = n > 1 ? scratch.partition.BeginOf(server) : 0;
    PushRequest::Section& request = requests_[server].sections.emplace_back();
    request.table = section.table;
    request.dim = dim;
    request.count = keys.size();
    request.keys = keys;
    request.wants_rows = true;
    request.bf16 = sends_bf16_[server];
    places_.Add(replies_[server].rows, rows.subspan(begin * dim, keys.size() * dim), request.bf16);
  }
}

std::span<const Bf16> PushCall::Narrow(std::size_t section, std::uint32_t server, DenseParts parts,
                                       std::uint64_t begin, std::uint64_t count) {
  // Allocated once for all servers: parts of it are already referred to.
  const auto room =
      Room(scratch_.section(section).narrow, SizeOfParts(parts)).subspan(begin, count);
  const auto seed =
      static_cast<std::uint32_t>(Mix64(rounding_seed_ + section * core_.num_servers() + server));
  std::uint64_t at = 0;
  for (const auto& part : parts) {
    const std::uint64_t from = std::max(at, begin);
    const std::uint64_t to = std::min<std::uint64_t>(at + part.size(), begin + count);
    if (from < to) {
      BestBf16().narrow_by_chance(room.data() + (from - begin), part.data() + (from - at),
                                  to - from, seed, from - begin);
    }
    at += part.size();
  }
  return room;
}

Status PushCall::Build(const CallClock& clock) {
  for (const auto& section : sections_) {
    if (!section.marks.empty()) {
      infos_.emplace_back();
      continue;
    }
    auto info = FindTable(core_, section.table, section.dense, clock);
    if (!info.ok()) return info.status();
    if (Status s = Check(section, info.value()); !s.ok()) return s;
    infos_.push_back(info.value());
  }
  for (std::size_t i = 0; i < sections_.size(); ++i) {
    if (!sections_[i].marks.empty()) continue;
    if (sections_[i].dense) {
      AddDense(i);
    } else if (sections_[i].wants_rows()) {
      AddWantedRows(i);
    } else if (Status s = AddSparse(i); !s.ok()) {
      return s;
    }
  }
  return Status::Ok();
}

ServerPart PushCall::PartOf(std::uint32_t server, GatheredBody request) {
  ServerPart part(server, std::move(request));
  Reply& reply = replies_[server];
  part.reply.in_parts = true;
  part.reply.parts.emplace_back(reply.result);
  part.reply.parts.insert(part.reply.parts.end(), reply.rows.begin(), reply.rows.end());
  part.reply.parts.insert(part.reply.parts.end(), reply.values.begin(), reply.values.end());
  for (const auto& room : part.reply.parts) part.reply_bytes += room.size();
  return part;
}

Result<PushResult> PushCall::Finish(std::span<const ServerPart> parts) {
  PushResult sum;
  for (const ServerPart& part : parts) {
    if (part.is_answer_lost) continue;
    auto result = DecodePushResult(replies_[part.server].result);
    if (!result.ok()) return result;
    sum += result.value();
  }
  places_.Widen();
  for (std::size_t i = 0; core_.num_servers() > 1 && i < sections_.size(); ++i) {
    if (!sections_[i].wants_rows()) continue;
    SectionScratch& scratch = scratch_.section(i);
    RestoreRows(scratch.partitioned, scratch.partition.positions(), infos_[i].dim,
                sections_[i].out);
  }
  return sum;
}

}  // namespace sparsefleet
