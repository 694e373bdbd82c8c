#include "server/command_queue.h"

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

constexpr double kTimeout_s = 20;
const auto kLater = std::chrono::hours(1);

Body BytesOf(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Outcomes of the commands added through it, in order.
struct Client {
  explicit Client(CommandQueue& to) : queue(to) {}

  Status Send(const std::string& name, const std::string& body = "",
              std::chrono::nanoseconds time = kLater) {
    CommandQueue::Arrival arrival;
    arrival.name = name;
    arrival.client = "worker-0";
    arrival.memory = std::make_unique<std::byte[]>(body.size());
    std::ranges::copy(BytesOf(body), arrival.memory.get());
    arrival.body = {arrival.memory.get(), body.size()};
    arrival.deadline = std::chrono::steady_clock::now() + time;
    const std::size_t place = outcomes.size();
    outcomes.emplace_back();
    arrival.finish = [this, place](const Result<ReplyBody>& outcome) {
      Expect(!outcomes[place].has_value(), "answered twice");
      outcomes[place] = outcome;
    };
    return queue.Add(std::move(arrival));
  }
  Status StatusOf(std::size_t place) const {
    Require(outcomes[place].has_value(), "no outcome yet");
    return outcomes[place]->status();
  }

  CommandQueue& queue;
  std::vector<std::optional<Result<ReplyBody>>> outcomes;
};

std::unique_ptr<Command> Take(CommandQueue& queue) {
  auto command = RequireOk(queue.Next(kTimeout_s));
  Require(command != nullptr, "no command arrived");
  return command;
}

const Test kOrder("commands are taken in order and answered in any order", [] {
  CommandQueue queue(100);
  Client client(queue);
  RequireOk(client.Send("first", "abc"));
  RequireOk(client.Send("second"));
  const auto first = Take(queue);
  const auto second = Take(queue);
  ExpectEqual(first->name(), std::string("first"));
  ExpectEqual(first->client(), std::string("worker-0"));
  Expect(std::ranges::equal(first->body(), BytesOf("abc")));
  Expect(RequireOk(queue.Next(0)) == nullptr, "there is no third");
  RequireOk(second->Reply(BytesOf("2")));
  Expect(!client.outcomes[0].has_value(), "the first is still open");
  first->Fail({Code::kNotFound, "nothing here"});
  ExpectCode(client.StatusOf(0), Code::kNotFound);
  Expect(std::ranges::equal(client.outcomes[1]->value().bytes(), BytesOf("2")));
});

const Test kOnce("a command has one answer; one dropped unanswered fails", [] {
  CommandQueue queue(100);
  Client client(queue);
  RequireOk(client.Send("twice"));
  RequireOk(client.Send("never"));
  {
    const auto command = Take(queue);
    RequireOk(command->Reply({}));
    ExpectCode(command->Reply({}), Code::kInvalidArgument);
    command->Fail({Code::kIo, "too late"});
    Take(queue);
  }
  ExpectCode(client.StatusOf(0), Code::kOk);
  ExpectCode(client.StatusOf(1), Code::kInternal);
});

const Test kLarge("a reply over the limit is kTooLarge on both sides", [] {
  CommandQueue queue(4);
  Client client(queue);
  RequireOk(client.Send("fits"));
  RequireOk(client.Send("too large"));
  RequireOk(Take(queue)->Reply(BytesOf("1234")));
  ExpectCode(Take(queue)->Reply(BytesOf("12345")), Code::kTooLarge);
  ExpectCode(client.StatusOf(0), Code::kOk);
  ExpectCode(client.StatusOf(1), Code::kTooLarge);
});

const Test kFull("no more commands than the limit wait; taking one makes room", [] {
  CommandQueue queue(100);
  Client client(queue);
  client.outcomes.reserve(CommandQueue::kMaxWaiting + 10);
  for (std::size_t i = 0; i < CommandQueue::kMaxWaiting; ++i) RequireOk(client.Send("many"));
  ExpectCode(client.Send("one more"), Code::kTooLarge);
  const auto taken = Take(queue);
  RequireOk(client.Send("fits again"));
});

const Test kExpire("commands end at their deadline, taken or not; late answers are discarded", [] {
  CommandQueue queue(100);
  Client client(queue);
  const auto now = std::chrono::steady_clock::now();
  RequireOk(client.Send("taken", "", std::chrono::seconds(1)));
  const auto taken = Take(queue);
  RequireOk(client.Send("waits", "", std::chrono::seconds(1)));
  RequireOk(client.Send("has time"));
  const auto next = queue.Expire(now + std::chrono::minutes(1));
  Expect(next > now + std::chrono::minutes(1) && next < CommandQueue::TimePoint::max());
  ExpectCode(client.StatusOf(0), Code::kDeadlineExceeded);
  ExpectCode(client.StatusOf(1), Code::kDeadlineExceeded);
  ExpectCode(taken->Reply(BytesOf("late")), Code::kDeadlineExceeded);
  ExpectEqual(Take(queue)->name(), std::string("has time"));
  Expect(queue.Expire(now) == CommandQueue::TimePoint::max());
});

const Test kDrain("after Drain, waiting commands fail and those taken may be answered", [] {
  CommandQueue queue(100);
  Client client(queue);
  RequireOk(client.Send("taken"));
  RequireOk(client.Send("waits"));
  const auto taken = Take(queue);
  queue.Drain({Code::kShuttingDown, "the end"});
  ExpectCode(client.StatusOf(1), Code::kShuttingDown);
  ExpectCode(client.Send("new"), Code::kShuttingDown);
  ExpectCode(queue.Next(kTimeout_s).status(), Code::kShuttingDown);
  RequireOk(taken->Reply({}));
  ExpectCode(client.StatusOf(0), Code::kOk);
});

const Test kClose("Close ends all commands and wakes waiters; commands outlive the queue", [] {
  auto queue = std::make_unique<CommandQueue>(100);
  Client client(*queue);
  RequireOk(client.Send("taken"));
  const auto taken = Take(*queue);
  std::thread waiter([&] { ExpectCode(queue->Next(kTimeout_s).status(), Code::kShuttingDown); });
  queue->Close({Code::kShuttingDown, "the end"});
  waiter.join();
  ExpectCode(client.StatusOf(0), Code::kShuttingDown);
  queue.reset();
  ExpectCode(taken->Reply({}), Code::kShuttingDown);
});

const Test kThreads("each of many commands has one answer, amid deadlines and a close", [] {
  constexpr std::size_t kCommands = 2000;
  CommandQueue queue(100);
  std::vector<std::atomic<int>> answers(kCommands);
  std::atomic<bool> expiring{true};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int n = 0;; ++n) {
        auto command = queue.Next(kTimeout_s);
        if (!command.ok()) return;
        if (n % 3 != 0) (void)command.value()->Reply({});
      }
    });
  }
  threads.emplace_back([&] {
    while (expiring) queue.Expire(std::chrono::steady_clock::now());
  });
  std::size_t refused = 0;
  for (std::size_t i = 0; i < kCommands; ++i) {
    CommandQueue::Arrival arrival;
    arrival.deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(i % 50);
    arrival.finish = [&answers, i](const Result<ReplyBody>&) { ++answers[i]; };
    if (!queue.Add(std::move(arrival)).ok()) {
      ++answers[i];
      ++refused;
    }
  }
  queue.Close({Code::kShuttingDown, "the end"});
  expiring = false;
  for (auto& thread : threads) thread.join();
  for (const auto& count : answers) ExpectEqual(count.load(), 1);
  Expect(refused < kCommands);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
