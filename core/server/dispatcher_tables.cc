// Requests that define, read and change tables.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "optimizer/row_optimizer.h"
#include "server/dispatcher.h"
#include "store/table_views.h"
#include "table/dense_table.h"

namespace sparsefleet {
namespace {

// Ok if the table's rows are as wide as the client takes them to be.
Status CheckWidth(const TableSet& tables, std::string_view name, std::uint32_t dim,
                  const char* what) {
  auto table = tables.Sparse(name);
  if (!table.ok()) return table.status();
  if (table.value()->dim() == dim) return Status::Ok();
  return {Code::kShapeMismatch, "table '" + std::string(name) + "' has width " +
                                    std::to_string(table.value()->dim()) + ", the " + what + " " +
                                    std::to_string(dim)};
}

// How many of the sections are pulled before the reply is sent: what comes after them is dense.
std::size_t NumPulledFirst(const PullRequest& request) {
  const auto& sections = request.sections;
  const auto last =
      std::ranges::find(sections.rbegin(), sections.rend(), false, &PullRequest::Section::dense);
  return static_cast<std::size_t>(sections.rend() - last);
}

// The floats of each section inside the reply's body, where the tables will write them.
std::vector<PullSection> PlacePullSections(std::span<const PullRequest::Section> pulled,
                                           std::span<std::byte> body) {
  std::vector<PullSection> sections;
  sections.reserve(pulled.size());
  std::size_t at = 0;
  for (const auto& section : pulled) {
    const std::size_t values = static_cast<std::size_t>(section.count) * section.dim;
    auto* first = reinterpret_cast<float*>(body.data() + at);
    sections.push_back(
        {section.table, section.keys, {first, values}, section.dense, section.offset});
    at += values * sizeof(float);
    if (at % 8 != 0) {
      std::memset(body.data() + at, 0, 4);
      at += 4;
    }
  }
  return sections;
}

// With the optimizer's state.
std::uint64_t DenseElementBytes(const DenseSpec& spec) {
  return sizeof(float) * RowOptimizer(spec.optimizer).StateDim(1) + sizeof(float);
}

// What the dense tables of other names hold.
std::uint64_t DenseBytesBeside(const TableSet& tables, const std::string& name) {
  std::uint64_t bytes = 0;
  for (const std::string& other : tables.Names()) {
    if (other == name) continue;
    if (auto table = tables.Dense(other); table.ok()) {
      bytes += table.value()->size() * DenseElementBytes(table.value()->spec());
    }
  }
  return bytes;
}

}  // namespace

Dispatcher::Answer Dispatcher::DefineSparse(const Call& call) {
  auto spec = DecodeSparseSpec(call.body);
  if (!spec.ok()) return spec.status();
  if (Status s = tables_.Define(spec.value()); !s.ok()) return s;
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::DefineDense(const Call& call) {
  auto decoded = DecodeDenseSpec(call.body);
  if (!decoded.ok()) return decoded.status();
  const DenseSpec& spec = decoded.value();
  if (Status s = spec.Validate(); !s.ok()) return s;
  const DenseRange range =
      DenseRangeOf(spec.size, spec.min_block_size, options_.index, options_.num_servers);
  // One at a time: two together must not pass the limit that each alone keeps.
  std::lock_guard lock(define_dense_mutex_);
  const std::uint64_t held = DenseBytesBeside(tables_, spec.name);
  const std::uint64_t room = options_.max_dense_bytes - std::min(held, options_.max_dense_bytes);
  const std::uint64_t element_bytes = DenseElementBytes(spec);
  if (range.size() > room / element_bytes) {
    return Status(Code::kTooLarge,
                  "dense table '" + spec.name + "' has " + std::to_string(range.size()) +
                      " elements of " + std::to_string(element_bytes) +
                      " bytes on this server, of " + std::to_string(options_.max_dense_bytes) +
                      " bytes for dense tables " + std::to_string(room) + " are free");
  }
  if (Status s = tables_.Define(spec, options_.index, options_.num_servers); !s.ok()) return s;
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::Info(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  auto info = DescribeTable(tables_, request.value().table);
  if (!info.ok()) return info.status();
  return ReplyBody(Encode(info.value()));
}

Dispatcher::Answer Dispatcher::Pull(const Call& call) {
  auto decoded = DecodePullRequest(call.body);
  if (!decoded.ok()) return decoded.status();
  const PullRequest& request = decoded.value();
  for (const auto& section : request.sections) {
    if (section.dense) continue;
    if (Status s = CheckWidth(tables_, section.table, section.dim, "pull asks for"); !s.ok()) {
      return s;
    }
  }
  const std::uint64_t reply_bytes = PullReplyBytes(request);
  if (reply_bytes > options_.max_frame_bytes) {
    return Status(Code::kTooLarge, "pull: the reply would have " + std::to_string(reply_bytes) +
                                       " bytes, the limit is " +
                                       std::to_string(options_.max_frame_bytes) +
                                       ": pull fewer keys at once");
  }
  const std::size_t num_first = NumPulledFirst(request);
  auto reads = std::make_shared<std::vector<DenseRead>>();
  std::size_t read_bytes = 0;
  for (const auto& section : std::span(request.sections).subspan(num_first)) {
    auto table = tables_.DensePart(section.table, section.offset, section.count);
    if (!table.ok()) return table.status();
    reads->push_back({std::move(table).value(), section.offset, section.count});
    read_bytes += reads->back().bytes();
  }
  std::span<std::byte> out;
  ReplyBody body =
      ReplyBody::Uninitialized(static_cast<std::size_t>(reply_bytes) - read_bytes, out);
  const auto sections = PlacePullSections(std::span(request.sections).first(num_first), out);
  if (Status s = tables_.Pull(sections, request.mode, request.step); !s.ok()) return s;
  return body.Append(std::move(reads));
}

Result<std::vector<PushSection>> Dispatcher::CheckedSections(const PushRequest& request) const {
  std::vector<PushSection> sections;
  sections.reserve(request.sections.size());
  for (const auto& section : request.sections) {
    if (section.wants_rows) continue;
    if (!section.dense) {
      Status s = CheckWidth(tables_, section.table, section.dim, "push brings");
      if (!s.ok()) return s;
    }
    sections.push_back({section.table, section.keys, section.values, section.dense,
                        section.keys_are_unique, section.add});
  }
  return sections;
}

Result<Dispatcher::PushAnswer> Dispatcher::BeginPushAnswer(const PushRequest& request) const {
  PullRequest wanted;
  auto reads = std::make_shared<std::vector<DenseRead>>();
  std::uint64_t other_bytes = kPushResultBytes;
  for (const auto& section : request.sections) {
    if (section.wants_rows) {
      Status s = CheckWidth(tables_, section.table, section.dim, "push asks for");
      if (!s.ok()) return s;
      wanted.sections.push_back(
          {section.table, false, section.dim, section.count, 0, section.keys});
    }
    if (!section.wants_values) continue;
    auto table = tables_.DensePart(section.table, 0, section.count);
    if (!table.ok()) return table.status();
    reads->push_back({std::move(table).value(), 0, section.count});
    other_bytes += reads->back().bytes();
  }
  const std::uint64_t row_bytes = PullReplyBytes(wanted);
  if (row_bytes > 0 && (other_bytes > options_.max_frame_bytes ||
                        row_bytes > options_.max_frame_bytes - other_bytes)) {
    return Status(Code::kTooLarge,
                  "push: the rows that it wants would have " + std::to_string(row_bytes) +
                      " bytes and the rest " + std::to_string(other_bytes) + ", the limit is " +
                      std::to_string(options_.max_frame_bytes) + ": pull them apart from it");
  }
  // The memory of the reply is taken before the push is applied, while it may still be refused.
  PushAnswer answer;
  std::span<std::byte> out;
  answer.body =
      ReplyBody::Uninitialized(kPushResultBytes + static_cast<std::size_t>(row_bytes), out);
  answer.head = out.first(kPushResultBytes);
  answer.rows = PlacePullSections(wanted.sections, out.subspan(kPushResultBytes));
  answer.values = std::move(reads);
  return answer;
}

Result<ReplyBody> Dispatcher::FinishPushAnswer(PushAnswer& answer, const PushResult& result,
                                               std::uint64_t step) const {
  try {
    std::ranges::copy(Encode(result), answer.head.begin());
    if (!answer.rows.empty()) {
      if (Status s = tables_.Pull(answer.rows, PullMode::kTrain, step); !s.ok()) return s;
    }
  } catch (const std::bad_alloc&) {
    return Status(Code::kTooLarge, "out of memory");  // for new rows; short: takes none
  }
  return answer.body.Append(answer.values);
}

Dispatcher::Answer Dispatcher::Push(const Call& call) {
  auto decoded = DecodePushRequest(call.body);
  if (!decoded.ok()) return decoded.status();
  const PushRequest& request = decoded.value();
  auto sections = CheckedSections(request);
  if (!sections.ok()) return sections.status();
  auto answer = BeginPushAnswer(request);
  if (!answer.ok()) return answer.status();
  auto result = PushAndTell(tables_, coordinator_, sections.value(), request.step);
  if (!result.ok()) return result.status();
  return FinishPushAnswer(answer.value(), result.value(), request.step);
}

Dispatcher::Answer Dispatcher::WriteDense(const Call& call) {
  auto request = DecodeWriteDense(call.body);
  if (!request.ok()) return request.status();
  Status s = tables_.WriteDense(request.value().table, request.value().values);
  if (!s.ok()) return s;
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::SetLearningRate(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  const auto& [table, number, learning_rate, flags] = request.value();
  if ((flags & ~kFlagHasCount) != 0) {
    return Status(Code::kProtocol, "set learning rate with unknown flags " + std::to_string(flags));
  }
  const auto at = (flags & kFlagHasCount) != 0 ? std::optional(number) : std::nullopt;
  Status s = tables_.SetLearningRate(table, learning_rate, at);
  if (!s.ok()) return s;
  return ReplyBody();
}

}  // namespace sparsefleet
