#include "store/coordinator.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

using std::chrono::seconds;
using TimePoint = Coordinator::TimePoint;

TimePoint Now() { return std::chrono::steady_clock::now(); }
TimePoint Later() { return Now() + seconds(30); }

// Collects the outcomes of waits and counts them, since each must arrive exactly once.
struct Ends {
  std::mutex mutex;
  std::vector<Status> all;
  Coordinator::Done Take() {
    return [this](Status status) {
      std::lock_guard lock(mutex);
      all.push_back(std::move(status));
    };
  }
};

const Test kBarrierOpens("a barrier opens for all when the last member arrives", [] {
  Coordinator coordinator;
  Ends ends;
  coordinator.ArriveAtBarrier("b", 2, {1, "w0"}, 1, Later(), ends.Take());
  ExpectEqual(ends.all.size(), 0u);
  coordinator.ArriveAtBarrier("b", 2, {2, "w1"}, 1, Later(), ends.Take());
  ExpectEqual(ends.all.size(), 2u);
  for (const Status& status : ends.all) ExpectCode(status, Code::kOk);
  // The name is free again.
  coordinator.ArriveAtBarrier("b", 3, {1, "w0"}, 2, Later(), ends.Take());
  ExpectEqual(ends.all.size(), 2u);
});

const Test kThreadsOfOneOwner("members of one owner count one each", [] {
  Coordinator coordinator;
  Ends ends;
  for (std::uint64_t ticket = 1; ticket <= 3; ++ticket) {
    coordinator.ArriveAtBarrier("b", 3, {1, "w0"}, ticket, Later(), ends.Take());
  }
  ExpectEqual(ends.all.size(), 3u);
});

const Test kRetry("a retry with the same ticket replaces the callback and counts once", [] {
  Coordinator coordinator;
  Ends first;
  Ends second;
  coordinator.ArriveAtBarrier("b", 2, {1, "w0"}, 7, Later(), first.Take());
  coordinator.ArriveAtBarrier("b", 2, {1, "w0"}, 7, Later(), second.Take());
  ExpectEqual(first.all.size() + second.all.size(), 0u);
  coordinator.ArriveAtBarrier("b", 2, {2, "w1"}, 1, Later(), second.Take());
  ExpectEqual(first.all.size(), 0u);
  ExpectEqual(second.all.size(), 2u);
});

const Test kGivenUp("a withdrawn call counts at no barrier, even if it arrives late", [] {
  Coordinator coordinator;
  Ends ghost;
  Ends ends;
  coordinator.ArriveAtBarrier("b", 2, {1, "w0"}, 1, Later(), ghost.Take());
  coordinator.Withdraw(1, 2);
  ExpectEqual(ghost.all.size(), 1u);
  coordinator.ArriveAtBarrier("b", 2, {1, "w0"}, 1, Later(), ghost.Take());
  ExpectEqual(ghost.all.size(), 2u);
  ExpectCode(ghost.all[1], Code::kPeerLost);
  coordinator.ArriveAtBarrier("b", 2, {1, "w0"}, 2, Later(), ends.Take());
  Expect(ends.all.empty());
  coordinator.ArriveAtBarrier("b", 2, {2, "w1"}, 1, Later(), ends.Take());
  ExpectEqual(ends.all.size(), 2u);
  for (const Status& status : ends.all) Expect(status.ok());
});

const Test kDeadlineTells(
    "a deadline reports how many arrived and who; the others keep waiting", [] {
      Coordinator coordinator;
      Ends ends;
      Ends patient;
      const TimePoint start = Now();
      coordinator.ArriveAtBarrier("epoch-3", 3, {1, "worker-0"}, 1, start + seconds(30),
                                  ends.Take());
      coordinator.ArriveAtBarrier("epoch-3", 3, {2, "worker-2"}, 1, start + seconds(90),
                                  patient.Take());
      Expect(coordinator.Expire(start) == start + seconds(30), "next deadline");
      ExpectEqual(ends.all.size(), 0u);
      Expect(coordinator.Expire(start + seconds(31)) == start + seconds(90), "next deadline");
      Require(ends.all.size() == 1);
      ExpectCode(ends.all[0], Code::kDeadlineExceeded);
      ExpectEqual(ends.all[0].message(),
                  "barrier 'epoch-3': 2 of 3 arrived within 30 s (worker-0, worker-2)");
      ExpectEqual(patient.all.size(), 0u);
      coordinator.ArriveAtBarrier("epoch-3", 3, {3, "worker-1"}, 1, Later(), ends.Take());
      coordinator.ArriveAtBarrier("epoch-3", 3, {1, "worker-0"}, 2, Later(), ends.Take());
      ExpectEqual(patient.all.size(), 1u);
      Expect(coordinator.Expire(Now()) == TimePoint::max(), "nothing is waiting");
    });

const Test kDisagreement("members that disagree on the count are refused", [] {
  Coordinator coordinator;
  Ends ends;
  coordinator.ArriveAtBarrier("b", 0, {1, "w0"}, 1, Later(), ends.Take());
  Require(ends.all.size() == 1);
  ExpectCode(ends.all[0], Code::kInvalidArgument);
  coordinator.ArriveAtBarrier("b", 3, {1, "w0"}, 2, Later(), ends.Take());
  coordinator.ArriveAtBarrier("b", 2, {2, "w1"}, 1, Later(), ends.Take());
  Require(ends.all.size() == 2);
  ExpectCode(ends.all[1], Code::kInvalidArgument);
});

const Test kLostOwner("a lost owner breaks its barriers and drops its waits", [] {
  Coordinator coordinator;
  Ends other;
  Ends lost;
  coordinator.ArriveAtBarrier("b", 3, {1, "worker-1"}, 1, Later(), lost.Take());
  coordinator.ArriveAtBarrier("b", 3, {2, "worker-0"}, 1, Later(), other.Take());
  coordinator.WaitVersion("t", 0, 1, {1, "worker-1"}, Later(), lost.Take());
  coordinator.WaitVersion("t", 0, 1, {2, "worker-0"}, Later(), other.Take());
  coordinator.ForgetOwner(1);
  ExpectEqual(lost.all.size(), 2u);
  Require(other.all.size() == 1);
  ExpectCode(other.all[0], Code::kPeerLost);
  ExpectEqual(other.all[0].message(), "barrier 'b': member 'worker-1' was lost");
  coordinator.RaiseVersion("t", 1);
  ExpectEqual(other.all.size(), 2u);
});

const Test kNotes("notes are put, awaited, replaced and deleted", [] {
  Coordinator coordinator;
  std::optional<Result<std::string>> found;
  const auto take = [&](Result<std::string> value) { found.emplace(std::move(value)); };
  coordinator.GetNote("k", false, {1, "w"}, Later(), take);
  Require(found.has_value());
  ExpectCode(found->status(), Code::kNotFound);
  found.reset();
  coordinator.GetNote("k", true, {1, "w"}, Later(), take);
  Require(!found.has_value());
  RequireOk(coordinator.PutNote("k", "v1"));
  Require(found.has_value() && found->ok());
  ExpectEqual(found->value(), "v1");
  RequireOk(coordinator.PutNote("k", "v2"));
  coordinator.GetNote("k", false, {1, "w"}, Later(), take);
  ExpectEqual(found->value(), "v2");
  RequireOk(coordinator.DeleteNote("k"));
  ExpectCode(coordinator.DeleteNote("k"), Code::kNotFound);
  ExpectCode(coordinator.PutNote("", "v"), Code::kInvalidArgument);
  ExpectCode(coordinator.PutNote("k", std::string(kMaxNoteValueBytes + 1, 'x')), Code::kTooLarge);
});

const Test kNoteDeadline("a wait for a note that never appears ends at its deadline", [] {
  Coordinator coordinator;
  std::optional<Result<std::string>> found;
  const TimePoint start = Now();
  coordinator.GetNote("rank-0", true, {1, "w"}, start + seconds(5),
                      [&](Result<std::string> value) { found.emplace(std::move(value)); });
  coordinator.Expire(start + seconds(6));
  Require(found.has_value());
  ExpectCode(found->status(), Code::kDeadlineExceeded);
  ExpectEqual(found->status().message(), "note 'rank-0' was not put within 5 s");
});

const Test kVersions("a wait for a version ends when it is reached, even if it was raised before",
                     [] {
                       Coordinator coordinator;
                       Ends ends;
                       coordinator.WaitVersion("t", 3, 3, {1, "w"}, Later(), ends.Take());
                       ExpectEqual(ends.all.size(), 1u);
                       coordinator.WaitVersion("t", 3, 5, {1, "w"}, Later(), ends.Take());
                       coordinator.RaiseVersion("t", 4);
                       ExpectEqual(ends.all.size(), 1u);
                       coordinator.RaiseVersion("t", 5);
                       ExpectEqual(ends.all.size(), 2u);
                       // The caller read 3 before version 5 was reported.
                       coordinator.WaitVersion("t", 3, 5, {1, "w"}, Later(), ends.Take());
                       ExpectEqual(ends.all.size(), 3u);
                     });

const Test kClose("close ends every wait, and later ones immediately", [] {
  Coordinator coordinator;
  Ends ends;
  coordinator.ArriveAtBarrier("b", 2, {1, "w"}, 1, Later(), ends.Take());
  coordinator.WaitVersion("t", 0, 1, {1, "w"}, Later(), ends.Take());
  coordinator.Close({Code::kShuttingDown, "draining"});
  coordinator.ArriveAtBarrier("b", 2, {2, "w"}, 1, Later(), ends.Take());
  ExpectEqual(ends.all.size(), 3u);
  for (const Status& status : ends.all) ExpectCode(status, Code::kShuttingDown);
});

const Test kThreads(
    "every wait ends exactly once under concurrent arrivals, losses and expiry", [] {
      Coordinator coordinator;
      constexpr int kThreadCount = 4;
      constexpr int kRounds = 300;
      std::atomic<int> ended{0};
      {
        std::vector<std::jthread> threads;
        for (int t = 0; t < kThreadCount; ++t) {
          threads.emplace_back([&, t] {
            const Coordinator::Owner owner{static_cast<std::uint64_t>(t), "w" + std::to_string(t)};
            for (int i = 0; i < kRounds; ++i) {
              const auto done = [&](const Status&) { ++ended; };
              coordinator.ArriveAtBarrier("b" + std::to_string(i % 3), 2, owner,
                                          static_cast<std::uint64_t>(i), Now(), done);
              coordinator.WaitVersion("t", 0, static_cast<std::uint64_t>(i), owner, Later(), done);
              coordinator.RaiseVersion("t", static_cast<std::uint64_t>(i));
              if (i % 16 == t) coordinator.ForgetOwner(owner.id);
              coordinator.Expire(Now());
            }
          });
        }
      }
      coordinator.Close({Code::kShuttingDown, "end"});
      ExpectEqual(ended.load(), 2 * kThreadCount * kRounds);
    });

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
