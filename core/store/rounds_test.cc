#include "store/rounds.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

using TimePoint = Rounds::TimePoint;

const TimePoint kLater = std::chrono::steady_clock::now() + std::chrono::hours(1);

// Receives an outcome.
template <typename T>
struct Seen {
  std::optional<Result<T>> result;
  int calls = 0;
  auto callback() {
    return [this](const Result<T>& value) {
      result = value;
      ++calls;
    };
  }
  Status status() const {
    return result ? result->status() : Status(Code::kInternal, "not called");
  }
};

// Rounds without tables: records what was applied.
struct Fixture {
  std::vector<std::vector<float>> applied;  // gradients of the first section
  std::vector<std::uint64_t> steps;
  Status refusal;
  Rounds rounds{
      [this](std::span<const PushSection> sections, std::uint64_t step) -> Result<PushResult> {
        if (!refusal.ok()) return refusal;
        applied.emplace_back();
        if (!sections.empty()) {
          applied.back().assign(sections[0].gradients.begin(), sections[0].gradients.end());
        }
        steps.push_back(step);
        return PushResult{.applied = sections.size()};
      }};

  // Member `rank` is client `rank` + 1, named "w<rank>".
  static Rounds::Caller CallerOf(std::uint32_t rank, std::uint64_t ticket = 1,
                                 TimePoint deadline = kLater) {
    return {{rank + 1, "w" + std::to_string(rank)}, ticket, deadline};
  }
  static RoundMember Member(std::uint32_t rank, std::uint32_t size, bool go_on = false) {
    return {"train", rank, size, go_on};
  }
  static Contribution Dense(std::span<const float> values, std::uint64_t step = 0) {
    Contribution contribution;
    contribution.sections.push_back({"net", {}, values, true});
    contribution.step = step;
    return contribution;
  }
  void Deliver(std::uint32_t rank, std::uint32_t size, std::uint64_t round, Seen<PushResult>& seen,
               std::uint64_t ticket = 1, bool go_on = false) {
    rounds.Deliver(Member(rank, size, go_on), round, Dense(values[rank], rank),
                   CallerOf(rank, ticket), seen.callback());
  }
  const std::vector<std::vector<float>> values = {{1, 2}, {3, 4}, {5, 9}};
};

const Test kMean("a round applies the mean of all members once, with the highest step", [] {
  Fixture f;
  Seen<PushResult> seen[3];
  f.Deliver(2, 3, 7, seen[2]);
  f.Deliver(0, 3, 7, seen[0]);
  ExpectEqual(f.applied.size(), 0u);
  f.Deliver(1, 3, 7, seen[1]);
  Require(f.applied.size() == 1);
  Expect(f.applied[0] == std::vector<float>{9.0F * (1.0F / 3.0F), 15.0F * (1.0F / 3.0F)}, "mean");
  ExpectEqual(f.steps[0], 2u);
  for (const auto& one : seen) {
    ExpectEqual(one.calls, 1);
    ExpectEqual(RequireOk(*one.result).applied, 1u);
  }
});

const Test kOver("the number of a finished round is rejected", [] {
  Fixture f;
  Seen<PushResult> first, again, older, next;
  f.Deliver(0, 1, 7, first);
  f.Deliver(0, 1, 7, again, 2);
  f.Deliver(0, 1, 6, older, 3);
  f.Deliver(0, 1, 8, next, 4);
  ExpectCode(again.status(), Code::kInvalidArgument);
  ExpectCode(older.status(), Code::kInvalidArgument);
  Expect(again.status().message().find("the last one was 7") != std::string::npos);
  RequireOk(next.status());
  ExpectEqual(f.applied.size(), 2u);
});

const Test kDisagree("members that disagree are rejected, and the others keep waiting", [] {
  Fixture f;
  Seen<PushResult> first, other_round, other_size, twice, last;
  f.Deliver(0, 2, 7, first);
  f.Deliver(1, 2, 8, other_round);
  f.Deliver(1, 3, 7, other_size);
  f.Deliver(0, 2, 7, twice, 2);
  ExpectCode(other_round.status(), Code::kInvalidArgument);
  Expect(other_round.status().message().find("for round 7") != std::string::npos,
         other_round.status().message());
  ExpectCode(other_size.status(), Code::kInvalidArgument);
  ExpectCode(twice.status(), Code::kInvalidArgument);
  ExpectEqual(first.calls, 0);
  f.Deliver(1, 2, 7, last);
  RequireOk(first.status());
  RequireOk(last.status());
});

const Test kBadMembers("impossible members are rejected", [] {
  Fixture f;
  const RoundMember bad[] = {
      {"", 0, 1}, {"train", 1, 1}, {"train", 0, 0}, {"train", 0, kMaxGroupSize + 1}};
  for (const RoundMember& member : bad) {
    Seen<PushResult> seen;
    f.rounds.Deliver(member, 1, {}, Fixture::CallerOf(0), seen.callback());
    ExpectCode(seen.status(), Code::kInvalidArgument);
    ExpectCode(f.rounds.Leave(member, {}), Code::kInvalidArgument);
  }
  ExpectEqual(f.rounds.num_groups(), 0u);
});

const Test kLeave("a member that leaves completes the round, and all leaving ends the group", [] {
  Fixture f;
  Seen<PushResult> first, second, third;
  f.Deliver(0, 2, 7, first);
  RequireOk(f.rounds.Leave(Fixture::Member(1, 2), {2, "w1"}));
  RequireOk(first.status());
  Expect(f.applied.at(0) == f.values[0], "alone: its own gradients");
  f.Deliver(1, 2, 8, second);
  ExpectCode(second.status(), Code::kInvalidArgument);
  RequireOk(f.rounds.Leave(Fixture::Member(1, 2), {2, "w1"}));
  ExpectEqual(f.rounds.num_groups(), 1u);
  RequireOk(f.rounds.Leave(Fixture::Member(0, 2), {1, "w0"}));
  ExpectEqual(f.rounds.num_groups(), 0u);
  f.Deliver(0, 1, 1, third);
  RequireOk(third.status());
});

const Test kLost("a lost member ends the round for all, and later ones until it is back", [] {
  Fixture f;
  Seen<PushResult> first, second, later, back, rest;
  f.Deliver(0, 3, 7, first);
  f.Deliver(1, 3, 7, second);
  f.rounds.ForgetOwner(2);
  for (const auto* one : {&first, &second}) {
    ExpectCode(one->status(), Code::kPeerLost);
    Expect(one->status().message().find("rank 1 ('w1')") != std::string::npos);
  }
  f.Deliver(0, 3, 7, later, 2);
  ExpectCode(later.status(), Code::kPeerLost);
  f.Deliver(1, 3, 7, back, 2);
  ExpectEqual(back.calls, 0);
  f.Deliver(0, 3, 7, rest, 3);
  ExpectEqual(rest.calls, 0);
  ExpectEqual(f.applied.size(), 0u);
});

const Test kAllLost(
    "a member arriving after all others were lost gets the error, a new job does not", [] {
      Fixture f;
      Seen<std::uint64_t> early;
      Seen<PushResult> told, late, other;
      f.rounds.AdvanceClock(Fixture::Member(0, 3), 0, {}, Fixture::CallerOf(0), early.callback());
      f.rounds.ForgetOwner(1);
      f.Deliver(1, 3, 7, told);
      ExpectCode(told.status(), Code::kPeerLost);
      Expect(told.status().message().find("rank 0 ('w0')") != std::string::npos);
      f.rounds.ForgetOwner(2);
      ExpectEqual(f.rounds.num_groups(), 1u);
      auto caller = Fixture::CallerOf(1);
      caller.owner.id = 9;
      caller.began = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      f.rounds.Deliver(Fixture::Member(1, 2), 7, Fixture::Dense(f.values[1]), caller,
                       late.callback());
      f.Deliver(0, 2, 7, other);
      RequireOk(late.status());
      RequireOk(other.status());
      // Nobody is left to notify.
      for (std::uint64_t owner : {9, 1}) f.rounds.ForgetOwner(owner);
      ExpectEqual(f.rounds.num_groups(), 0u);
    });

const Test kGoOn("a lost member counts as having left if the group says so", [] {
  Fixture f;
  Seen<PushResult> first, second, alone, returned;
  f.Deliver(0, 3, 7, first, 1, true);
  f.Deliver(1, 3, 7, second, 1, true);
  f.rounds.ForgetOwner(3);  // unknown: nothing happens
  ExpectEqual(first.calls, 0);
  RequireOk(f.rounds.Leave(Fixture::Member(2, 3, true), {3, "w2"}));
  RequireOk(first.status());
  f.Deliver(0, 3, 8, alone, 2, true);
  f.rounds.ForgetOwner(2);
  RequireOk(alone.status());
  f.Deliver(1, 3, 9, returned, 2, true);
  ExpectCode(returned.status(), Code::kPeerLost);
});

const Test kForeignCalls("no call of another client touches a rank whose owner is there", [] {
  Fixture f;
  Seen<PushResult> first, stolen, second;
  Seen<std::uint64_t> joined, clock;
  f.rounds.AdvanceClock(Fixture::Member(1, 2), 4, {}, Fixture::CallerOf(1), joined.callback());
  f.Deliver(0, 2, 7, first);
  const Rounds::Owner stranger{9, "stale", 12};
  const Rounds::Caller caller{stranger, 1, kLater};
  const Status left = f.rounds.Leave(Fixture::Member(1, 2), stranger);
  f.rounds.Deliver(Fixture::Member(1, 2), 7, Fixture::Dense(f.values[2]), caller,
                   stolen.callback());
  f.rounds.AdvanceClock(Fixture::Member(1, 2), 99, {}, caller, clock.callback());
  for (const Status& refused : {left, stolen.status(), clock.status()}) {
    ExpectCode(refused, Code::kNotOwner);
    for (const char* part : {"group 'train'", "rank 1", "'w1'", "'stale' (session 12)"}) {
      Expect(refused.message().find(part) != std::string::npos, refused.message());
    }
  }
  f.rounds.ForgetOwner(9);  // it ends, and no member is lost
  ExpectEqual(first.calls, 0);
  f.Deliver(1, 2, 7, second);
  RequireOk(first.status());
  RequireOk(second.status());
  Expect(f.applied.at(0) == std::vector<float>{2, 3}, "the owner's gradients");
  f.rounds.AdvanceClock(Fixture::Member(1, 2), 5, {}, Fixture::CallerOf(1, 2), joined.callback());
  ExpectEqual(RequireOk(*joined.result), 5u);
});

const Test kSuccessor("a successor to the rank of a lost or left owner starts from scratch", [] {
  for (const bool is_lost : {true, false}) {
    Fixture f;
    Seen<std::uint64_t> clock;
    Seen<PushResult> first, second;
    f.rounds.AdvanceClock(Fixture::Member(1, 2), 4, {}, Fixture::CallerOf(1), clock.callback());
    f.rounds.AdvanceClock(Fixture::Member(0, 2), 1, {}, Fixture::CallerOf(0), clock.callback());
    if (is_lost) {
      f.rounds.ForgetOwner(2);
    } else {
      RequireOk(f.rounds.Leave(Fixture::Member(1, 2), {2, "w1"}));
    }
    const Rounds::Caller successor{{9, "w1", 12}, 1, kLater};
    f.rounds.AdvanceClock(Fixture::Member(1, 2), 0, {}, successor, clock.callback());
    ExpectEqual(RequireOk(*clock.result), 5u);  // the predecessor's count stays in the sum
    f.rounds.AdvanceClock(Fixture::Member(1, 2), 2, {}, successor, clock.callback());
    ExpectEqual(RequireOk(*clock.result), 7u);
    f.Deliver(0, 2, 7, first);
    ExpectEqual(first.calls, 0);
    f.rounds.Deliver(Fixture::Member(1, 2), 7, Fixture::Dense(f.values[1]), successor,
                     second.callback());
    RequireOk(first.status());
    RequireOk(second.status());
    // The rank now belongs to the successor.
    ExpectCode(f.rounds.Leave(Fixture::Member(1, 2), {2, "w1"}), Code::kNotOwner);
    RequireOk(f.rounds.Leave(Fixture::Member(1, 2), {9, "w1"}));
  }
});

const Test kLeftForLost("members leave for one that was lost, which gets an error when it returns",
                        [] {
                          Fixture f;
                          Seen<PushResult> first, returned;
                          Seen<std::uint64_t> joined;
                          f.rounds.AdvanceClock(Fixture::Member(1, 2, true), 1, {},
                                                Fixture::CallerOf(1), joined.callback());
                          f.rounds.ForgetOwner(2);
                          for (int i = 0; i < 2; ++i)
                            RequireOk(f.rounds.Leave(Fixture::Member(1, 2, true), {1, "w0"}));
                          f.Deliver(0, 2, 7, first, 1, true);
                          RequireOk(first.status());
                          f.Deliver(1, 2, 8, returned, 2, true);
                          ExpectCode(returned.status(), Code::kPeerLost);
                        });

const Test kGoneUnreported(
    "an owner that is gone holds no rank, even before its loss is reported", [] {
      bool is_here = true;
      Rounds rounds([](auto, auto) -> Result<PushResult> { return PushResult{}; },
                    [&](std::uint64_t) { return is_here; });
      Seen<std::uint64_t> clock;
      Seen<PushResult> waiting, early, taken;
      rounds.AdvanceClock({"g", 1, 2}, 3, {}, Fixture::CallerOf(1), clock.callback());
      rounds.Deliver({"g", 0, 2}, 7, {}, Fixture::CallerOf(0), waiting.callback());
      const Rounds::Caller successor{{9, "w1", 12}, 1, kLater};
      rounds.Deliver({"g", 1, 2}, 7, {}, successor, early.callback());
      ExpectCode(early.status(), Code::kNotOwner);
      is_here = false;
      rounds.Deliver({"g", 1, 2}, 7, {}, successor, taken.callback());
      ExpectCode(waiting.status(), Code::kPeerLost);
      ExpectEqual(taken.calls, 0);
      rounds.ForgetOwner(2);  // the late report: the rank is the successor's
      ExpectEqual(taken.calls, 0);
      rounds.Deliver({"g", 0, 2}, 7, {}, Fixture::CallerOf(0, 2), waiting.callback());
      RequireOk(taken.status());
      RequireOk(waiting.status());
    });

const Test kDeadline("a deadline withdraws the contribution and names who is missing", [] {
  Fixture f;
  const auto now = std::chrono::steady_clock::now();
  Seen<PushResult> early, late, again;
  f.rounds.Deliver(Fixture::Member(0, 3), 7, Fixture::Dense(f.values[0]),
                   Fixture::CallerOf(0, 1, now + std::chrono::seconds(1)), early.callback());
  f.Deliver(1, 3, 7, late);
  Expect(f.rounds.Expire(now) == now + std::chrono::seconds(1), "the next deadline");
  Expect(f.rounds.Expire(now + std::chrono::seconds(2)) == kLater, "the one after it");
  ExpectCode(early.status(), Code::kDeadlineExceeded);
  const std::string text = early.status().message();
  Expect(
      text.find("2 of 3") != std::string::npos && text.find("rank 2 did not") != std::string::npos,
      text);
  ExpectEqual(late.calls, 0);
  f.Deliver(0, 3, 7, again, 2);
  ExpectEqual(again.calls, 0);
});

const Test kWithdraw("withdrawn calls do not count, even if they arrive after the withdrawal", [] {
  Fixture f;
  Seen<PushResult> given_up, overtaken, other;
  f.Deliver(0, 2, 7, given_up, 4);
  f.rounds.Withdraw(1, 6);
  ExpectCode(given_up.status(), Code::kPeerLost);
  f.Deliver(0, 2, 7, overtaken, 5);
  ExpectCode(overtaken.status(), Code::kPeerLost);
  f.Deliver(1, 2, 7, other);
  ExpectEqual(other.calls, 0);
  f.rounds.WithdrawOne(2, 1);
  ExpectEqual(other.calls, 1);
  ExpectEqual(f.applied.size(), 0u);
});

const Test kRefusal("a refusal, or a merged push that is rejected, goes to all members", [] {
  Fixture f;
  Seen<PushResult> first, second, third, fourth;
  Contribution bad;
  bad.refusal = "key 4 is nan";
  f.rounds.Deliver(Fixture::Member(1, 2), 7, bad, Fixture::CallerOf(1), second.callback());
  f.Deliver(0, 2, 7, first);
  for (const auto* one : {&first, &second}) {
    ExpectCode(one->status(), Code::kNonFinite);
    Expect(one->status().message().find("rank 1 ('w1'): key 4 is nan") != std::string::npos);
  }
  ExpectEqual(f.applied.size(), 0u);
  f.refusal = Status(Code::kNonFinite, "sum");
  f.Deliver(0, 2, 8, third, 2);
  f.Deliver(1, 2, 8, fourth, 2);
  ExpectCode(third.status(), Code::kNonFinite);
  ExpectCode(fourth.status(), Code::kNonFinite);
});

const Test kDeserted("deserted groups make room, others do not", [] {
  Fixture f;
  Seen<std::uint64_t> here;
  Seen<PushResult> first, refused;
  f.rounds.AdvanceClock({"kept", 0, 2}, 1, {}, Fixture::CallerOf(0), here.callback());
  for (std::size_t i = 1; i < kMaxGroups; ++i) {
    RequireOk(f.rounds.Leave({"old-" + std::to_string(i), 0, 2}, {1, "w0"}));
  }
  ExpectEqual(f.rounds.num_groups(), kMaxGroups);
  f.Deliver(0, 2, 7, first);
  ExpectEqual(first.calls, 0);
  ExpectEqual(f.rounds.num_groups(), 2u);
  for (std::size_t i = 2; i < kMaxGroups; ++i) {
    f.rounds.AdvanceClock({"new-" + std::to_string(i), 0, 2}, 1, {}, Fixture::CallerOf(0),
                          here.callback());
  }
  f.rounds.Deliver({"more", 0, 2}, 1, {}, Fixture::CallerOf(0), refused.callback());
  ExpectCode(refused.status(), Code::kTooLarge);
  ExpectEqual(first.calls, 0);
});

const Test kClose("Close ends every wait and rejects later ones", [] {
  Fixture f;
  Seen<PushResult> waiting, later;
  Seen<std::uint64_t> clock;
  f.Deliver(0, 2, 7, waiting);
  f.rounds.AdvanceClock(Fixture::Member(1, 2), 5, 1, Fixture::CallerOf(1), clock.callback());
  f.rounds.Close({Code::kShuttingDown, "over"});
  f.Deliver(1, 2, 7, later);
  ExpectCode(waiting.status(), Code::kShuttingDown);
  ExpectCode(clock.status(), Code::kShuttingDown);
  ExpectCode(later.status(), Code::kShuttingDown);
  ExpectCode(f.rounds.Leave(Fixture::Member(1, 2), {}), Code::kShuttingDown);
});

const Test kClocks("clocks wait for the slowest member that has not left, and add up", [] {
  Fixture f;
  Seen<std::uint64_t> fast, slow, back;
  f.rounds.AdvanceClock(Fixture::Member(0, 3), 5, 2, Fixture::CallerOf(0), fast.callback());
  f.rounds.AdvanceClock(Fixture::Member(1, 3), 3, {}, Fixture::CallerOf(1), slow.callback());
  ExpectEqual(RequireOk(*slow.result), 8u);
  ExpectEqual(fast.calls, 0);
  RequireOk(f.rounds.Leave(Fixture::Member(2, 3), {3, "w2"}));
  ExpectEqual(RequireOk(*fast.result), 8u);
  f.rounds.AdvanceClock(Fixture::Member(1, 3), 2, {}, Fixture::CallerOf(1, 2), back.callback());
  ExpectEqual(RequireOk(*back.result), 8u);  // a clock does not go back
});

const Test kLostClock("a lost member below the bound ends the wait, one above it does not", [] {
  Fixture f;
  Seen<std::uint64_t> one, waiting, enough;
  f.rounds.AdvanceClock(Fixture::Member(1, 2), 3, {}, Fixture::CallerOf(1), one.callback());
  f.rounds.AdvanceClock(Fixture::Member(0, 2), 9, 2, Fixture::CallerOf(0), waiting.callback());
  ExpectEqual(waiting.calls, 0);
  f.rounds.ForgetOwner(2);
  ExpectCode(waiting.status(), Code::kPeerLost);
  f.rounds.AdvanceClock(Fixture::Member(0, 2), 10, 7, Fixture::CallerOf(0, 2), enough.callback());
  ExpectEqual(RequireOk(*enough.result), 13u);
});

const Test kThreads("rounds of many threads are applied one after another, none twice", [] {
  constexpr std::uint32_t kMembers = 4;
  constexpr std::uint64_t kRounds = 300;
  std::atomic<std::uint64_t> applied = 0;
  std::atomic<int> wrong = 0;
  Rounds rounds([&](std::span<const PushSection> sections, std::uint64_t) -> Result<PushResult> {
    ++applied;
    if (sections[0].gradients[0] != 2.5F) ++wrong;
    return PushResult{};
  });
  std::vector<std::jthread> threads;
  for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
    threads.emplace_back([&rounds, &wrong, rank] {
      const std::vector<float> values(1, static_cast<float>(rank + 1));
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        std::atomic<bool> is_done = false;
        rounds.Deliver(Fixture::Member(rank, kMembers), round, Fixture::Dense(values),
                       Fixture::CallerOf(rank, round), [&](const Result<PushResult>& result) {
                         if (!result.ok()) ++wrong;
                         is_done = true;
                         is_done.notify_one();
                       });
        is_done.wait(false);
      }
      if (!rounds.Leave(Fixture::Member(rank, kMembers), {rank + 1, ""}).ok()) ++wrong;
    });
  }
  threads.clear();
  ExpectEqual(applied.load(), kRounds);
  ExpectEqual(wrong.load(), 0);
  ExpectEqual(rounds.num_groups(), 0u);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
