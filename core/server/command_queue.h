// Commands: requests that the program around the server answers, when and from where it likes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "server/reply.h"
#include "status/status.h"

namespace sparsefleet {

// One command of a client, taken to be answered. It may outlive the server: answers then go
// nowhere, as those to a client that is gone or has given up.
// Thread-safe.
class Command {
 public:
  struct Entry;

  explicit Command(std::shared_ptr<Entry> entry);
  ~Command();  // not answered until now: the client is told so, with kInternal
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  const std::string& name() const;
  const std::string& client() const;  // its name
  std::span<const std::byte> body() const;

  // kInvalidArgument if it was answered before; kTooLarge, of which the client is told as
  // well, if the reply is over the server's max_frame_bytes.
  Status Reply(Body reply);
  // Does nothing if it was answered before. REQUIRES: !status.ok().
  void Fail(const Status& status);

 private:
  const std::shared_ptr<Entry> entry_;
};

// Commands that have arrived and wait to be taken, in their order, and those taken and not
// answered yet: each ends with an answer, at its deadline, or when the queue is closed.
// Thread-safe.
class CommandQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Finish = std::function<void(const Result<ReplyBody>&)>;

  // Of those that wait to be taken.
  static constexpr std::size_t kMaxWaiting = 4096;
  static constexpr std::size_t kMaxWaitingBytes = 1u << 30;  // or one that is larger

  struct Arrival {
    std::string name;
    std::string client;
    std::unique_ptr<std::byte[]> memory;  // that `body` lies in
    std::span<const std::byte> body;
    TimePoint deadline;
    Finish finish;  // called once, unless Add() failed
  };

  explicit CommandQueue(std::uint64_t max_reply_bytes);
  // Forgets those that have not ended; Close() it first if commands taken may still be answered.
  ~CommandQueue();

  // kTooLarge if too many wait; the status given to Drain() after that.
  Status Add(Arrival arrival);

  // The next command; null if none came within `timeout_s`; after Drain() its status.
  Result<std::unique_ptr<Command>> Next(double timeout_s);

  // Ends those past their deadline; returns the next one.
  TimePoint Expire(TimePoint now);

  // Those not taken, and new ones, end with `status`; those taken may still be answered.
  void Drain(const Status& status);
  // Drains, and ends all others too; no `finish` is called after the return.
  void Close(const Status& status);

 private:
  friend struct Command::Entry;
  struct State;
  void End(const Status& status, bool also_taken);

  const std::shared_ptr<State> state_;  // shared with the commands taken
};

}  // namespace sparsefleet
