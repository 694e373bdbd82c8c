#include "server/command_queue.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "store/deadline.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

using std::chrono::steady_clock;

std::string Quoted(const std::string& name) { return "command '" + name + "'"; }

}  // namespace

using Entries = std::map<std::uint64_t, std::shared_ptr<Command::Entry>>;  // in order of arrival

struct CommandQueue::State {
  explicit State(std::uint64_t most) : max_reply_bytes(most) {}

  void Leave(Entries::iterator waits) REQUIRES(mutex);

  const std::uint64_t max_reply_bytes;
  Mutex mutex;
  CondVar changed;
  std::uint64_t next_id GUARDED_BY(mutex) = 1;
  Entries waiting GUARDED_BY(mutex);
  std::size_t waiting_bytes GUARDED_BY(mutex) = 0;
  Entries leaving GUARDED_BY(mutex);  // taken or ending; kept until the outcome is sent
  Status closed GUARDED_BY(mutex);    // not ok once drained
};

struct Command::Entry {
  Entry(std::shared_ptr<CommandQueue::State> of, std::uint64_t number,
        CommandQueue::Arrival arrived)
      : state(std::move(of)), id(number), arrival(std::move(arrived)) {}

  // Sends the outcome and returns true, or returns false if one was sent before. Either way the
  // outcome is on its way when it returns.
  bool Finish(const Result<ReplyBody>& outcome) {
    {
      const MutexLock lock(mutex);
      if (!arrival.finish) return false;
      if (!outcome.ok()) ended = outcome.status();
      std::exchange(arrival.finish, nullptr)(outcome);
    }
    const MutexLock lock(state->mutex);
    state->leaving.erase(id);
    return true;
  }

  Status Late() const {
    state->mutex.AssertHeld();
    char waited[32];
    std::snprintf(waited, sizeof(waited), "%.3g s",
                  std::chrono::duration<double>(arrival.deadline - since).count());
    return {
        Code::kDeadlineExceeded,
        Quoted(arrival.name) +
            (is_taken ? " was not answered within " + std::string(waited) +
                            ": its handler is still running"
                      : " was not taken within " + std::string(waited) +
                            ": the server's program takes no commands, or is busy with others")};
  }

  void MarkTaken() {
    state->mutex.AssertHeld();
    is_taken = true;
  }

  const std::shared_ptr<CommandQueue::State> state;
  const std::uint64_t id;
  const steady_clock::time_point since = steady_clock::now();
  CommandQueue::Arrival arrival;
  bool is_taken GUARDED_BY(state->mutex) = false;
  Mutex mutex;  // held while the outcome is sent; locked before state->mutex
  bool is_answered GUARDED_BY(mutex) = false;  // by the server's program
  Status ended GUARDED_BY(mutex);              // what the client was sent before that
};

void CommandQueue::State::Leave(Entries::iterator waits) {
  waiting_bytes -= waits->second->arrival.body.size();
  leaving.insert(waiting.extract(waits));
}

Command::Command(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
Command::~Command() {
  Status status(Code::kInternal, "not answered");  // short enough to need no allocation
  try {
    status = {Code::kInternal, Quoted(name()) + " was dropped by its handler without an answer"};
  } catch (const std::bad_alloc&) {
  }
  Fail(status);
}

const std::string& Command::name() const { return entry_->arrival.name; }
const std::string& Command::client() const { return entry_->arrival.client; }
std::uint64_t Command::session() const { return entry_->arrival.session; }
std::span<const std::byte> Command::body() const { return entry_->arrival.body; }

Status Command::Reply(Body reply) {
  {
    const MutexLock lock(entry_->mutex);
    if (std::exchange(entry_->is_answered, true)) {
      return {Code::kInvalidArgument, Quoted(name()) + " was already answered"};
    }
  }
  const std::uint64_t most = entry_->state->max_reply_bytes;
  if (reply.size() > most) {
    const Status status(Code::kTooLarge,
                        Quoted(name()) + ": the reply has " + std::to_string(reply.size()) +
                            " bytes, but the server's max_frame_bytes is " + std::to_string(most));
    entry_->Finish(status);
    return status;
  }
  if (entry_->Finish(ReplyBody(std::move(reply)))) return Status::Ok();
  const MutexLock lock(entry_->mutex);
  return entry_->ended.ok() ? entry_->ended : entry_->ended.WithPrefix("the reply came too late: ");
}

void Command::Fail(const Status& status) {
  {
    const MutexLock lock(entry_->mutex);
    if (std::exchange(entry_->is_answered, true)) return;
  }
  entry_->Finish(status);
}

CommandQueue::CommandQueue(std::uint64_t max_reply_bytes)
    : state_(std::make_shared<State>(max_reply_bytes)) {}
CommandQueue::~CommandQueue() {
  Entries forgotten;  // breaks the reference cycle between commands and the state
  const MutexLock lock(state_->mutex);
  forgotten.swap(state_->waiting);
  forgotten.merge(state_->leaving);
  for (const auto& [id, entry] : forgotten) entry->arrival.finish = nullptr;
}

Status CommandQueue::Add(Arrival arrival) {
  const std::size_t bytes = arrival.body.size();
  {
    const MutexLock lock(state_->mutex);
    if (!state_->closed.ok()) return state_->closed;
    const bool is_full = state_->waiting.size() >= kMaxWaiting;
    if (is_full || (!state_->waiting.empty() && state_->waiting_bytes + bytes > kMaxWaitingBytes)) {
      return {Code::kTooLarge,
              Quoted(arrival.name) + ": " + std::to_string(state_->waiting.size()) +
                  " commands of " + std::to_string(state_->waiting_bytes) +
                  " bytes are already waiting on this server; the limits are " +
                  std::to_string(kMaxWaiting) + " and " + std::to_string(kMaxWaitingBytes)};
    }
    const std::uint64_t id = state_->next_id;
    state_->waiting.emplace(id, std::make_shared<Command::Entry>(state_, id, std::move(arrival)));
    state_->waiting_bytes += bytes;
    ++state_->next_id;
  }
  state_->changed.notify_one();
  return Status::Ok();
}

Result<std::unique_ptr<Command>> CommandQueue::Next(double timeout_s) {
  const auto deadline = DeadlineAfter(timeout_s);
  MutexLock lock(state_->mutex);
  const bool came = state_->changed.WaitUntil(
      state_->mutex, deadline,
      [&]() REQUIRES(state_->mutex) { return !state_->waiting.empty() || !state_->closed.ok(); });
  if (!state_->closed.ok()) return state_->closed;
  if (!came) return std::unique_ptr<Command>();
  const auto first = state_->waiting.begin();
  auto command = std::make_unique<Command>(first->second);
  first->second->MarkTaken();
  state_->Leave(first);
  return command;
}

CommandQueue::TimePoint CommandQueue::Expire(TimePoint now) {
  TimePoint next = TimePoint::max();
  std::vector<std::pair<std::shared_ptr<Command::Entry>, Status>> late;
  {
    const MutexLock lock(state_->mutex);
    const auto is_late = [&](const Command::Entry& entry) {
      if (entry.arrival.deadline <= now) return true;
      next = std::min(next, entry.arrival.deadline);
      return false;
    };
    for (const auto& [id, entry] : state_->leaving) {
      if (is_late(*entry)) late.emplace_back(entry, entry->Late());
    }
    for (auto it = state_->waiting.begin(); it != state_->waiting.end();) {
      const auto here = it++;
      if (!is_late(*here->second)) continue;
      late.emplace_back(here->second, here->second->Late());
      state_->Leave(here);
    }
  }
  for (const auto& [entry, status] : late) entry->Finish(status);
  return next;
}

void CommandQueue::Drain(const Status& status) { End(status, false); }
void CommandQueue::Close(const Status& status) { End(status, true); }

void CommandQueue::End(const Status& status, bool also_taken) {
  std::vector<std::shared_ptr<Command::Entry>> ended;
  {
    const MutexLock lock(state_->mutex);
    if (state_->closed.ok()) state_->closed = status;
    while (!state_->waiting.empty()) {
      ended.push_back(state_->waiting.begin()->second);
      state_->Leave(state_->waiting.begin());
    }
    if (also_taken) {
      for (const auto& [id, entry] : state_->leaving) ended.push_back(entry);
    }
  }
  state_->changed.notify_all();
  for (const auto& entry : ended) {
    entry->Finish(status.WithPrefix(Quoted(entry->arrival.name) + ": "));
  }
}

}  // namespace sparsefleet
