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

const Test kAgain("a request carried out before is answered from memory", [] {
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

const Test kAcknowledged("an acknowledged request is forgotten and never carried out again", [] {
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

const Test kOtherType("one sequence for two kinds of request is against the protocol", [] {
  ReplyMemory memory;
  Expect(memory.Begin(Try(1)).kind == Kind::kRun);
  const auto verdict = memory.Begin(Try(1, nullptr, MessageType::kShrink));
  Expect(verdict.kind == Kind::kRefused);
  ExpectCode(verdict.status, Code::kProtocol);
});

const Test kBytes("large replies not acknowledged lose their bytes, oldest first", [] {
  ReplyMemory memory;
  for (std::uint64_t sequence = 1; sequence <= 3; ++sequence) {
    Expect(memory.Begin(Try(sequence)).kind == Kind::kRun);
    memory.Finish(sequence, ReplyOf(ReplyMemory::kMaxReplyBytes / 2));
  }
  const auto verdict = memory.Begin(Try(1));
  Expect(verdict.kind == Kind::kRefused);
  ExpectCode(verdict.status, Code::kTooLarge);
  Expect(memory.Begin(Try(3)).kind == Kind::kAnswered);
});

const Test kCount("a client that never acknowledges is refused in the end", [] {
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
