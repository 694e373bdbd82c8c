// Barriers, notes and waits for a table's version.
//
// Nothing here blocks a thread. A wait is a callback, called exactly once: on the event, when its
// deadline passes (Expire), when its owner is lost, or on Close.
// Thread-safe; callbacks run outside the lock, on the thread that triggers them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "status/status.h"
#include "sync/mutex.h"

namespace sparsefleet {

class RoundLog;

inline constexpr std::size_t kMaxNoteKeyBytes = 1024;
inline constexpr std::size_t kMaxNoteValueBytes = 64 << 10;
inline constexpr std::size_t kMaxNotes = 100000;
// Fewer callbacks than this run faster on one thread than it takes to wake another.
inline constexpr std::size_t kSharedTasks = 4;

class Coordinator {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Done = std::function<void(Status)>;
  using NoteDone = std::function<void(Result<std::string>)>;

  // The client that waits: named in messages, and dropped as a whole by ForgetOwner.
  struct Owner {
    std::uint64_t id = 0;
    std::string name;
    std::uint64_t session = 0;  // session number, for messages
  };

  // `ticket` identifies the call; arriving again with the same (owner, ticket) replaces the
  // callback and does not count twice (a retry after a lost connection). Members that disagree on
  // `members` get kInvalidArgument.
  void ArriveAtBarrier(std::string_view name, std::uint32_t members, Owner owner,
                       std::uint64_t ticket, TimePoint deadline, Done done);

  Status PutNote(std::string_view key, std::string_view value);
  void GetNote(std::string_view key, bool wait, Owner owner, TimePoint deadline, NoteDone done);
  Status DeleteNote(std::string_view key);

  // `current` is the version now; the wait ends when RaiseVersion reports at least `at_least`.
  void WaitVersion(std::string_view table, std::uint64_t current, std::uint64_t at_least,
                   Owner owner, TimePoint deadline, Done done);
  void RaiseVersion(std::string_view table, std::uint64_t version);

  // Ends waits whose deadline has passed; returns the next deadline, or TimePoint::max().
  TimePoint Expire(TimePoint now);
  // The owner has given up its calls with tickets below this: they no longer count at any barrier.
  void Withdraw(std::uint64_t owner_id, std::uint64_t tickets_below);
  // The owner has given up all its waits.
  void Withdraw(std::uint64_t owner_id);
  // Drops the owner's waits, and ends the barriers it has joined with kPeerLost naming it.
  // `why` completes "member 'worker-1' was lost: ...".
  void ForgetOwner(std::uint64_t owner_id, const std::string& why = {});
  // Ends every wait with `status`; later ones end immediately.
  void Close(Status status);

  // Has `share` run the callbacks of waits that end together, on any threads. Without it they run
  // one after another. Not thread-safe: call before the first use.
  using Tasks = std::vector<std::function<void()>>;
  using Share = std::function<void(Tasks)>;
  void ShareTasks(Share share) { share_ = std::move(share); }

  // The values of these notes, in order, with one lookup each; nullopt for a note that does not
  // exist. TooLarge if the values have more bytes in total.
  Result<std::vector<std::optional<std::string>>> GetNotes(
      std::span<const std::string_view> keys, std::uint64_t max_bytes = UINT64_MAX) const;

  // Reports barriers to `log` from now on; null stops it. Not thread-safe: call before the first
  // use.
  void SetLog(RoundLog* log) { log_ = log; }
  std::map<std::string, std::string> Notes() const;  // for snapshots

 private:
  struct Wait {
    Owner owner;
    TimePoint since;
    TimePoint deadline;
  };
  struct Member {
    Wait wait;
    Done done;
  };
  using Tickets = std::map<std::pair<std::uint64_t, std::uint64_t>, Member>;
  struct BarrierState {
    std::uint32_t members = 0;
    Tickets arrived;  // by owner and ticket
  };
  struct NoteWait {
    Wait wait;
    NoteDone done;
  };
  struct VersionWait {
    Wait wait;
    Done done;
  };
  using VersionWaits = std::multimap<std::uint64_t, VersionWait>;  // by the version they wait for
  // Callbacks collected under the lock and called after it is released.
  using Calls = Tasks;
  void Run(Calls& calls) const;

  void TakeMembers(std::uint64_t owner_id, std::uint64_t tickets_below, Calls& calls)
      REQUIRES(mutex_);
  void TakeWaits(std::uint64_t owner_id, const char* why, Calls& calls) REQUIRES(mutex_);
  TimePoint ExpireBarriers(TimePoint now, Calls& calls) REQUIRES(mutex_);
  TimePoint ExpireNoteWaits(TimePoint now, Calls& calls) REQUIRES(mutex_);
  TimePoint ExpireVersionWaits(TimePoint now, Calls& calls) REQUIRES(mutex_);

  mutable Mutex mutex_;
  RoundLog* log_ = nullptr;
  Share share_;
  bool closed_ GUARDED_BY(mutex_) = false;
  Status close_status_ GUARDED_BY(mutex_);
  std::map<std::string, BarrierState, std::less<>> barriers_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> given_up_
      GUARDED_BY(mutex_);  // owner -> tickets below this, see Withdraw
  std::map<std::string, std::string, std::less<>> notes_ GUARDED_BY(mutex_);
  std::map<std::string, std::list<NoteWait>, std::less<>> note_waits_ GUARDED_BY(mutex_);
  std::map<std::string, VersionWaits, std::less<>> version_waits_ GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t, std::less<>> versions_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
