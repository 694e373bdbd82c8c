#include "server/reply_memory.h"

#include <string>
#include <utility>

namespace sparsefleet {
namespace {

using Verdict = ReplyMemory::Verdict;

Verdict Refuse(Code code, const ReplyTo& to, const std::string& why) {
  Verdict verdict;
  verdict.kind = Verdict::Kind::kRefused;
  verdict.status = {code, std::string(MessageName(to.request.type)) + " with sequence " +
                              std::to_string(to.request.sequence) + ": " + why};
  return verdict;
}

}  // namespace

void ReplyMemory::Acknowledge(std::uint64_t acked_below) {
  std::lock_guard lock(mutex_);
  if (acked_below <= acked_below_) return;
  acked_below_ = acked_below;
  for (auto it = records_.begin(); it != records_.end() && it->first < acked_below;) {
    // One still in progress stays until its end; Finish() then drops it.
    if (!it->second.done) {
      ++it;
      continue;
    }
    reply_bytes_ -= it->second.reply.body.bytes().size();
    it = records_.erase(it);
  }
}

ReplyMemory::Verdict ReplyMemory::Begin(const ReplyTo& to) {
  const std::uint64_t sequence = to.request.sequence;
  std::unique_lock lock(mutex_);
  const auto it = records_.find(sequence);
  if (it == records_.end()) {
    if (sequence < acked_below_) {
      return Refuse(Code::kInvalidArgument, to,
                    "its reply was acknowledged already, it is not carried out again");
    }
    if (records_.size() >= kMaxRecords) {
      return Refuse(Code::kTooLarge, to,
                    std::to_string(kMaxRecords) + " replies are not acknowledged yet");
    }
    records_.emplace(sequence, Record{to.request.type, to, false, false, {}});
    return {};
  }
  Record& record = it->second;
  if (record.type != to.request.type) {
    return Refuse(Code::kProtocol, to,
                  std::string("that sequence was a ") + MessageName(record.type));
  }
  Verdict verdict;
  if (!record.done) {
    verdict.kind = Verdict::Kind::kInProgress;
    const ReplyTo before = std::exchange(record.to, to);
    lock.unlock();
    before.Abandon();
    return verdict;
  }
  if (record.bytes_dropped) {
    return Refuse(Code::kTooLarge, to,
                  "it was carried out, but its reply is no longer remembered: over " +
                      std::to_string(kMaxReplyBytes) + " bytes are not acknowledged");
  }
  verdict.kind = Verdict::Kind::kAnswered;
  verdict.reply = record.reply;
  return verdict;
}

ReplyTo ReplyMemory::Finish(std::uint64_t sequence, const Reply& reply) {
  std::lock_guard lock(mutex_);
  const auto it = records_.find(sequence);
  if (it == records_.end() || it->second.done) return {};
  Record& record = it->second;
  const ReplyTo to = std::exchange(record.to, {});
  if (sequence < acked_below_) {
    records_.erase(it);
    return to;
  }
  record.done = true;
  record.reply = reply;
  reply_bytes_ += reply.body.bytes().size();
  if (reply_bytes_ > kMaxReplyBytes) DropOldestReplies(sequence);
  return to;
}

void ReplyMemory::DropOldestReplies(std::uint64_t keep) {
  for (auto& [sequence, record] : records_) {
    if (reply_bytes_ <= kMaxReplyBytes) return;
    // All that are smaller fit into the limit together.
    constexpr std::size_t kSmall = kMaxReplyBytes / kMaxRecords;
    if (!record.done || sequence == keep || record.reply.body.bytes().size() < kSmall) continue;
    reply_bytes_ -= record.reply.body.bytes().size();
    record.reply = {};
    record.bytes_dropped = true;
  }
}

}  // namespace sparsefleet
