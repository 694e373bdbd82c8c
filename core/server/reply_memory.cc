#include "server/reply_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sync/mutex.h"

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
  MutexLock lock(mutex_);
  if (acked_below <= acked_below_) return;
  acked_below_ = acked_below;
  next_sequence_ = std::max(next_sequence_, acked_below);
  for (auto it = records_.begin(); it != records_.end() && it->first < acked_below;) {
    // One still in progress stays until it finishes; Finish() then drops it.
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
  MutexLock lock(mutex_);
  const auto it = records_.find(sequence);
  if (it == records_.end()) {
    if (sequence < acked_below_) {
      return Refuse(Code::kInvalidArgument, to,
                    "its reply was already acknowledged, so it does not run again");
    }
    if (records_.size() >= kMaxRecords) {
      return Refuse(Code::kTooLarge, to,
                    std::to_string(kMaxRecords) + " replies are not yet acknowledged");
    }
    records_.emplace(sequence, Record{to.request.type, to, false, false, {}, {}});
    next_sequence_ = std::max(next_sequence_, sequence + 1);
    return {};
  }
  Record& record = it->second;
  if (record.type != to.request.type) {
    return Refuse(Code::kProtocol, to,
                  std::string("that sequence belongs to a ") + MessageName(record.type));
  }
  Verdict verdict;
  if (!record.done) {
    verdict.kind = Verdict::Kind::kInProgress;
    // A client numbers its tries, so an older one that was delayed can be told by its id: nobody
    // waits on its connection any more.
    const bool is_stale = to.request.request_id < record.to.request.request_id;
    const ReplyTo before = is_stale ? to : std::exchange(record.to, to);
    lock.unlock();
    before.Abandon();
    return verdict;
  }
  if (record.bytes_dropped && record.pushed) {
    verdict.kind = Verdict::Kind::kRebuild;
    verdict.pushed = *record.pushed;
    return verdict;
  }
  if (record.bytes_dropped) {
    return Refuse(Code::kAnswerLost, to,
                  "it was applied, but its reply is no longer remembered: over " +
                      std::to_string(kMaxReplyBytes) + " bytes are not acknowledged");
  }
  verdict.kind = Verdict::Kind::kAnswered;
  verdict.reply = record.reply;
  return verdict;
}

ReplyTo ReplyMemory::Finish(std::uint64_t sequence, const Reply& reply) {
  MutexLock lock(mutex_);
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
    // All smaller ones fit within the limit together.
    constexpr std::size_t kSmall = kMaxReplyBytes / kMaxRecords;
    if (!record.done || sequence == keep || record.reply.body.bytes().size() < kSmall) continue;
    reply_bytes_ -= record.reply.body.bytes().size();
    record.reply = {};
    record.bytes_dropped = true;
  }
}

void ReplyMemory::SetPushed(std::uint64_t sequence, const PushResult& result) {
  MutexLock lock(mutex_);
  const auto it = records_.find(sequence);
  if (it != records_.end()) it->second.pushed = result;
}

void ReplyMemory::KeepPushed(std::uint64_t sequence) {
  MutexLock lock(mutex_);
  const auto it = records_.find(sequence);
  if (it == records_.end() || !it->second.done || it->second.reply.error) return;
  Record& record = it->second;
  const auto result = DecodePushResult(record.reply.body.bytes());
  if (!result.ok()) return;
  reply_bytes_ -= record.reply.body.bytes().size();
  record.reply = {};
  record.pushed = result.value();
  record.bytes_dropped = true;
}

std::vector<ReplyMemory::Remembered> ReplyMemory::Export() const {
  MutexLock lock(mutex_);
  std::vector<Remembered> all;
  for (const auto& [sequence, record] : records_) {
    if (sequence < acked_below_ || (!record.done && !record.pushed)) continue;
    if (record.bytes_dropped && !record.pushed) continue;
    Remembered one{sequence, record.type, record.pushed.has_value(), {}, {}};
    if (record.pushed) {
      one.pushed = *record.pushed;
    } else {
      one.reply = record.reply;
    }
    all.push_back(std::move(one));
  }
  return all;
}

void ReplyMemory::Restore(const Remembered& remembered) {
  MutexLock lock(mutex_);
  next_sequence_ = std::max(next_sequence_, remembered.sequence + 1);
  if (remembered.sequence < acked_below_) return;
  Record& record = records_[remembered.sequence];
  reply_bytes_ -= record.reply.body.bytes().size();
  record.type = remembered.type;
  record.done = true;
  record.bytes_dropped = remembered.is_pushed;
  record.pushed.reset();
  if (remembered.is_pushed) record.pushed = remembered.pushed;
  record.reply = remembered.reply;
  reply_bytes_ += record.reply.body.bytes().size();
}

std::uint64_t ReplyMemory::acked_below() const {
  MutexLock lock(mutex_);
  return acked_below_;
}

std::uint64_t ReplyMemory::next_sequence() const {
  MutexLock lock(mutex_);
  return next_sequence_;
}

}  // namespace sparsefleet
