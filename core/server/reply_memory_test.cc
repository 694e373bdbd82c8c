#include "server/reply_memory.h"

#include <memory>
#include <string>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

using Kind = ReplyMemory::Verdict::Kind;

struct CountingSink : ReplySink {
  int sent = 0;
  int abandoned = 0;
  void Send(const FrameHeader&, Reply) override { ++sent; }
  void Abandon() override { ++abandoned; }
};

ReplyTo Try(std::uint64_t sequence, const std::shared_ptr<CountingSink>& sink = nullptr,
            MessageType type = MessageType::kPush) {
  ReplyTo to;
  to.sink = sink;
  to.request.type = type;
  to.request.sequence = sequence;
  return to;
}

Reply ReplyOf(std::size_t bytes) { return {false, Body(bytes)}; }

const Test kAgain("a request that ran before is answered from memory", [] {
  ReplyMemory memory;
  Expect(memory.Begin(Try(1)).kind == Kind::kRun);
  memory.Finish(1, ReplyOf(7));
  const auto verdict = memory.Begin(Try(1));
  Expect(verdict.kind == Kind::kAnswered);
  ExpectEqual(verdict.reply.body.bytes().size(), 7u);
});

const Test kAttach("a retry of a request in progress takes over its reply", [] {
  ReplyMemory memory;
  auto first = std::make_shared<CountingSink>();
  auto second = std::make_shared<CountingSink>();
  Expect(memory.Begin(Try(1, first)).kind == Kind::kRun);
  Expect(memory.Begin(Try(1, second)).kind == Kind::kInProgress);
  ExpectEqual(first->abandoned, 1);
  memory.Finish(1, ReplyOf(1)).Send(ReplyOf(1));
  ExpectEqual(first->sent, 0);
  ExpectEqual(second->sent, 1);
});

const Test kStale("an older try that arrives after its retry does not take over its reply", [] {
  ReplyMemory memory;
  auto older = std::make_shared<CountingSink>();
  auto newer = std::make_shared<CountingSink>();
  ReplyTo first = Try(1, older);
  first.request.request_id = 7;
  ReplyTo second = Try(1, newer);
  second.request.request_id = 8;
  Expect(memory.Begin(second).kind == Kind::kRun);
  Expect(memory.Begin(first).kind == Kind::kInProgress);
  ExpectEqual(older->abandoned, 1);
  ExpectEqual(newer->abandoned, 0);
  memory.Finish(1, ReplyOf(1)).Send(ReplyOf(1));
  ExpectEqual(older->sent, 0);
  ExpectEqual(newer->sent, 1);
});

const Test kAcknowledged("an acknowledged request is forgotten and never runs again", [] {
  ReplyMemory memory;
  Expect(memory.Begin(Try(5)).kind == Kind::kRun);
  memory.Finish(5, ReplyOf(1));
  memory.Acknowledge(6);
  const auto verdict = memory.Begin(Try(5));
  Expect(verdict.kind == Kind::kRefused);
  ExpectCode(verdict.status, Code::kInvalidArgument);
  Expect(memory.Begin(Try(6)).kind == Kind::kRun);
});

const Test kOutOfOrder("sequences may arrive in any order", [] {
  ReplyMemory memory;
  Expect(memory.Begin(Try(9)).kind == Kind::kRun);
  Expect(memory.Begin(Try(8)).kind == Kind::kRun);
  memory.Finish(8, ReplyOf(1));
  Expect(memory.Begin(Try(9)).kind == Kind::kInProgress);
});

const Test kOtherType("one sequence for two kinds of request violates the protocol", [] {
  ReplyMemory memory;
  Expect(memory.Begin(Try(1)).kind == Kind::kRun);
  const auto verdict = memory.Begin(Try(1, nullptr, MessageType::kShrink));
  Expect(verdict.kind == Kind::kRefused);
  ExpectCode(verdict.status, Code::kProtocol);
});

const Test kBytes("large unacknowledged replies lose their bytes, oldest first", [] {
  ReplyMemory memory;
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    Expect(memory.Begin(Try(sequence)).kind == Kind::kRun);
    memory.Finish(sequence, ReplyOf(ReplyMemory::kMaxReplyBytes / 2));
  }
  const auto verdict = memory.Begin(Try(1));
  Expect(verdict.kind == Kind::kRefused);
  ExpectCode(verdict.status, Code::kAnswerLost);
  Expect(memory.Begin(Try(3)).kind == Kind::kAnswered);
});

const Test kPushed("the reply to a push that lost its bytes is rebuilt from its result", [] {
  ReplyMemory memory;
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    Expect(memory.Begin(Try(sequence)).kind == Kind::kRun);
    memory.SetPushed(sequence, {.applied = sequence});
    memory.Finish(sequence, ReplyOf(ReplyMemory::kMaxReplyBytes / 2));
  }
  const auto verdict = memory.Begin(Try(1));
  Expect(verdict.kind == Kind::kRebuild);
  ExpectEqual(verdict.pushed.applied, 1u);
});

const Test kExported("applied but unacknowledged requests are exported and restored", [] {
  ReplyMemory memory;
  for (std::uint64_t sequence = 1; sequence <= 4; ++sequence) memory.Begin(Try(sequence));
  memory.Finish(1, ReplyOf(8));
  memory.Finish(2, ReplyOf(8));
  memory.SetPushed(3, {.applied = 7});  // applied, its reply is not complete yet
  memory.Acknowledge(2);
  ReplyMemory restored;
  restored.Acknowledge(memory.acked_below());
  for (const auto& one : memory.Export()) restored.Restore(one);
  Expect(restored.Begin(Try(1)).kind == Kind::kRefused);
  Expect(restored.Begin(Try(2)).kind == Kind::kAnswered);
  const auto pushed = restored.Begin(Try(3));
  Expect(pushed.kind == Kind::kRebuild);
  ExpectEqual(pushed.pushed.applied, 7u);
  ExpectEqual(restored.next_sequence(), 4u);
  Expect(restored.Begin(Try(4)).kind == Kind::kRun, "it was not applied before");
});

const Test kCount("a client that never acknowledges is eventually refused", [] {
  ReplyMemory memory;
  for (std::uint64_t sequence = 1; sequence <= ReplyMemory::kMaxRecords; ++sequence) {
    memory.Begin(Try(sequence));
    memory.Finish(sequence, ReplyOf(8));
  }
  const auto refused = memory.Begin(Try(ReplyMemory::kMaxRecords + 1));
  Expect(refused.kind == Kind::kRefused);
  ExpectCode(refused.status, Code::kTooLarge);
  memory.Acknowledge(100);
  Expect(memory.Begin(Try(ReplyMemory::kMaxRecords + 1)).kind == Kind::kRun);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
