// A dispatcher with tables and no sockets, to be fed frames of any kind.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/dispatcher.h"
#include "testing/frame_corpus.h"
#include "transport/frame.h"

namespace sparsefleet::testing {

// Counts replies. Not thread-safe.
struct TallySink : ReplySink {
  std::uint64_t replies = 0;
  std::uint64_t errors = 0;
  std::uint64_t abandoned = 0;
  Reply last;
  void Send(const FrameHeader&, Reply reply) override {
    ++replies;
    errors += reply.error ? 1 : 0;
    last = std::move(reply);
  }
  void Abandon() override { ++abandoned; }
};

// Runs jobs immediately, on the caller's thread. Not thread-safe.
class FuzzTarget {
 public:
  static constexpr std::uint64_t kMaxFrameBytes = 1 << 20;

  FuzzTarget()
      : sessions_(std::chrono::hours(1)),
        rounds_([this](std::span<const PushSection> sections, std::uint64_t step) {
          return tables_.Push(sections, step);
        }),
        dispatcher_(Options(), Hooks(), tables_, coordinator_, rounds_, commands_, sessions_) {
    for (const auto& spec : CorpusSparseTables()) (void)tables_.Define(spec);
    for (const auto& spec : CorpusDenseTables()) (void)tables_.Define(spec);
    Rejoin();
  }

  // Handles a frame's bytes like a connection, without the connection.
  void Feed(std::span<const std::byte> frame) {
    if (frame.size() < kFrameHeaderBytes) return;
    auto header = DecodeFrameHeader(frame.first<kFrameHeaderBytes>(), kMaxFrameBytes);
    if (!header.ok()) return;
    const auto rest = frame.subspan(kFrameHeaderBytes);
    if (header.value().body_bytes > rest.size()) return;  // a connection would wait for more
    // Memory of exactly its size, so that a sanitizer sees a read beyond it.
    const std::size_t size = header.value().body_bytes;
    const auto body = std::make_unique_for_overwrite<std::byte[]>(size);
    std::copy_n(rest.begin(), size, body.get());
    if (header.value().type == MessageType::kHello) {
      if (dispatcher_.Hello({body.get(), size}, "fuzz").ok()) ++greeted_;
      return;
    }
    ++handled_;
    (void)dispatcher_.Handle(session_, {body.get(), size}, ReplyTo{sink_, header.value()});
    // A client that has said goodbye, or whose place another one took, has nothing more to say.
    const MessageType type = header.value().type;
    if (type == MessageType::kGoodbye || type == MessageType::kResume) Rejoin();
  }

  // Takes a waiting command and answers it with its body; false if there is none.
  bool AnswerCommand() {
    auto command = commands_.Next(0);
    if (!command.ok() || command.value() == nullptr) return false;
    const auto body = command.value()->body();
    return command.value()->Reply({body.begin(), body.end()}).ok();
  }

  // Ends all waits as if their deadlines had passed.
  void ExpireAll() {
    coordinator_.Expire(Coordinator::TimePoint::max());
    rounds_.Expire(Coordinator::TimePoint::max());
    commands_.Expire(CommandQueue::TimePoint::max());
  }

  // Creates a new client, since a damaged frame may have acknowledged all future replies of the old
  // one.
  void Rejoin() {
    HelloRequest hello;
    hello.client_id = next_client_++;
    hello.client_name = "fuzz";
    if (session_ != nullptr) {
      coordinator_.ForgetOwner(session_->id());
      rounds_.ForgetOwner(session_->id());
      sessions_.End(*session_);
    }
    session_ = sessions_.Join(hello, "fuzz", std::chrono::steady_clock::now()).session;
  }

  TableSet& tables() { return tables_; }
  const TallySink& sink() const { return *sink_; }
  std::uint64_t handled() const { return handled_; }
  std::uint64_t greeted() const { return greeted_; }

 private:
  static DispatcherOptions Options() {
    DispatcherOptions options;
    options.max_frame_bytes = kMaxFrameBytes;
    options.max_dense_bytes = 1 << 20;
    return options;
  }
  static DispatcherHooks Hooks() {
    DispatcherHooks hooks;
    hooks.run_job = [](const std::function<void()>& job) { job(); };
    hooks.on_wait = [](Coordinator::TimePoint) {};
    hooks.on_shutdown_request = [] {};
    hooks.add_stats = [](StatMap&) {};
    hooks.log = [](int, const std::string&) {};
    return hooks;
  }

  TableSet tables_;
  Coordinator coordinator_;
  SessionTable sessions_;
  Rounds rounds_;
  CommandQueue commands_{kMaxFrameBytes};
  Dispatcher dispatcher_;
  std::shared_ptr<TallySink> sink_ = std::make_shared<TallySink>();
  std::shared_ptr<Session> session_;
  std::uint64_t next_client_ = 1;
  std::uint64_t handled_ = 0;
  std::uint64_t greeted_ = 0;
};

}  // namespace sparsefleet::testing
