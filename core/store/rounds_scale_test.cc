// Groups with many members: what they answer must not depend on how their state is kept.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "store/coordinator.h"
#include "store/rounds.h"
#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const Rounds::TimePoint kLater = std::chrono::steady_clock::now() + std::chrono::hours(1);

Rounds::Caller CallerOf(std::uint32_t rank, std::uint64_t ticket) {
  return {{rank + 1, "w" + std::to_string(rank)}, ticket, kLater};
}

Result<PushResult> ApplyNothing(std::span<const PushSection>, std::uint64_t) {
  return PushResult{};
}

// The specification of clocks, computed from scratch on every query.
struct PlainClocks {
  struct Member {
    std::uint64_t clock = 0;
    bool has_left = false;
  };
  std::uint32_t size;
  std::map<std::uint32_t, Member> members;

  bool IsReached(std::uint64_t at_least) const {
    if (at_least == 0) return true;
    return members.size() == size && std::ranges::all_of(members, [&](const auto& one) {
             return one.second.has_left || one.second.clock >= at_least;
           });
  }
  std::uint64_t Sum() const {
    std::uint64_t sum = 0;
    for (const auto& [rank, member] : members) sum += member.clock;
    return sum;
  }
};

const Test kModel("clock waits end when a check of all members says so, in any order", [] {
  std::mt19937_64 random(11);
  for (int run = 0; run < 30; ++run) {
    constexpr std::uint32_t kSize = 9;
    Rounds rounds(ApplyNothing);
    PlainClocks plain{kSize, {}};
    struct Waiting {
      std::uint64_t at_least;
      std::optional<Result<std::uint64_t>> result;
    };
    std::map<std::pair<std::uint32_t, std::uint64_t>, Waiting> waits;  // by rank and ticket
    std::uint64_t ticket = 0;
    for (int event = 0; event < 400; ++event) {
      const auto rank = static_cast<std::uint32_t>(random() % kSize);
      const RoundMember member{"g", rank, kSize, false};
      if (plain.members[rank].has_left) continue;
      if (random() % 40 == 0 && event > 200) {
        plain.members[rank].has_left = true;
        RequireOk(rounds.Leave(member, {rank + 1, "w"}));
      } else if (random() % 10 == 0) {
        // Gives up its calls so far.
        ++ticket;
        rounds.Withdraw(rank + 1, ticket);
        for (auto& [key, wait] : waits) {
          if (key.first == rank && !wait.result) {
            Fail("a withdrawn wait was not ended", Location::current());
          }
        }
        std::erase_if(waits, [&](const auto& one) { return one.first.first == rank; });
      } else {
        const std::uint64_t clock = random() % 30;
        const auto bound =
            random() % 3 == 0 ? std::nullopt : std::optional<std::uint64_t>(random() % 4);
        auto& known = plain.members[rank].clock;
        known = std::max(known, clock);
        const std::uint64_t at_least = bound && clock > *bound ? clock - *bound : 0;
        Waiting& wait = waits[{rank, ++ticket}];
        wait.at_least = at_least;
        rounds.AdvanceClock(member, clock, bound, CallerOf(rank, ticket),
                            [&wait](const Result<std::uint64_t>& sum) { wait.result = sum; });
      }
      // `members` of the model has those that were looked up; the group only those heard from.
      PlainClocks heard = plain;
      for (auto& [key, wait] : waits) {
        const bool is_over = wait.result.has_value();
        if (!is_over && heard.IsReached(wait.at_least)) {
          // A rank looked up but not heard from yet is at 0 in both.
          Fail("a wait that was reached has not ended", Location::current());
        }
        if (is_over && wait.result->ok() && wait.at_least > 0 && !heard.IsReached(wait.at_least)) {
          Fail("a wait ended too early", Location::current());
        }
      }
      if (plain.members.size() == kSize &&
          std::ranges::all_of(plain.members, [](const auto& one) { return one.second.has_left; })) {
        break;
      }
    }
  }
});

const Test kSum("a report returns the sum over all members, including those that have left", [] {
  Rounds rounds(ApplyNothing);
  std::uint64_t sum = 0;
  std::uint64_t ticket = 0;
  const auto report = [&](std::uint32_t rank, std::uint64_t clock) {
    rounds.AdvanceClock({"g", rank, 3, true}, clock, {}, CallerOf(rank, ++ticket),
                        [&](const Result<std::uint64_t>& found) { sum = RequireOk(found); });
  };
  report(0, 5);
  ExpectEqual(sum, 5u);
  report(1, 7);
  report(0, 3);
  ExpectEqual(sum, 12u);
  RequireOk(rounds.Leave({"g", 1, 3, true}, {2, "w1"}));
  report(2, 1);
  ExpectEqual(sum, 13u);
  rounds.ForgetOwner(3);  // continues without it
  report(0, 6);
  ExpectEqual(sum, 14u);
});

const Test kRecovered("restored clocks count as reported ones", [] {
  Rounds before(ApplyNothing);
  std::uint64_t ticket = 0;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    before.AdvanceClock({"g", rank, 3, false}, 10 + rank, {}, CallerOf(rank, ++ticket),
                        [](const Result<std::uint64_t>&) {});
  }
  RequireOk(before.Leave({"g", 0, 3, false}, {1, "w0"}));
  Rounds after(ApplyNothing);
  for (const GroupMember& member : before.Export()) after.Restore(member);
  std::optional<std::uint64_t> reached;
  std::optional<std::uint64_t> later;
  after.AdvanceClock({"g", 2, 3, false}, 12, 1, CallerOf(2, 1),
                     [&](const auto& sum) { reached = RequireOk(sum); });
  after.AdvanceClock({"g", 2, 3, false}, 12, 0, CallerOf(2, 2),
                     [&](const auto& sum) { later = RequireOk(sum); });
  ExpectEqual(reached.value_or(0), 33u);
  Expect(!later, "rank 1 is at 11");
  after.AdvanceClock({"g", 1, 3, false}, 12, {}, CallerOf(1, 3), [](const auto&) {});
  ExpectEqual(later.value_or(0), 34u);
});

const Test kShared("callbacks of many members are shared out, each once", [] {
  std::size_t shared = 0;
  const auto share = [&](Coordinator::Tasks tasks) {
    shared += tasks.size();
    for (auto& task : tasks) task();
  };
  Rounds rounds(ApplyNothing);
  rounds.ShareTasks(share);
  Coordinator coordinator;
  coordinator.ShareTasks(share);
  for (const std::uint32_t size : {2u, 50u}) {
    shared = 0;
    std::vector<int> calls(size, 0);
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      rounds.Deliver({"g" + std::to_string(size), rank, size, false}, 1, {}, CallerOf(rank, 1),
                     [&, rank](const Result<PushResult>& result) { calls[rank] += result.ok(); });
    }
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      coordinator.ArriveAtBarrier("all", size, CallerOf(rank, 1).owner, 1, kLater,
                                  [&, rank](const Status& status) { calls[rank] += status.ok(); });
    }
    Expect(calls == std::vector<int>(size, 2), "each was called for the round and the barrier");
    ExpectEqual(shared, size < kSharedTasks ? 0u : 2u * size);
  }
});

const Test kSharedReplies("replies of a large round are shared out however few they are", [] {
  for (const std::size_t num_rows : {std::size_t{1}, std::size_t{1} << 14}) {
    std::size_t shared = 0;
    Rounds rounds(ApplyNothing);
    rounds.ShareTasks([&](Coordinator::Tasks tasks) {
      // The last tasks are the replies; earlier ones add up the gradients.
      shared = tasks.size();
      for (auto& task : tasks) task();
    });
    std::vector<Key> keys(num_rows);
    std::iota(keys.begin(), keys.end(), Key{0});
    const std::vector<float> gradients(num_rows * 8, 1.0F);
    int answered = 0;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      PushSection section;
      section.table = "t";
      section.keys = keys;
      section.gradients = gradients;
      section.keys_are_unique = true;
      Contribution contribution;
      contribution.sections = {section};
      rounds.Deliver({"g", rank, 3, false}, 1, std::move(contribution), CallerOf(rank, 1),
                     [&](const Result<PushResult>& result) { answered += result.ok(); });
    }
    ExpectEqual(answered, 3);
    ExpectEqual(shared, num_rows == 1 ? 0u : 3u);
  }
});

const Test kNotes("several notes are read at once", [] {
  Coordinator coordinator;
  RequireOk(coordinator.PutNote("a", "1"));
  RequireOk(coordinator.PutNote("c", ""));
  const std::vector<std::string_view> keys = {"c", "b", "a"};
  const auto values = RequireOk(coordinator.GetNotes(keys));
  Require(values.size() == 3);
  Expect(values[0] == "" && !values[1] && values[2] == "1");
  const std::vector<std::string_view> again(5, "a");
  ExpectEqual(coordinator.GetNotes(again, 4).status().code(), Code::kTooLarge);
  ExpectEqual(RequireOk(coordinator.GetNotes(again, 5)).size(), std::size_t{5});
});

const Test kUnshared("the thread that puts a note runs no tasks of others", [] {
  Coordinator coordinator;
  std::size_t shared = 0;
  coordinator.ShareTasks([&](Coordinator::Tasks tasks) { shared += tasks.size(); });
  int answered = 0;
  for (std::uint32_t i = 0; i < 2 * kSharedTasks; ++i) {
    coordinator.GetNote("a", true, CallerOf(i, 1).owner, kLater,
                        [&](const Result<std::string>& value) { answered += value.ok(); });
  }
  RequireOk(coordinator.PutNote("a", "1"));
  ExpectEqual(shared, std::size_t{0});
  ExpectEqual(answered, static_cast<int>(2 * kSharedTasks));
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
