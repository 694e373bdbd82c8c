// Requests that define, read and change tables.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/row_optimizer.h"
#include "server/dispatcher.h"
#include "store/table_views.h"
#include "sync/mutex.h"
#include "table/dense_table.h"
#include "table/pinned_seconds.h"
#include "transport/bf16.h"

namespace sparsefleet {
namespace {

// Ok if the table's width is the one the client assumes.
Status CheckWidth(const TableSet& tables, std::string_view name, std::uint32_t dim,
                  const char* what) {
  auto table = tables.Sparse(name);
  if (!table.ok()) return table.status();
  if (table.value()->dim() == dim) return Status::Ok();
  return {Code::kShapeMismatch, "table '" + std::string(name) + "': the " + what + " width " +
                                    std::to_string(dim) + ", but the table has width " +
                                    std::to_string(table.value()->dim())};
}

// The number of sections to pull before the reply is sent; those after it are dense.
std::size_t NumPulledFirst(const PullRequest& request) {
  const auto& sections = request.sections;
  const auto last =
      std::ranges::find(sections.rbegin(), sections.rend(), false, &PullRequest::Section::dense);
  return static_cast<std::size_t>(sections.rend() - last);
}

// Bytes per element, including the optimizer state.
std::uint64_t DenseElementBytes(const DenseSpec& spec) {
  return sizeof(float) * RowOptimizer(spec.optimizer).StateDim(1) + sizeof(float);
}

// Bytes held by dense tables other than `name`.
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

Dispatcher::PlacedRows Dispatcher::PlaceRows(std::span<const PullRequest::Section> pulled,
                                             std::span<std::byte> body) {
  PlacedRows placed;
  placed.sections.reserve(pulled.size());
  std::size_t num_wide = 0;
  for (const auto& section : pulled) {
    if (section.bf16) num_wide += static_cast<std::size_t>(section.count) * section.dim;
  }
  if (num_wide > 0) placed.wide = std::make_unique_for_overwrite<float[]>(num_wide);
  float* wide = placed.wide.get();
  std::byte* at = body.data();
  for (const auto& section : pulled) {
    const std::size_t values = static_cast<std::size_t>(section.count) * section.dim;
    const std::size_t bytes = static_cast<std::size_t>(ValueBytes(values, section.bf16));
    if (bytes > 0) std::memset(at + bytes - 8, 0, 8);  // what follows the values
    float* first = reinterpret_cast<float*>(at);
    if (section.bf16) {
      first = std::exchange(wide, wide + values);
      placed.narrowed.push_back({{first, values}, at});
    }
    placed.sections.push_back(
        {section.table, section.keys, {first, values}, section.dense, section.offset});
    at += bytes;
  }
  return placed;
}

void Dispatcher::PlacedRows::Finish() const {
  for (const auto& [from, to] : narrowed) {
    BestBf16().narrow(reinterpret_cast<Bf16*>(to), from.data(), from.size());
  }
}

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
      DenseRangeOf(spec.name, spec.size, spec.min_block_size, options_.index, options_.num_servers);
  // One at a time: two concurrent definitions must not exceed the limit together.
  MutexLock lock(define_dense_mutex_);
  const std::uint64_t held = DenseBytesBeside(tables_, spec.name);
  const std::uint64_t room = options_.max_dense_bytes - std::min(held, options_.max_dense_bytes);
  const std::uint64_t element_bytes = DenseElementBytes(spec);
  if (range.size() > room / element_bytes) {
    return Status(Code::kTooLarge,
                  "dense table '" + spec.name + "' has " + std::to_string(range.size()) +
                      " elements of " + std::to_string(element_bytes) +
                      " bytes on this server; of " + std::to_string(options_.max_dense_bytes) +
                      " bytes for dense tables, " + std::to_string(room) + " are free");
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
  // It may create rows, which are logged.
  if (request.mode == PullMode::kTrain && journal_ != nullptr && journal_->is_full()) {
    return journal_->FullStatus();
  }
  for (const auto& section : request.sections) {
    if (section.dense) continue;
    if (Status s = CheckWidth(tables_, section.table, section.dim, "pull asks for"); !s.ok()) {
      return s;
    }
  }
  const std::uint64_t reply_bytes = PullReplyBytes(request);
  if (reply_bytes > options_.max_frame_bytes) {
    return Status(Code::kTooLarge, "pull: the reply would have " + std::to_string(reply_bytes) +
                                       " bytes, but the limit is " +
                                       std::to_string(options_.max_frame_bytes) +
                                       ": pull fewer keys at once");
  }
  const std::size_t num_first = NumPulledFirst(request);
  auto reads = std::make_shared<std::vector<DenseRead>>();
  std::size_t read_bytes = 0;
  for (const auto& section : std::span(request.sections).subspan(num_first)) {
    auto table = tables_.DensePart(section.table, section.offset, section.count);
    if (!table.ok()) return table.status();
    reads->push_back({std::move(table).value(), section.offset, section.count, section.bf16});
    read_bytes += reads->back().bytes();
  }
  std::span<std::byte> out;
  ReplyBody body =
      ReplyBody::Uninitialized(static_cast<std::size_t>(reply_bytes) - read_bytes, out);
  const auto rows = PlaceRows(std::span(request.sections).first(num_first), out);
  if (Status s = tables_.Pull(rows.sections, request.mode, request.step); !s.ok()) return s;
  rows.Finish();
  return body.Append(std::move(reads));
}

Result<std::vector<PushSection>> Dispatcher::CheckedSections(const PushRequest& request) const {
  std::vector<PushSection> sections;
  sections.reserve(request.sections.size());
  for (const auto& section : request.sections) {
    if (section.wants_rows) continue;
    if (!section.dense) {
      Status s = CheckWidth(tables_, section.table, section.dim, "push has");
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
          {section.table, false, section.dim, section.count, 0, section.keys, section.bf16});
    }
    if (!section.wants_values) continue;
    auto table = tables_.DensePart(section.table, 0, section.count);
    if (!table.ok()) return table.status();
    reads->push_back({std::move(table).value(), 0, section.count, section.bf16});
    other_bytes += reads->back().bytes();
  }
  const std::uint64_t row_bytes = PullReplyBytes(wanted);
  if (row_bytes > 0 && (other_bytes > options_.max_frame_bytes ||
                        row_bytes > options_.max_frame_bytes - other_bytes)) {
    return Status(Code::kTooLarge,
                  "push: the requested rows would have " + std::to_string(row_bytes) +
                      " bytes and the rest " + std::to_string(other_bytes) + "; the limit is " +
                      std::to_string(options_.max_frame_bytes) + ": pull them separately");
  }
  // The reply is allocated before the push is applied, while the push can still be rejected.
  PushAnswer answer;
  std::span<std::byte> out;
  answer.body =
      ReplyBody::Uninitialized(kPushResultBytes + static_cast<std::size_t>(row_bytes), out);
  answer.head = out.first(kPushResultBytes);
  answer.rows = PlaceRows(wanted.sections, out.subspan(kPushResultBytes));
  answer.values = std::move(reads);
  return answer;
}

Result<ReplyBody> Dispatcher::FinishPushAnswer(PushAnswer& answer, const PushResult& result,
                                               std::uint64_t step) const {
  try {
    std::ranges::copy(Encode(result), answer.head.begin());
    if (!answer.rows.sections.empty()) {
      Status s = tables_.Pull(answer.rows.sections, PullMode::kTrain, step);
      if (!s.ok()) {
        return Status(Code::kAnswerLost,
                      "push: it was applied, but its rows cannot be read: " + s.message());
      }
      answer.rows.Finish();
    }
  } catch (const std::bad_alloc&) {
    // Out of memory for new rows; the message is too short to allocate.
    return Status(Code::kAnswerLost, "applied");
  }
  return answer.body.Append(answer.values);
}

Dispatcher::Answer Dispatcher::AnswerOfMarks(const Call& call, const PushRequest& request,
                                             PushAnswer& answer) {
  if (request.marks.empty()) return std::nullopt;
  switch (call.session->Judge(request.marks)) {
    case AppliedData::State::kNew:
      return std::nullopt;
    case AppliedData::State::kApplied:
      if (journal_ != nullptr) journal_->duplicates_dropped.fetch_add(1);
      return FinishPushAnswer(answer, PushResult{}, request.step);
    case AppliedData::State::kMixed:
      break;
  }
  return Status(Code::kInvalidArgument,
                "push: of its " + std::to_string(request.marks.size()) +
                    " marks, some name data that was already applied and some do not; nothing was "
                    "applied: push their gradients separately");
}

// Without the parts that only the reply needs, and always in float32, as it is applied.
Status Dispatcher::LogPush(const Call& call, const PushRequest& request, std::uint32_t seconds) {
  PushRequest logged;
  logged.step = request.step;
  logged.marks = request.marks;
  for (const auto& section : request.sections) {
    if (section.wants_rows) continue;
    journal_->CountRows(section.keys.size());
    logged.sections.push_back(section);
    logged.sections.back().wants_values = false;
    logged.sections.back().bf16 = false;
  }
  if (logged.sections.empty() && logged.marks.empty()) return Status::Ok();
  RequestHead head = HeadOf(call);
  head.seconds = seconds;
  const GatheredBody body = Gather(logged);
  return journal_->Append(LogRecord::kPush, head, body.pieces);
}

Dispatcher::Answer Dispatcher::Push(const Call& call) {
  auto decoded = DecodePushRequest(call.body);
  if (!decoded.ok()) return decoded.status();
  const auto widened = WidenValues(decoded.value());
  const PushRequest& request = decoded.value();
  auto sections = CheckedSections(request);
  if (!sections.ok()) return sections.status();
  auto answer = BeginPushAnswer(request);
  if (!answer.ok()) return answer.status();
  if (auto known = AnswerOfMarks(call, request, answer.value())) return known;
  Result<PushResult> result = PushResult{};
  if (journal_ == nullptr) {
    result = PushAndNotify(tables_, coordinator_, sections.value(), request.step);
    if (result.ok()) call.session->Remember(request.marks);
  } else {
    const auto logged = journal_->Enter();
    const std::uint32_t seconds = PinnedSeconds::Now();
    const PinnedSeconds pinned(seconds);
    result = PushAndNotify(tables_, coordinator_, sections.value(), request.step,
                           [&] { return LogPush(call, request, seconds); });
    if (result.ok()) {
      call.session->Remember(request.marks);
      call.session->replies(MessageType::kPush).SetPushed(call.to.request.sequence, result.value());
    }
  }
  if (!result.ok()) return result.status();
  return FinishPushAnswer(answer.value(), result.value(), request.step);
}

Result<ReplyBody> Dispatcher::RebuildPush(const Call& call, const PushResult& result) {
  PushRequest push;
  if (call.to.request.type == MessageType::kPushRound) {
    auto round = DecodePushRound(call.body);
    if (!round.ok()) return round.status();
    push = std::move(round.value().push);
  } else {
    auto request = DecodePushRequest(call.body);
    if (!request.ok()) return request.status();
    push = std::move(request).value();
  }
  auto answer = BeginPushAnswer(push);
  if (!answer.ok()) {
    return Status(Code::kAnswerLost, "push: it was applied, but: " + answer.status().message());
  }
  return FinishPushAnswer(answer.value(), result, push.step);
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
    return Status(Code::kProtocol, "set learning rate: unknown flags " + std::to_string(flags));
  }
  const auto at = (flags & kFlagHasCount) != 0 ? std::optional(number) : std::nullopt;
  Status s = tables_.SetLearningRate(table, learning_rate, at);
  if (!s.ok()) return s;
  return ReplyBody();
}

}  // namespace sparsefleet
