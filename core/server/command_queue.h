// Commands: requests that the program running the server answers, at any time and on any thread.
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

// A client's command, taken from the queue and waiting for an answer. It may outlive the server;
// its answer is then discarded, as is one to a client that has disconnected or given up.
// Thread-safe.
class Command {
 public:
  struct Entry;

  explicit Command(std::shared_ptr<Entry> entry);
  ~Command();  // an unanswered command fails with kInternal
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  const std::string& name() const;
  const std::string& client() const;  // the client's name
  std::uint64_t session() const;      // the client's session number
  std::span<const std::byte> body() const;

  // kInvalidArgument if it was already answered; kTooLarge, which the client gets as well, if the
  // reply exceeds the server's max_frame_bytes.
  Status Reply(Body reply);
  // Does nothing if it was already answered. REQUIRES: !status.ok().
  void Fail(const Status& status);

 private:
  const std::shared_ptr<Entry> entry_;
};

// Commands waiting to be taken, in order of arrival, and those taken but not yet answered. Each
// ends with an answer, at its deadline, or when the queue is closed.
// Thread-safe.
class CommandQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Finish = std::function<void(const Result<ReplyBody>&)>;

  // Limits on the commands waiting to be taken.
  static constexpr std::size_t kMaxWaiting = 4096;
  static constexpr std::size_t kMaxWaitingBytes = 1u << 30;  // or a single larger one

  struct Arrival {
    std::string name;
    std::string client;
    std::uint64_t session = 0;
    std::unique_ptr<std::byte[]> memory;  // holds `body`
    std::span<const std::byte> body;
    TimePoint deadline;
    Finish finish;  // called exactly once, unless Add() failed
  };

  explicit CommandQueue(std::uint64_t max_reply_bytes);
  // Drops unfinished commands; call Close() first if commands already taken may still be answered.
  ~CommandQueue();

  // kTooLarge if too many are waiting; after Drain(), the status it was given.
  Status Add(Arrival arrival);

  // The next command; null if none arrived within `timeout_s`; after Drain(), the status it was
  // given.
  Result<std::unique_ptr<Command>> Next(double timeout_s);

  // Ends commands past their deadline; returns the next deadline.
  TimePoint Expire(TimePoint now);

  // Ends commands not yet taken, and new ones, with `status`; those taken may still be answered.
  void Drain(const Status& status);
  // Drain(), and ends the commands already taken too. `finish` is not called after this returns.
  void Close(const Status& status);

 private:
  friend struct Command::Entry;
  struct State;
  void End(const Status& status, bool also_taken);

  const std::shared_ptr<State> state_;  // shared with commands that were taken
};

}  // namespace sparsefleet
