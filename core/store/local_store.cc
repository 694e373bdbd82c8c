#include "store/local_store.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "merge/dense_parts.h"
#include "store/coordinator.h"
#include "store/deadline.h"
#include "store/interrupt.h"
#include "store/left_groups.h"
#include "store/rounds.h"
#include "store/table_views.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

// Where a blocked call finds its outcome. Shared with the callback, which may run late.
template <typename T>
class Outcome {
 public:
  void Set(T value) {
    {
      MutexLock lock(mutex_);
      value_ = std::move(value);
    }
    ready_.notify_all();
  }
  bool WaitUntil(Coordinator::TimePoint deadline) {
    MutexLock lock(mutex_);
    return ready_.WaitUntil(mutex_, deadline,
                            [&]() REQUIRES(mutex_) { return value_.has_value(); });
  }
  T Wait() {
    MutexLock lock(mutex_);
    ready_.Wait(mutex_, [&]() REQUIRES(mutex_) { return value_.has_value(); });
    return std::move(*value_);
  }

 private:
  Mutex mutex_;
  CondVar ready_;
  std::optional<T> value_ GUARDED_BY(mutex_);
};

// The sections that carry gradients.
std::vector<PushSection> PushedOf(std::span<const PushSection> sections) {
  std::vector<PushSection> pushed;
  pushed.reserve(sections.size());
  std::ranges::copy_if(sections, std::back_inserter(pushed), [](const PushSection& section) {
    return !section.wants_rows() && section.marks.empty();
  });
  return pushed;
}

// The sections of a push with their gradients made contiguous, as rounds need them.
class WholeSections {
 public:
  explicit WholeSections(std::vector<PushSection> given) : sections_(std::move(given)) {
    for (PushSection& section : sections_) {
      if (section.parts.empty()) continue;
      std::vector<float>& whole = joined_.emplace_back(SizeOfParts(section.parts));
      JoinParts(section.parts, whole);
      section.gradients = whole;
      section.parts = {};
    }
  }
  std::span<const PushSection> sections() const { return sections_; }

 private:
  std::vector<PushSection> sections_;
  std::vector<std::vector<float>> joined_;  // the vectors may move, their elements do not
};

class LocalCut final : public StoreCut {
 public:
  LocalCut(TableCut cut, CutCommit commit) : cut_(std::move(cut)), commit_(commit) {}
  Result<bool> Next(std::size_t max_rows, RowBatch& out) override {
    if (max_rows == 0) return Status(Code::kInvalidArgument, "cut: max_rows is 0, expected >= 1");
    if (cut_.Next(max_rows, out)) return true;
    if (commit_ == CutCommit::kAtEnd) cut_.Commit();
    return false;
  }
  Result<std::vector<Key>> Removed() override { return cut_.Removed(); }
  Status Commit() override {
    if (commit_ == CutCommit::kAtEnd) return StoreCut::Commit();
    if (!cut_.at_end()) {
      return {Code::kInvalidArgument, "a cut can only be committed after its last row was read"};
    }
    cut_.Commit();
    return Status::Ok();
  }

 private:
  TableCut cut_;
  const CutCommit commit_;
};

class LocalChanges final : public StoreCut {
 public:
  LocalChanges(std::shared_ptr<SparseTable> table, std::shared_ptr<ChangeCursor> changes)
      : table_(std::move(table)), changes_(std::move(changes)) {}
  Result<bool> Next(std::size_t max_rows, RowBatch& out) override {
    auto rows =
        TakeChangedRows(*table_, *changes_, std::exchange(begins_, false), UINT64_MAX, max_rows);
    if (!rows.ok()) return rows.status();
    out = std::move(rows).value();
    return !out.keys.empty();
  }

 private:
  const std::shared_ptr<SparseTable> table_;
  const std::shared_ptr<ChangeCursor> changes_;
  bool begins_ = true;
};

}  // namespace

struct LocalStore::Impl {
  explicit Impl(std::shared_ptr<ServedTables> given) : served(std::move(given)) {}

  const std::shared_ptr<ServedTables> served;
  TableSet& tables = served->tables;
  Coordinator& coordinator = served->coordinator;
  bool is_of_server = false;
  Rounds rounds{[this](std::span<const PushSection> sections, std::uint64_t step) {
    return ApplyRound(tables, coordinator, sections, step);
  }};
  LeftGroups left_groups;
  Mutex watches_mutex;
  std::map<std::string, std::shared_ptr<ChangeCursor>, std::less<>> watches
      GUARDED_BY(watches_mutex);  // by table
  std::atomic<std::uint64_t> next_call{1};

  // Starts a wait and blocks until its callback runs. The waiting thread itself expires the
  // coordinator at its deadline, so no timer thread is needed.
  template <typename T, typename Begin>
  T WaitFor(double timeout_s, Begin begin) {
    auto outcome = std::make_shared<Outcome<T>>();
    const auto deadline = DeadlineAfter(timeout_s);
    const Coordinator::Owner owner = NextOwner();
    begin(owner, deadline, [outcome](T value) { outcome->Set(std::move(value)); });
    while (!outcome->WaitUntil(NextLook(deadline))) {
      if (std::chrono::steady_clock::now() >= deadline) {
        coordinator.Expire(std::chrono::steady_clock::now());
        rounds.Expire(std::chrono::steady_clock::now());
        break;
      }
      if (ScopedInterrupt::IsDue()) {
        coordinator.Withdraw(owner.id);
        rounds.WithdrawOne(0, owner.id);
        break;
      }
    }
    return outcome->Wait();
  }

  static Coordinator::TimePoint NextLook(Coordinator::TimePoint deadline) {
    if (!ScopedInterrupt::is_set()) return deadline;
    return std::min(deadline, Coordinator::TimePoint::clock::now() + kInterruptInterval);
  }

  // All members of the groups belong to this process, so nobody would notice their loss.
  static Rounds::Caller CallerOf(const Coordinator::Owner& owner, Rounds::TimePoint deadline) {
    return {{}, owner.id, deadline};
  }

  Coordinator::Owner NextOwner() {
    const std::uint64_t call = next_call.fetch_add(1);
    return {call, "call-" + std::to_string(call)};
  }
};

LocalStore::LocalStore() : impl_(std::make_unique<Impl>(std::make_shared<ServedTables>())) {}

LocalStore::LocalStore(std::shared_ptr<ServedTables> server)
    : impl_(std::make_unique<Impl>(std::move(server))) {
  impl_->is_of_server = true;
}

LocalStore::~LocalStore() {
  const Status closed(Code::kShuttingDown, "the store was closed");
  if (!impl_->is_of_server) impl_->coordinator.Close(closed);
  impl_->rounds.Close(closed);
}

TableSet& LocalStore::tables() { return impl_->tables; }

Status LocalStore::Define(const SparseSpec& spec, double /*timeout_s*/) {
  return impl_->tables.Define(spec);
}

Status LocalStore::Define(const DenseSpec& spec, double /*timeout_s*/) {
  return impl_->tables.Define(spec, impl_->served->index, impl_->served->num_servers);
}

Result<TableInfo> LocalStore::Info(std::string_view table, double /*timeout_s*/) {
  return DescribeTable(impl_->tables, table);
}

Status LocalStore::Pull(std::span<const PullSection> sections, PullMode mode, std::uint64_t step,
                        double /*timeout_s*/) {
  return impl_->tables.Pull(sections, mode, step);
}

Result<PushResult> LocalStore::Push(std::span<const PushSection> sections, std::uint64_t step,
                                    double /*timeout_s*/) {
  if (Status s = CheckWantedValues(impl_->tables, sections); !s.ok()) return s;
  auto result = PushAndNotify(impl_->tables, impl_->coordinator, PushedOf(sections), step);
  if (!result.ok()) return result;
  if (Status s = ReadWantedValues(impl_->tables, sections, step); !s.ok()) return s;
  return result;
}

Result<PushResult> LocalStore::PushRound(const RoundMember& member, std::uint64_t round,
                                         std::span<const PushSection> sections, std::uint64_t step,
                                         double timeout_s) {
  Contribution contribution;
  const WholeSections whole(PushedOf(sections));  // outlives the wait
  contribution.sections.assign(whole.sections().begin(), whole.sections().end());
  contribution.step = step;
  if (Status s = CheckWantedValues(impl_->tables, sections); !s.ok()) return s;
  if (Status s = CheckContribution(impl_->tables, contribution); !s.ok()) return s;
  impl_->left_groups.SetLeft(member, false);
  const auto result =
      impl_->WaitFor<Result<PushResult>>(timeout_s, [&](auto owner, auto deadline, auto done) {
        impl_->rounds.Deliver(member, round, std::move(contribution),
                              Impl::CallerOf(owner, deadline), std::move(done));
      });
  if (!result.ok()) return result;
  if (Status s = ReadWantedValues(impl_->tables, sections, step); !s.ok()) return s;
  return result;
}

Result<std::uint64_t> LocalStore::AdvanceClock(const RoundMember& member, std::uint64_t clock,
                                               std::optional<std::uint64_t> bound,
                                               double timeout_s) {
  impl_->left_groups.SetLeft(member, false);
  return impl_->WaitFor<Result<std::uint64_t>>(
      timeout_s, [&](auto owner, auto deadline, auto done) {
        impl_->rounds.AdvanceClock(member, clock, bound, Impl::CallerOf(owner, deadline),
                                   std::move(done));
      });
}

Status LocalStore::LeaveGroup(const RoundMember& member, double /*timeout_s*/) {
  if (impl_->left_groups.HasLeft(member)) return Status::Ok();
  if (Status s = impl_->rounds.Leave(member, {}); !s.ok()) return s;
  impl_->left_groups.SetLeft(member, true);
  return Status::Ok();
}

Status LocalStore::WriteDense(std::string_view table, std::span<const float> values,
                              double /*timeout_s*/) {
  return impl_->tables.WriteDense(table, values);
}

Status LocalStore::SetLearningRate(std::string_view table, double learning_rate,
                                   std::optional<std::uint64_t> at, double /*timeout_s*/) {
  return impl_->tables.SetLearningRate(table, learning_rate, at);
}

Result<std::uint64_t> LocalStore::Version(std::string_view table, double /*timeout_s*/) {
  return impl_->tables.Version(table);
}

Status LocalStore::WaitVersion(std::string_view table, std::uint64_t at_least, double timeout_s) {
  auto current = impl_->tables.Version(table);
  if (!current.ok()) return current.status();
  return impl_->WaitFor<Status>(timeout_s, [&](auto owner, auto deadline, auto done) {
    impl_->coordinator.WaitVersion(table, current.value(), at_least, std::move(owner), deadline,
                                   std::move(done));
  });
}

Status LocalStore::Barrier(std::string_view name, std::uint32_t members, double timeout_s) {
  return impl_->WaitFor<Status>(timeout_s, [&](auto owner, auto deadline, auto done) {
    impl_->coordinator.ArriveAtBarrier(name, members, std::move(owner), 0, deadline,
                                       std::move(done));
  });
}

Status LocalStore::PutNote(std::string_view key, std::string_view value, double /*timeout_s*/) {
  return impl_->coordinator.PutNote(key, value);
}

Result<std::string> LocalStore::GetNote(std::string_view key, bool wait, double timeout_s) {
  return impl_->WaitFor<Result<std::string>>(timeout_s, [&](auto owner, auto deadline, auto done) {
    impl_->coordinator.GetNote(key, wait, std::move(owner), deadline, std::move(done));
  });
}

Result<std::vector<std::optional<std::string>>> LocalStore::GetNotes(
    std::span<const std::string_view> keys, double /*timeout_s*/) {
  return impl_->coordinator.GetNotes(keys);
}

Status LocalStore::DeleteNote(std::string_view key, double /*timeout_s*/) {
  return impl_->coordinator.DeleteNote(key);
}

Result<std::vector<StatMap>> LocalStore::Stats(double /*timeout_s*/) {
  std::vector<StatMap> stats(1);
  AddTableStats(impl_->tables, stats[0]);
  return stats;
}

Result<std::uint64_t> LocalStore::Shrink(std::string_view table, std::uint64_t step,
                                         double /*timeout_s*/) {
  auto sparse = impl_->tables.Sparse(table);
  if (!sparse.ok()) return sparse.status();
  return sparse.value()->Shrink(step);
}

Result<std::uint64_t> LocalStore::Erase(std::string_view table, std::span<const Key> keys,
                                        double /*timeout_s*/) {
  auto sparse = impl_->tables.Sparse(table);
  if (!sparse.ok()) return sparse.status();
  return sparse.value()->Erase(keys);
}

Result<std::unique_ptr<StoreCut>> LocalStore::OpenCut(std::string_view table, bool only_dirty,
                                                      bool clear_dirty, double /*timeout_s*/) {
  auto sparse = impl_->tables.Sparse(table);
  if (!sparse.ok()) return sparse.status();
  if (Status s = sparse.value()->CheckCut(only_dirty); !s.ok()) return s;
  return std::unique_ptr<StoreCut>(std::make_unique<LocalCut>(
      sparse.value()->OpenCut(only_dirty, clear_dirty), CutCommit::kAtEnd));
}

Result<LocalStore::Cuts> LocalStore::OpenCuts(bool only_dirty, bool clear_dirty, CutCommit commit,
                                              std::optional<std::vector<std::string>> names) {
  if (clear_dirty && impl_->served->on_clearing_cut) {
    Status s = impl_->served->on_clearing_cut(names ? *names : impl_->tables.Names());
    if (!s.ok()) return s;
  }
  auto opened = impl_->tables.OpenCuts(only_dirty, clear_dirty, std::move(names));
  if (!opened.ok()) return opened.status();
  Cuts cuts;
  for (auto& [name, cut] : opened.value()) {
    if (auto* sparse = std::get_if<TableCut>(&cut)) {
      cuts.emplace(name, std::make_unique<LocalCut>(std::move(*sparse), commit));
    } else {
      cuts.emplace(name, std::move(std::get<DenseCut>(cut)));
    }
  }
  return cuts;
}

Status LocalStore::Import(std::string_view table, const RowBatch& rows, double /*timeout_s*/) {
  auto sparse = impl_->tables.Sparse(table);
  if (!sparse.ok()) return sparse.status();
  return sparse.value()->Import(rows);
}

Status LocalStore::WatchChanges(std::string_view table, double /*timeout_s*/) {
  auto sparse = impl_->tables.Sparse(table);
  if (!sparse.ok()) return sparse.status();
  MutexLock lock(impl_->watches_mutex);
  if (!impl_->watches.contains(table)) {
    impl_->watches.emplace(std::string(table), sparse.value()->WatchChanges());
  }
  return Status::Ok();
}

Result<std::unique_ptr<StoreCut>> LocalStore::TakeChanges(std::string_view table,
                                                          double /*timeout_s*/) {
  auto sparse = impl_->tables.Sparse(table);
  if (!sparse.ok()) return sparse.status();
  MutexLock lock(impl_->watches_mutex);
  const auto watch = impl_->watches.find(table);
  if (watch == impl_->watches.end()) {
    return Status(Code::kNotFound, "table '" + std::string(table) +
                                       "': its changes are not watched; call watch_changes first");
  }
  return std::unique_ptr<StoreCut>(
      std::make_unique<LocalChanges>(std::move(sparse).value(), watch->second));
}

Result<std::vector<std::byte>> LocalStore::Command(std::uint32_t /*server*/, std::string_view name,
                                                   std::span<const std::byte> /*body*/,
                                                   double /*timeout_s*/) {
  return Status(Code::kInvalidArgument, "command '" + std::string(name) +
                                            "': the tables of this store are in this process; "
                                            "there is no server to ask");
}

}  // namespace sparsefleet
