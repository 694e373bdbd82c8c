// What a server remembers of one client's recorded requests, so that a retry is never
// carried out twice.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "server/reply.h"
#include "status/status.h"

namespace sparsefleet {

// Thread-safe.
class ReplyMemory {
 public:
  // A client that never acknowledges costs at most this: further requests are refused, or
  // the oldest replies lose their bytes (not the fact that they were given).
  static constexpr std::size_t kMaxRecords = 65536;
  static constexpr std::size_t kMaxReplyBytes = 64u << 20;

  struct Verdict {
    enum class Kind {
      kRun,         // not seen before: carry it out, then call Finish()
      kInProgress,  // being carried out; its reply will go to the retry
      kAnswered,    // carried out before: send `reply` again
      kRefused,     // send `status`
    };
    Kind kind = Kind::kRun;
    Reply reply;
    Status status;
  };

  // The client has the replies of all sequences below this.
  void Acknowledge(std::uint64_t acked_below);

  Verdict Begin(const ReplyTo& to);
  // Remembers the reply; returns where to send it: to the newest try of the request.
  ReplyTo Finish(std::uint64_t sequence, const Reply& reply);

 private:
  struct Record {
    MessageType type;
    ReplyTo to;
    bool done = false;
    bool bytes_dropped = false;
    Reply reply;
  };
  void DropOldestReplies(std::uint64_t keep);

  std::mutex mutex_;
  std::uint64_t acked_below_ = 0;
  std::size_t reply_bytes_ = 0;
  std::map<std::uint64_t, Record> records_;
};

}  // namespace sparsefleet
