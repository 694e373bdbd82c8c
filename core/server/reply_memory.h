// Remembers one client's recorded requests and their replies, so that a retry never runs twice.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "server/reply.h"
#include "status/status.h"
#include "sync/mutex.h"

namespace sparsefleet {

// Thread-safe.
class ReplyMemory {
 public:
  // Bounds the cost of a client that never acknowledges: beyond this, requests are rejected, or the
  // oldest replies lose their bytes (but not the fact that they were given).
  static constexpr std::size_t kMaxRecords = 65536;
  static constexpr std::size_t kMaxReplyBytes = 64u << 20;

  struct Verdict {
    enum class Kind {
      kRun,         // new: run it, then call Finish()
      kInProgress,  // running; its reply will go to the retry
      kAnswered,    // ran before: send `reply` again
      kRebuild,     // an applied push: rebuild its reply from `pushed`
      kRefused,     // send `status`
    };
    Kind kind = Kind::kRun;
    Reply reply;
    PushResult pushed;
    Status status;
  };

  // The client has received the replies of all sequences below this.
  void Acknowledge(std::uint64_t acked_below);

  Verdict Begin(const ReplyTo& to);
  // Records the reply; returns its destination: the newest try of the request.
  ReplyTo Finish(std::uint64_t sequence, const Reply& reply);

  // The push is applied. If its reply is lost with the server, or is too large to keep, it is
  // rebuilt from this. Does not allocate.
  void SetPushed(std::uint64_t sequence, const PushResult& result);

  // The same for a remembered reply that consists of the result alone.
  void KeepPushed(std::uint64_t sequence);

  // For snapshots and recovery.
  struct Remembered {
    std::uint64_t sequence = 0;
    MessageType type = MessageType::kPush;
    bool is_pushed = false;  // `pushed` instead of `reply`
    PushResult pushed;
    Reply reply;
  };
  std::vector<Remembered> Export() const;  // of requests that were applied
  void Restore(const Remembered& remembered);
  std::uint64_t acked_below() const;
  std::uint64_t next_sequence() const;  // greater than all seen

 private:
  struct Record {
    MessageType type;
    ReplyTo to;
    bool done = false;
    bool bytes_dropped = false;
    std::optional<PushResult> pushed;
    Reply reply;
  };
  void DropOldestReplies(std::uint64_t keep) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::uint64_t acked_below_ GUARDED_BY(mutex_) = 0;
  std::uint64_t next_sequence_ GUARDED_BY(mutex_) = 1;
  std::size_t reply_bytes_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, Record> records_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
