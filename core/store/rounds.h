// Groups of workers that take optimizer steps together: a round is over when all members have
// brought their gradients, which are then applied as one push. Clocks keep members that do
// not take rounds within reach of one another.
//
// Nothing here blocks a thread. A wait is a callback, called exactly once: when the round has been
// applied or refused, when its deadline passes (Expire), when a member is lost, or at Close.
// Thread-safe; callbacks run outside the lock, on the thread that caused them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "status/status.h"
#include "store/coordinator.h"
#include "store/round_member.h"
#include "store/round_merge.h"
#include "table/table_set.h"

namespace sparsefleet {

inline constexpr std::size_t kMaxGroups = 1000;  // with a member there; others make room

class Rounds {
 public:
  using TimePoint = Coordinator::TimePoint;
  using Owner = Coordinator::Owner;
  using PushDone = std::function<void(const Result<PushResult>&)>;
  using ClockDone = std::function<void(const Result<std::uint64_t>&)>;
  // Applies the merged gradients; runs on the thread of the last member to come.
  using Apply = std::function<Result<PushResult>(std::span<const PushSection>, std::uint64_t step)>;

  // Who calls: tickets are given up by Withdraw. A retry must not come here again.
  struct Caller {
    Owner owner;
    std::uint64_t ticket = 0;
    TimePoint deadline;
    TimePoint began = {};  // the owner's session
  };

  explicit Rounds(Apply apply) : apply_(std::move(apply)) {}

  // The member's gradients for this round. When all members that have not left have brought
  // theirs, they are merged in order of rank and applied with the highest of their steps; all
  // get the one result. A refusal, or a merged push that is refused, goes to all, and nothing is
  // applied. Either way the round is over: its number and lower ones are errors from then on.
  // Members that disagree on the group or on the round get kInvalidArgument.
  void Deliver(const RoundMember& member, std::uint64_t round, Contribution contribution,
               Caller caller, PushDone done);

  // Reports the member's count, which never goes down. `done` gets the sum over all members,
  // also those that have left; with `bound`, once no member that has not left is below
  // clock - bound. A member not heard of yet is at 0.
  void AdvanceClock(const RoundMember& member, std::uint64_t clock,
                    std::optional<std::uint64_t> bound, Caller caller, ClockDone done);

  // The member takes part in no later round and holds up no clock. Again: nothing happens. A group
  // that all have left (or were lost from) is forgotten. `began`: the owner's session.
  Status Leave(const RoundMember& member, const Owner& owner, TimePoint began = {});

  // Ends waits whose deadline has passed; returns the next deadline, or TimePoint::max().
  TimePoint Expire(TimePoint now);
  // The owner has given up its calls with tickets below this: what they brought does not count.
  void Withdraw(std::uint64_t owner_id, std::uint64_t tickets_below);
  // It has given up this one.
  void WithdrawOne(std::uint64_t owner_id, std::uint64_t ticket);
  // The owner's members are lost: pending rounds of their groups end with kPeerLost naming them,
  // and so do later ones until the rank comes back; or they count as having left. Where nobody else
  // is there, those are told that come later; but for whom the store is new, the group is.
  void ForgetOwner(std::uint64_t owner_id);
  // Ends every wait with `status`; later ones end at once.
  void Close(const Status& status);

  std::size_t num_groups() const;

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
    std::uint64_t at_least;
    ClockDone done;
  };
  struct Member {
    enum class Presence : std::uint8_t { kHere, kLeft, kLost };
    Owner owner;
    Presence presence = Presence::kHere;
    bool was_lost = false;
    std::uint64_t clock = 0;
  };
  struct Group {
    std::uint32_t size = 0;
    bool go_on_without_lost = false;
    std::map<std::uint32_t, Member> members;  // by rank; those heard of
    std::optional<std::uint64_t> last_round;  // applied or refused
    std::uint64_t round = 0;                  // of the deliveries
    std::map<std::uint32_t, Delivery> deliveries;
    std::list<ClockWait> clock_waits;
    std::optional<TimePoint> last_loss;
  };
  using Groups = std::map<std::string, Group, std::less<>>;
  // A round whose members are complete, taken out of its group.
  struct Complete {
    std::string group;
    std::uint64_t round = 0;
    std::map<std::uint32_t, Delivery> deliveries;
  };
  // What is to be done without the lock.
  struct After {
    std::vector<std::function<void()>> calls;
    std::vector<Complete> complete;
  };

  void Run(After& after);
  void ApplyRound(Complete& round);
  Result<PushResult> MergeAndApply(const Complete& round);

  // These REQUIRE mutex_ held.
  Status CheckCaller(const RoundMember& member, const Caller& caller) const;
  static bool IsDeserted(const Groups::value_type& entry);  // nobody is there
  Result<Groups::iterator> Find(const RoundMember& member, TimePoint began);
  Result<Groups::iterator> Join(const RoundMember& member, const Caller& caller);
  Status CheckRound(const Groups::value_type& entry, const RoundMember& member,
                    std::uint64_t round) const;
  Status CheckLost(const Groups::value_type& entry) const;
  bool IsComplete(const Group& group) const;
  // Of clocks: ok, not yet (nullopt), or lost.
  std::optional<Status> Reached(const Groups::value_type& entry, std::uint64_t at_least) const;
  // Ends what the group's present state ends: rounds, clock waits, the group itself.
  void Settle(Groups::iterator group, After& after);
  template <typename Goes>
  void TakeBack(Goes goes, const Status& status, After& after);

  static std::string DescribeRank(const Group& group, std::uint32_t rank);
  static std::string DescribeArrived(const Group& group);
  static std::string DescribeMissing(const Group& group);
  static std::string DescribeSlow(const Group& group, std::uint64_t at_least);
  TimePoint ExpireGroup(Groups::value_type& entry, TimePoint now, After& after);

  const Apply apply_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  Status close_status_;
  Groups groups_;
  std::map<std::uint64_t, std::uint64_t> given_up_;  // owner: tickets below this, see Withdraw
  std::vector<std::unique_ptr<RoundMerge>> idle_merges_;
};

}  // namespace sparsefleet
