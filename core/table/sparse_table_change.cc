// Changes of a sparse table's rows: prepared first, so that they cannot fail halfway, then applied.
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "table/pinned_seconds.h"
#include "table/sparse_table.h"
#include "table/sparse_table_impl.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxKeptFloats = 4 << 20;  // larger buffers are freed
constexpr std::size_t kMaxKeptItems = 1 << 20;
constexpr std::size_t kMaxKeptScratch = 32;

// Scratch buffers not used by another change of this thread.
std::vector<std::unique_ptr<TableScratch>>& IdleScratch() {
  thread_local std::vector<std::unique_ptr<TableScratch>> idle;
  return idle;
}

std::unique_ptr<TableScratch> TakeScratch() {
  auto& idle = IdleScratch();
  if (idle.empty()) return std::make_unique<TableScratch>();
  auto scratch = std::move(idle.back());
  idle.pop_back();
  return scratch;
}

void GiveBack(std::unique_ptr<TableScratch> scratch) noexcept {
  auto& idle = IdleScratch();
  if (scratch->rows.capacity() > kMaxKeptFloats || scratch->plan.capacity() > kMaxKeptItems) return;
  if (idle.capacity() == 0) {
    try {
      idle.reserve(kMaxKeptScratch);
    } catch (const std::bad_alloc&) {
      return;
    }
  }
  if (idle.size() < kMaxKeptScratch) idle.push_back(std::move(scratch));
}

}  // namespace

struct PreparedChange::State {
  explicit State(SparseTable::Impl& changed) : table(changed), scratch(TakeScratch()) {}
  ~State() {
    for (std::size_t i = 0; i < kNumShards; ++i) {
      if (reserved[i] > 0) table.shards[i]->Unreserve(reserved[i]);
    }
    for (std::size_t i = 0; i < kNumShards; ++i) {
      if (changes[i] > 0) table.changes->Unreserve(i, changes[i]);
    }
    GiveBack(std::move(scratch));
  }

  SparseTable::Impl& table;
  std::unique_ptr<TableScratch> scratch;
  std::shared_lock<std::shared_mutex> writer;
  std::array<std::uint32_t, kNumShards> reserved{};
  bool is_watched = false;
  std::array<std::uint32_t, kNumShards> changes{};  // reserved in the log of changes
  std::span<const Key> keys;
  const float* input = nullptr;
  std::uint64_t step = 0;
  bool add = false;
  Moment now;
  struct Part {
    std::vector<float> row;
    std::vector<BatchItem> changed;
  };
  std::vector<Part> parts;  // scratch of the parts

  Shard::Change ChangeWith(std::vector<float>& row, std::vector<BatchItem>& changed) const {
    return {input, add, table.learning_rate, now, row.data(), is_watched ? &changed : nullptr};
  }
  void ApplyTo(std::size_t number, Shard& shard, std::span<const BatchItem> items,
               const Shard::Change& change, PushResult& result);
};

PreparedChange::PreparedChange(std::unique_ptr<State> state) : state_(std::move(state)) {}
PreparedChange::PreparedChange(PreparedChange&&) noexcept = default;
PreparedChange::~PreparedChange() = default;

Result<PreparedChange> SparseTable::Prepare(std::span<const Key> keys, std::span<const float> input,
                                            std::uint64_t step, bool keys_are_unique, bool add) {
  std::unique_ptr<PreparedChange::State> state;
  const Status status = impl_->Guarded([&] {
    state = std::make_unique<PreparedChange::State>(*impl_);
    state->step = step;
    state->add = add;
    if (keys.empty()) return;
    TableScratch& scratch = *state->scratch;
    scratch.row.resize(dim());
    if (!keys_are_unique && keys.size() > 1) {
      scratch.unique.Build(keys);
      if (scratch.unique.has_repeats()) {
        scratch.rows.resize(scratch.unique.size() * dim());
        SumRows(input, scratch.unique.inverse(), dim(), scratch.rows);
        keys = scratch.unique.keys();
        input = scratch.rows;
      }
    }
    scratch.plan.Build(keys, impl_->traits.hash);
    state->input = input.data();
    state->writer = impl_->gate.EnterWriter();
    state->keys = keys;
    state->is_watched = impl_->changes->is_watched();
    std::size_t most = 0;
    const bool creates = spec().admission.kind == AdmissionKind::kAlways;
    ForEachShard(
        impl_->shards, scratch.plan,
        [&](std::size_t number, Shard& shard, auto items) {
          if (state->is_watched) {
            impl_->changes->Reserve(number, items.size());
            state->changes[number] = static_cast<std::uint32_t>(items.size());
            most = std::max(most, items.size());
          }
          state->reserved[number] = shard.Reserve(items, creates);
        },
        true);
    scratch.changed.clear();
    scratch.changed.reserve(most);
  });
  if (!status.ok()) return status;
  return PreparedChange(std::move(state));
}

void PreparedChange::State::ApplyTo(std::size_t number, Shard& shard,
                                    std::span<const BatchItem> items, const Shard::Change& change,
                                    PushResult& result) {
  shard.Apply(items, change, std::exchange(reserved[number], 0), result);
  if (!is_watched) return;
  table.changes->Add(number, *change.changed, std::exchange(changes[number], 0));
  change.changed->clear();
}

PushResult PreparedChange::Apply() {
  Begin();
  PushResult result;
  State& state = *state_;
  if (state.keys.empty()) return result;
  TableScratch& scratch = *state.scratch;
  const Shard::Change change = state.ChangeWith(scratch.row, scratch.changed);
  ForEachShard(state.table.shards, scratch.plan, [&](std::size_t number, Shard& shard, auto items) {
    state.ApplyTo(number, shard, items, change, result);
  });
  End(result);
  return result;
}

void PreparedChange::Begin() {
  State& state = *state_;
  if (state.keys.empty()) return;
  SparseTable::Impl& table = state.table;
  table.gradient_norms.Look(state.input, state.keys.size(), table.traits.spec.dim);
  state.now = table.Now(state.step);
}

void PreparedChange::BeginParts() {
  State& state = *state_;
  state.parts.resize(kParts);
  for (State::Part& part : state.parts) {
    part.row.resize(state.scratch->row.size());
    part.changed.reserve(state.scratch->changed.capacity());
  }
  Begin();
}

PushResult PreparedChange::ApplyPart(std::size_t part) {
  PushResult result;
  State& state = *state_;
  if (state.keys.empty()) return result;
  const Shard::Change change = state.ChangeWith(state.parts[part].row, state.parts[part].changed);
  for (std::size_t number = part; number < kNumShards; number += kParts) {
    const auto items = state.scratch->plan.shard(number);
    if (items.empty()) continue;
    Shard& shard = *state.table.shards[number];
    shard.Prefetch(items);
    state.ApplyTo(number, shard, items, change, result);
  }
  return result;
}

void PreparedChange::End(const PushResult& total) {
  SparseTable::Impl& table = state_->table;
  table.rows_pushed.fetch_add(total.applied, std::memory_order_relaxed);
  table.rejected_non_finite.fetch_add(total.rejected_non_finite, std::memory_order_relaxed);
  table.not_admitted.fetch_add(total.not_admitted, std::memory_order_relaxed);
}

Result<PushResult> SparseTable::Change(std::span<const Key> keys, std::span<const float> input,
                                       std::uint64_t step, bool keys_are_unique, bool add) {
  auto prepared = Prepare(keys, input, step, keys_are_unique, add);
  if (!prepared.ok()) return prepared.status();
  return prepared.value().Apply();
}

std::uint64_t SparseTable::Shrink(std::uint64_t step) {
  const Moment now = impl_->Now(step);
  std::uint64_t evicted = 0;
  for (auto& shard : impl_->shards) evicted += shard->Shrink(now);
  return evicted;
}

Status SparseTable::ShrinkInParts(std::uint64_t step,
                                  const std::function<Status(const RemoveSome& remove)>& part) {
  const Moment now = impl_->Now(step);
  for (auto& shard : impl_->shards) {
    for (std::uint32_t next = kNoRow; next > 0;) {
      const RemoveSome remove = [&] {
        std::vector<Key> erased;
        shard->ShrinkPart(now, next, erased);
        return erased;
      };
      if (Status s = part(remove); !s.ok()) return s;
    }
  }
  return Status::Ok();
}

void SparseTable::HalveCandidates() {
  for (auto& shard : impl_->shards) shard->HalveCandidates();
}

void SparseTable::SetBirthLog(BirthLog* births) { impl_->births = births; }

void SparseTable::Restore(const Extra& extra) {
  impl_->highest_step = extra.highest_step;
  impl_->lowest_step = extra.lowest_step;
  for (auto& shard : impl_->shards) shard->RestoreRemovals(extra.keeps_removed, extra.removed_now);
}

void SparseTable::KeepRemoved() {
  const auto alone = impl_->gate.EnterCut();
  for (auto& shard : impl_->shards) shard->KeepRemoved();
}

std::size_t SparseTable::record_bytes() const { return impl_->traits.layout.stride(); }

Status SparseTable::RestoreRecords(std::span<const std::byte> records) {
  const std::size_t stride = record_bytes();
  if (records.size() % stride != 0) {
    return {Code::kCorrupt, impl_->Prefix() + std::to_string(records.size()) +
                                " bytes of rows are not a multiple of " + std::to_string(stride)};
  }
  return impl_->Guarded([&] {
    std::vector<Key> keys(records.size() / stride);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] = RowLayout::KeyOf(records.data() + i * stride);
    }
    if (keys.empty()) return;
    BatchPlan plan;
    plan.Build(keys, impl_->traits.hash);
    ForEachShard(impl_->shards, plan, [&](std::size_t, Shard& shard, auto items) {
      shard.ImportRecords(items, records.data());
    });
  });
}

Status SparseTable::IndexRestored(std::size_t part) {
  return impl_->Guarded([&] { impl_->shards[part]->IndexRecords(); });
}

std::size_t SparseTable::ShardOfRecord(std::span<const std::byte> records) const {
  if (records.size() < record_bytes()) return 0;
  return ShardOf(impl_->traits.hash(RowLayout::KeyOf(records.data())));
}

Status SparseTable::RestoreWords(std::span<const Key> keys, std::span<const std::uint32_t> words,
                                 bool are_candidates) {
  return impl_->Guarded([&] {
    if (keys.empty()) return;
    BatchPlan plan;
    plan.Build(keys, impl_->traits.hash);
    ForEachShard(impl_->shards, plan, [&](std::size_t, Shard& shard, auto items) {
      shard.RestoreWords(items, words.data(), are_candidates);
    });
  });
}

}  // namespace sparsefleet
