// Groups of workers that step together: a round ends when all members have sent their gradients,
// which are then applied as one push. Clocks keep members that do not use rounds within reach of
// one another.
//
// A rank belongs to the owner that first took part under it: until that owner leaves or is lost,
// calls of others for the rank get kNotOwner and change nothing. A successor starts from scratch.
//
// Nothing here blocks a thread. A wait is a callback, called exactly once: when the round has been
// applied or rejected, when its deadline passes (Expire), when a member is lost, or on Close.
// Thread-safe; callbacks run outside the lock, on the thread that triggers them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "status/status.h"
#include "store/coordinator.h"
#include "store/gradient_merge.h"
#include "store/round_log.h"
#include "store/round_member.h"
#include "sync/mutex.h"
#include "table/table_set.h"

namespace sparsefleet {

inline constexpr std::size_t kMaxGroups = 1000;  // with a member present; deserted groups make room

class Rounds {
 public:
  using TimePoint = Coordinator::TimePoint;
  using Owner = Coordinator::Owner;
  using PushDone = std::function<void(const Result<PushResult>&)>;
  using ClockDone = std::function<void(const Result<std::uint64_t>&)>;
  // Whether the owner is still there. Called under the lock: it must not call back.
  using IsHere = std::function<bool(std::uint64_t owner_id)>;
  // Applies the merged gradients; runs on the thread of the last member to arrive.
  using Apply = std::function<Result<PushResult>(std::span<const PushSection>, std::uint64_t step)>;

  // Identifies a call: Withdraw gives up tickets. A retry must not reach this class again.
  struct Caller {
    Owner owner;
    std::uint64_t ticket = 0;
    TimePoint deadline;
    TimePoint began = {};  // when the owner's session began
  };

  // Without `is_here`, owners are considered present until ForgetOwner().
  explicit Rounds(Apply apply, IsHere is_here = {})
      : apply_(std::move(apply)), is_here_(std::move(is_here)) {}

  // Adds the member's gradients for this round. When all members that have not left have sent
  // theirs, they are merged in order of rank and applied with the highest of their steps; all get
  // the same result. If any contribution or the merged push is rejected, all get that error and
  // nothing is applied. Either way the round is over: its number and lower ones are errors from
  // then on. Members that disagree on the group or on the round get kInvalidArgument.
  void Deliver(const RoundMember& member, std::uint64_t round, Contribution contribution,
               Caller caller, PushDone done);

  // Reports the member's count. It never decreases: a lower count, such as one from a restarted
  // worker that repeats its calls, only waits. `done` gets the sum over all members, including
  // those that have left; with `bound`, once no member that has not left is below clock - bound. A
  // member not heard from yet is at 0.
  void AdvanceClock(const RoundMember& member, std::uint64_t clock,
                    std::optional<std::uint64_t> bound, Caller caller, ClockDone done);

  // The member takes part in no later round and delays no clock. Idempotent. A group that all
  // members have left (or were lost from) is forgotten. Anyone may leave under a rank that nobody
  // holds, such as those who continue without a lost member. `began`: when the owner's session
  // began.
  Status Leave(const RoundMember& member, const Owner& owner, TimePoint began = {});

  // Ends waits whose deadline has passed; returns the next deadline, or TimePoint::max().
  TimePoint Expire(TimePoint now);
  // The owner has given up its calls with tickets below this: their gradients do not count.
  void Withdraw(std::uint64_t owner_id, std::uint64_t tickets_below);
  // The owner has abandoned this call.
  void WithdrawOne(std::uint64_t owner_id, std::uint64_t ticket);
  // The owner's members are lost: pending and later rounds of their groups fail with kPeerLost
  // naming them until the rank comes back; or, by option, they count as having left. If no one else
  // is present, later arrivals get the error, unless their session is newer than the loss, in which
  // case the group is new to them. `why` completes "rank 1 ('worker-1') was lost: ...".
  void ForgetOwner(std::uint64_t owner_id, const std::string& why = {});
  // Ends every wait with `status`; later ones end immediately.
  void Close(const Status& status);

  std::size_t num_groups() const;

  // See Coordinator. The merging of a large round and its callbacks are shared too.
  void ShareTasks(Coordinator::Share share) { share_ = std::move(share); }

  // Reports all changes to `log` from now on; null stops it. Not thread-safe: call before the first
  // use.
  void SetLog(RoundLog* log) { log_ = log; }
  // For snapshots and recovery.
  std::vector<GroupMember> Export() const;
  void Restore(const GroupMember& member);
  void RestoreRound(const std::string& group, std::uint64_t round);
  void RestoreGone(const std::string& group);

 private:
  struct Wait {
    Caller caller;
    TimePoint since;
  };
  struct Delivery {
    Wait wait;
    Contribution contribution;
    PushDone done;
  };
  struct ClockWait {
    Wait wait;
    std::uint32_t rank;
    ClockDone done;
  };
  struct Member {
    enum class Presence : std::uint8_t { kHere, kLeft, kLost };
    Owner owner;
    Presence presence = Presence::kHere;
    bool was_lost = false;
    std::uint64_t clock = 0;
    std::string why_lost;
  };
  // A change to a group of W members must cost O(log W), since W calls may be waiting.
  struct Group {
    std::uint32_t size = 0;
    bool continue_without_lost = false;
    std::map<std::uint32_t, Member> members;  // by rank; only those heard from
    std::uint64_t past_clocks = 0;            // sum over owners that were replaced
    std::optional<std::uint64_t> last_round;  // applied or rejected
    std::uint64_t round = 0;                  // the round of `deliveries`
    std::map<std::uint32_t, Delivery> deliveries;
    std::multimap<std::uint64_t, ClockWait> clock_waits;  // by the clock they wait for
    std::optional<TimePoint> last_loss;

    // Derived from `members`, which only these two change.
    std::multiset<std::uint64_t> clocks;  // of members that have not left; the first is the lowest
    std::uint64_t clock_sum = 0;          // of all members
    std::uint32_t num_left = 0;
    std::uint32_t num_lost = 0;
    Member& MemberOf(std::uint32_t rank);  // a new one is present, at 0
    void Set(Member& member, Member::Presence presence, std::uint64_t clock);
  };
  using Groups = std::map<std::string, Group, std::less<>>;
  // A complete round, taken out of its group.
  struct Complete {
    std::string group;
    std::uint64_t round = 0;
    std::map<std::uint32_t, Delivery> deliveries;
  };
  // Work to do after releasing the lock.
  struct After {
    Coordinator::Tasks calls;
    std::vector<Complete> complete;
  };

  void Run(After& after);
  void ApplyRound(Complete& round);
  void RunAll(Coordinator::Tasks& calls) const;
  Result<PushResult> MergeAndApply(const Complete& round);

  Status CheckCaller(const RoundMember& member, const Caller& caller) const REQUIRES(mutex_);
  static bool IsDeserted(const Groups::value_type& entry);  // no member is present
  Result<Groups::iterator> Find(const RoundMember& member, TimePoint began) REQUIRES(mutex_);
  // Find(), for an owner who may act under the member's rank because nobody else holds it.
  Result<Groups::iterator> Claim(const RoundMember& member, const Owner& owner, TimePoint began,
                                 After& after) REQUIRES(mutex_);
  Result<Groups::iterator> Join(const RoundMember& member, const Caller& caller, After& after)
      REQUIRES(mutex_);
  // The owner is lost to this group, which may end the group.
  void Lose(Groups::iterator entry, std::uint64_t owner_id, const std::string& why, After& after)
      REQUIRES(mutex_);
  Status CheckRound(const Groups::value_type& entry, const RoundMember& member,
                    std::uint64_t round) const REQUIRES(mutex_);
  Status CheckLost(const Groups::value_type& entry) const REQUIRES(mutex_);
  bool IsComplete(const Group& group) const;
  // Ends the clock waits that are reached, or never will be because of a lost member.
  void SettleClocks(Groups::value_type& entry, After& after) REQUIRES(mutex_);
  void Pend(const Caller& caller) REQUIRES(mutex_);
  void Unpend(const Caller& caller) REQUIRES(mutex_);
  // Whether the owner may have a wait with a ticket in [from, below).
  bool HasPending(std::uint64_t owner_id, std::uint64_t from, std::uint64_t below) const
      REQUIRES(mutex_);
  // Ends what the group's current state ends: rounds, clock waits, the group itself.
  void Settle(Groups::iterator group, After& after) REQUIRES(mutex_);
  template <typename Goes>
  void TakeBack(Goes goes, const Status& status, After& after) REQUIRES(mutex_);

  static std::string DescribeRank(const Group& group, std::uint32_t rank);
  static std::string DescribeArrived(const Group& group);
  static std::string DescribeMissing(const Group& group);
  static std::string DescribeSlow(const Group& group, std::uint64_t at_least);
  TimePoint ExpireGroup(Groups::value_type& entry, TimePoint now, After& after) REQUIRES(mutex_);

  void Report(const Groups::value_type& entry, std::uint32_t rank) const REQUIRES(mutex_);
  void EraseGroup(Groups::iterator entry) REQUIRES(mutex_);
  static GroupMember Describe(const Groups::value_type& entry, std::uint32_t rank);

  const Apply apply_;
  RoundLog* log_ = nullptr;
  Coordinator::Share share_;
  const IsHere is_here_;
  mutable Mutex mutex_;
  bool closed_ GUARDED_BY(mutex_) = false;
  Status close_status_ GUARDED_BY(mutex_);
  Groups groups_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> given_up_
      GUARDED_BY(mutex_);  // owner -> tickets below this, see Withdraw
  // (owner, ticket) of all waits, and of some that have ended early.
  std::set<std::pair<std::uint64_t, std::uint64_t>> pending_ GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<GradientMerge>> idle_merges_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
