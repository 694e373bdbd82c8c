#include "store/gradient_sender.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "store/deadline.h"
#include "store/interrupt.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxMerged = 1024;  // a push has no more marks

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

// The data of all mini-batches, with neighbors joined.
std::vector<DataMark> MarksOf(std::span<const Contribution> batches) {
  std::vector<DataMark> marks;
  for (const Contribution& batch : batches) {
    for (const DataMark& mark : batch.marks) {
      const bool follows = !marks.empty() && marks.back().stream == mark.stream &&
                           marks.back().epoch == mark.epoch && marks.back().end == mark.begin;
      if (follows) {
        marks.back().end = mark.end;
      } else {
        marks.push_back(mark);
      }
    }
  }
  return marks;
}

}  // namespace

GradientSender::GradientSender(std::weak_ptr<Store> store, std::shared_ptr<StepCounter> step,
                               SenderOptions options)
    : store_(std::move(store)), step_(std::move(step)), options_(std::move(options)) {}

GradientSender::~GradientSender() { Stop(); }

void GradientSender::Stop() {
  Fail(Status(Code::kShuttingDown, "the gradient sender was stopped"));
  MutexLock lock(mutex_);
  std::thread stopped = std::move(thread_);
  closed_ = true;
  lock.unlock();
  if (stopped.joinable()) stopped.join();
}

bool GradientSender::IsOwnThread() const {
  MutexLock lock(mutex_);
  return thread_.get_id() == std::this_thread::get_id();
}

// -- Callers --------------------------------------------------------------------------------------

Result<GradientSender::PutResult> GradientSender::Put(Contribution gradients) {
  const auto begin = SteadyClock::now();
  PutResult result;
  MutexLock lock(mutex_);
  result.staleness = stats_.open + since_refresh_;
  const auto has_room = [&]() REQUIRES(mutex_) {
    return queue_.size() < options_.queue_size || closed_;
  };
  if (Status s = WaitUntil(has_room, "room in the queue"); !s.ok()) return s;
  if (closed_) {
    return Status(Code::kInvalidArgument, "the gradient sender has ended: create a new one");
  }
  if (!running_) {
    thread_ = std::thread([this] { Run(); });
    running_ = true;
  }
  queue_.push_back(std::move(gradients));
  ++stats_.open;
  work_.notify_one();
  if (options_.max_open) {
    const auto is_close = [&]() REQUIRES(mutex_) { return stats_.open <= *options_.max_open; };
    Status s = WaitUntil(is_close, "slower workers, as max_staleness requires");
    if (!s.ok()) return s;
  }
  result.waited_s = SecondsSince(begin);
  return result;
}

Status GradientSender::WaitEmpty() {
  MutexLock lock(mutex_);
  ++hurried_;
  work_.notify_one();
  const std::uint64_t awaited = applied_ + stats_.open;
  const Status status = WaitUntil([&]() REQUIRES(mutex_) { return applied_ >= awaited; },
                                  "queued gradients to be pushed");
  --hurried_;
  return status;
}

Status GradientSender::Flush() {
  if (Status s = WaitEmpty(); !s.ok()) return s;
  MutexLock lock(mutex_);
  const std::size_t fetched = since_refresh_;
  lock.unlock();
  if (!options_.dense.empty()) {
    auto store = OpenStore();
    if (!store.ok()) return store.status();
    if (Status s = FetchDense(*store.value(), {}); !s.ok()) return s;
  }
  lock.lock();
  since_refresh_ -= std::min(since_refresh_, fetched);
  return Status::Ok();
}

void GradientSender::BoundStaleness(const RoundMember& member, std::uint64_t ahead,
                                    std::uint64_t applied) {
  MutexLock lock(mutex_);
  clock_group_ = ClockGroup{std::string(member.group), member, ahead, applied};
}

void GradientSender::Fail(const Status& status, std::shared_ptr<const void> cause) {
  MutexLock lock(mutex_);
  FailLocked(status, std::move(cause));
}

std::shared_ptr<const void> GradientSender::failure_cause() const {
  MutexLock lock(mutex_);
  return failure_cause_;
}

void GradientSender::DropFailureCause() {
  std::shared_ptr<const void> dropped;  // freed outside the lock
  MutexLock lock(mutex_);
  dropped.swap(failure_cause_);
}

void GradientSender::FailLocked(const Status& status, std::shared_ptr<const void> cause) {
  if (failure_.ok()) {
    failure_ = status;
    failure_cause_ = std::move(cause);
  }
  work_.notify_one();
  progress_.notify_all();
}

void GradientSender::End() {
  MutexLock lock(mutex_);
  closed_ = true;
  work_.notify_one();
  progress_.notify_all();
  const auto deadline = DeadlineAfter(options_.wait_s);
  if (WaitFor(deadline, [&]() REQUIRES(mutex_) { return !running_; }) != WaitEnd::kReady) return;
  std::thread ended = std::move(thread_);
  lock.unlock();
  if (ended.joinable()) ended.join();
}

SenderStats GradientSender::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

std::map<std::string, std::uint64_t> GradientSender::TakeRejected() {
  MutexLock lock(mutex_);
  return std::exchange(rejected_, {});
}

std::vector<std::shared_ptr<const void>> GradientSender::TakeSpent() {
  MutexLock lock(mutex_);
  return std::exchange(spent_, {});
}

template <typename Ready>
GradientSender::WaitEnd GradientSender::WaitFor(TimePoint deadline,
                                                Ready ready) NO_THREAD_SAFETY_ANALYSIS {
  while (!ready()) {
    const auto now = SteadyClock::now();
    if (now >= deadline) return WaitEnd::kLate;
    if (!ScopedInterrupt::is_set()) {
      progress_.WaitUntil(mutex_, deadline);
      continue;
    }
    const auto check_at = now + kInterruptInterval;
    progress_.WaitUntil(mutex_, std::min(deadline, check_at));
    if (SteadyClock::now() < check_at) continue;
    mutex_.unlock();  // the check may take a lock that other callers hold
    const bool is_due = ScopedInterrupt::IsDue();
    mutex_.lock();
    if (is_due) return WaitEnd::kInterrupted;
  }
  return WaitEnd::kReady;
}

template <typename Ready>
Status GradientSender::WaitUntil(Ready ready, const char* what) {
  const auto deadline = DeadlineAfter(options_.wait_s);
  const auto end =
      WaitFor(deadline, [&]() NO_THREAD_SAFETY_ANALYSIS { return !failure_.ok() || ready(); });
  if (end == WaitEnd::kReady) return failure_;
  if (end == WaitEnd::kInterrupted) return {Code::kDeadlineExceeded, "interrupted"};
  return {Code::kDeadlineExceeded, std::to_string(stats_.open) +
                                       " mini-batches not yet applied: waited " +
                                       ShowSeconds(options_.wait_s) + " for " + what};
}

// -- The sender's thread --------------------------------------------------------------------------

void GradientSender::Run() {
  for (;;) {
    std::vector<Contribution> batches = Take();
    const std::size_t count = batches.size();
    if (count == 0) break;
    bool is_refresh_due = false;
    {
      MutexLock lock(mutex_);
      is_refresh_due = since_refresh_ + count > options_.refresh_after;
    }
    Status status;
    try {
      status = Send(batches, is_refresh_due);
    } catch (const std::exception& error) {
      status = {Code::kInternal, std::string("sending gradients: ") + error.what()};
    }
    MutexLock lock(mutex_);
    for (Contribution& batch : batches) spent_.push_back(std::move(batch.memory));
    if (!status.ok()) {
      FailLocked(status, nullptr);
      break;
    }
    stats_.open -= count;
    applied_ += count;
    since_refresh_ = is_refresh_due ? 0 : since_refresh_ + count;
    progress_.notify_all();
  }
  MutexLock lock(mutex_);
  running_ = false;
  progress_.notify_all();
}

std::vector<Contribution> GradientSender::Take() {
  std::vector<Contribution> taken;
  MutexLock lock(mutex_);
  work_.Wait(mutex_,
             [&]() REQUIRES(mutex_) { return !queue_.empty() || closed_ || !failure_.ok(); });
  while (failure_.ok() && taken.size() < std::min(options_.max_merge, kMaxMerged)) {
    if (queue_.empty() && !Linger()) break;
    if (!taken.empty() && (taken.back().alone || queue_.front().alone)) break;
    taken.push_back(std::move(queue_.front()));
    queue_.pop_front();
    progress_.notify_all();
  }
  if (failure_.ok()) return taken;
  for (Contribution& batch : taken) spent_.push_back(std::move(batch.memory));
  return {};
}

// Waits briefly for another mini-batch, unless a caller is in a hurry; returns whether one arrived.
bool GradientSender::Linger() {
  const auto is_over = [&]() REQUIRES(mutex_) {
    return !queue_.empty() || hurried_ > 0 || closed_ || !failure_.ok();
  };
  if (options_.linger_s > 0) work_.WaitUntil(mutex_, DeadlineAfter(options_.linger_s), is_over);
  return !queue_.empty() && failure_.ok();
}

Status GradientSender::Send(std::span<const Contribution> batches, bool is_refresh_due) {
  auto store = OpenStore();
  if (!store.ok()) return store.status();
  bool is_bounded = false;
  {
    MutexLock lock(mutex_);
    is_bounded = clock_group_.has_value();
  }
  TableNames fetched;
  // With a staleness bound, values are fetched after the other workers have caught up.
  const bool takes_values = is_refresh_due && !is_bounded;
  if (Status s = Push(*store.value(), batches, takes_values, fetched); !s.ok()) return s;
  if (options_.on_pushed) {
    if (Status s = options_.on_pushed(batches.size()); !s.ok()) return s;
  }
  if (is_bounded) {
    if (Status s = WaitForSlowWorkers(*store.value(), batches.size()); !s.ok()) return s;
  }
  return is_refresh_due ? FetchDense(*store.value(), fetched) : Status::Ok();
}

Status GradientSender::Push(Store& store, std::span<const Contribution> batches, bool takes_values,
                            TableNames& fetched) {
  const auto begin = SteadyClock::now();
  std::vector<const Contribution*> contributions;
  contributions.reserve(batches.size());
  for (const Contribution& batch : batches) contributions.push_back(&batch);
  auto merged = merge_.Build(contributions, options_.summed);
  if (!merged.ok()) return merged.status();
  std::vector<PushSection> sections(merged.value().begin(), merged.value().end());
  if (takes_values) {
    for (const DenseTarget& target : options_.dense) {
      const auto section = std::ranges::find(sections, target.table, &PushSection::table);
      if (section == sections.end()) continue;
      section->out = target.values;
      fetched.insert(target.table);
    }
  }
  const std::vector<DataMark> marks = MarksOf(batches);
  if (!marks.empty()) sections.emplace_back().marks = marks;
  const std::uint64_t step = step_->fetch_add(1) + 1;
  std::optional<MutexLock> dense_lock;
  if (takes_values) dense_lock.emplace(dense_mutex_);
  auto result = store.Push(sections, step, options_.timeout_s);
  if (!result.ok()) return result.status();
  const std::uint64_t num_rejected = result.value().rejected_non_finite;
  std::string tables;
  if (num_rejected > 0) {
    for (const PushSection& section : sections) {
      tables.append(tables.empty() ? "" : ", ").append(section.table);
    }
  }
  MutexLock lock(mutex_);
  if (num_rejected > 0) rejected_[tables] += num_rejected;
  ++stats_.pushes;
  stats_.merged += batches.size();
  stats_.push_s += SecondsSince(begin);
  return Status::Ok();
}

Status GradientSender::WaitForSlowWorkers(Store& store, std::size_t count) {
  ClockGroup group;
  {
    MutexLock lock(mutex_);
    clock_group_->applied += count;
    group = *clock_group_;
  }
  group.member.group = group.group;
  const ScopedInterrupt interrupt([this] { return HasFailed(); });
  const auto total = store.AdvanceClock(group.member, group.applied, group.ahead, options_.wait_s);
  return total.status();
}

Status GradientSender::FetchDense(Store& store, const TableNames& fetched) {
  std::vector<PullSection> sections;
  for (const DenseTarget& target : options_.dense) {
    if (!fetched.contains(target.table))
      sections.push_back({target.table, {}, target.values, true});
  }
  if (sections.empty()) return Status::Ok();
  const auto begin = SteadyClock::now();
  MutexLock dense_lock(dense_mutex_);
  const Status status = store.Pull(sections, PullMode::kTrain, step_->load(), options_.timeout_s);
  MutexLock lock(mutex_);
  stats_.pull_s += SecondsSince(begin);
  return status;
}

Result<std::shared_ptr<Store>> GradientSender::OpenStore() const {
  if (std::shared_ptr<Store> store = store_.lock()) return store;
  return Status(Code::kInvalidArgument, "the store is closed");
}

bool GradientSender::HasFailed() const {
  MutexLock lock(mutex_);
  return !failure_.ok();
}

}  // namespace sparsefleet
