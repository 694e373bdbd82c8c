#include "table/sparse_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "sync/mutex.h"
#include "table/pinned_seconds.h"
#include "table/sparse_table_impl.h"

namespace sparsefleet {

namespace {

constexpr std::size_t kMaxBatchKeys = 0x7fffffff;
constexpr std::size_t kMaxKeptFloats = 4 << 20;  // larger buffers are freed
constexpr std::size_t kMaxKeptItems = 1 << 20;

TableScratch& ThreadScratch() {
  thread_local TableScratch scratch;
  if (scratch.rows.capacity() > kMaxKeptFloats || scratch.plan.capacity() > kMaxKeptItems) {
    scratch = TableScratch();
  }
  return scratch;
}

// Removes the rows at positions `gone`, keeping the order of the others.
void RemoveRows(std::vector<BatchItem>& gone, std::size_t dim, RowBatch& rows) {
  if (gone.empty()) return;
  std::ranges::sort(gone, {}, &BatchItem::position);
  std::size_t to = 0;
  auto next = gone.begin();
  for (std::size_t from = 0; from < rows.keys.size(); ++from) {
    if (next != gone.end() && next->position == from) {
      ++next;
      continue;
    }
    rows.keys[to] = rows.keys[from];
    std::memmove(rows.values.data() + to * dim, rows.values.data() + from * dim,
                 dim * sizeof(float));
    ++to;
  }
  rows.keys.resize(to);
  rows.values.resize(to * dim);
}

}  // namespace

PushResult& PushResult::operator+=(const PushResult& other) {
  applied += other.applied;
  rejected_non_finite += other.rejected_non_finite;
  not_admitted += other.not_admitted;
  return *this;
}

void RowBatch::clear() {
  keys.clear();
  values.clear();
  state.clear();
  counters.clear();
}

Moment SparseTable::Impl::NowOfImport(const RowBatch& rows) {
  const std::size_t width = traits.layout.counter_dim();
  const std::size_t column = traits.layout.step_column();
  if (column < width) {
    for (std::size_t at = column; at < rows.counters.size(); at += width) {
      // 0 may stand for a row imported before the first step.
      if (rows.counters[at] != 0) SeeStep(rows.counters[at]);
    }
  }
  return {highest_step, highest_step, Seconds(), lowest_step};
}

Status SparseTable::Impl::CheckShape(std::size_t num_keys, std::size_t num_floats,
                                     std::string_view what) const {
  if (num_keys > kMaxBatchKeys) {
    return {Code::kTooLarge, Prefix() + std::to_string(num_keys) +
                                 " keys in one batch, expected at most " +
                                 std::to_string(kMaxBatchKeys)};
  }
  const std::size_t dim = traits.spec.dim;
  if (num_floats == num_keys * dim) return Status::Ok();
  return {Code::kShapeMismatch, Prefix() + std::to_string(num_keys) + " keys of width " +
                                    std::to_string(dim) + " need " +
                                    std::to_string(num_keys * dim) + " " + std::string(what) +
                                    ", got " + std::to_string(num_floats)};
}

Status SparseTable::Impl::CheckFinite(std::span<const Key> keys,
                                      std::span<const float> gradients) const {
  const auto all_finite = traits.optimizer.kernels().all_finite;
  if (all_finite(gradients.data(), gradients.size())) return Status::Ok();
  const auto bad = std::find_if(gradients.begin(), gradients.end(),
                                [](float value) { return !std::isfinite(value); });
  const auto at = static_cast<std::size_t>(bad - gradients.begin());
  const std::size_t row = at / traits.spec.dim;
  return {Code::kNonFinite, Prefix() + "gradient of key " + std::to_string(keys[row]) + " (row " +
                                std::to_string(row) + ", column " +
                                std::to_string(at % traits.spec.dim) + ") is " +
                                std::to_string(*bad) + "; nothing was applied"};
}

Result<std::shared_ptr<SparseTable>> SparseTable::Create(SparseSpec spec, Clock clock,
                                                         const KeyHash& hash) {
  if (Status status = spec.Validate(); !status.ok()) return status;
  if (!clock) clock = PinnedSeconds::Now;
  auto impl = std::make_unique<Impl>(std::move(spec), std::move(clock), hash);
  return std::shared_ptr<SparseTable>(new SparseTable(std::move(impl)));
}

SparseTable::SparseTable(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SparseTable::~SparseTable() = default;

const SparseSpec& SparseTable::spec() const { return impl_->traits.spec; }
std::uint32_t SparseTable::dim() const { return impl_->traits.layout.dim(); }
std::uint32_t SparseTable::state_dim() const { return impl_->traits.layout.state_dim(); }
std::uint32_t SparseTable::counter_dim() const { return impl_->traits.layout.counter_dim(); }

Status SparseTable::Pull(std::span<const Key> keys, PullMode mode, std::uint64_t step,
                         std::span<float> out) {
  if (Status status = impl_->CheckShape(keys.size(), out.size(), "floats of room"); !status.ok()) {
    return status;
  }
  if (keys.empty()) return Status::Ok();
  Status created;
  const Status status = impl_->Guarded([&] {
    TableScratch& scratch = ThreadScratch();
    scratch.plan.Build(keys, impl_->traits.hash);
    scratch.missing.clear();
    ForEachShard(
        impl_->shards, scratch.plan,
        [&](std::size_t, Shard& shard, auto items) {
          shard.Read(items, out.data(), scratch.missing);
        },
        true);
    if (!scratch.missing.empty()) {
      if (mode == PullMode::kTrain) {
        created = impl_->CreateMissing(scratch, step, out.data());
        if (!created.ok()) return;
      } else {
        impl_->FillUnknown(mode, scratch.missing, out.data());
      }
    }
    if (mode == PullMode::kTrain) {
      impl_->SeeStep(static_cast<std::uint32_t>(std::min<std::uint64_t>(step, kLastStepWord)));
      impl_->pulled_norms.Look(out.data(), keys.size(), dim());
    }
    impl_->rows_pulled.fetch_add(keys.size(), std::memory_order_relaxed);
  });
  return status.ok() ? created : status;
}

Status SparseTable::Contains(std::span<const Key> keys, std::span<bool> out) const {
  if (keys.size() > kMaxBatchKeys || out.size() != keys.size()) {
    return {Code::kShapeMismatch, impl_->Prefix() + std::to_string(keys.size()) +
                                      " keys and room for " + std::to_string(out.size()) +
                                      " answers, expected the same number, at most " +
                                      std::to_string(kMaxBatchKeys)};
  }
  if (keys.empty()) return Status::Ok();
  return impl_->Guarded([&] {
    TableScratch& scratch = ThreadScratch();
    scratch.plan.Build(keys, impl_->traits.hash);
    ForEachShard(impl_->shards, scratch.plan,
                 [&](std::size_t, Shard& shard, auto items) { shard.Find(items, out.data()); });
  });
}

Result<std::vector<std::uint32_t>> SparseTable::PullKnown(std::span<const Key> keys,
                                                          std::span<float> out) const {
  if (Status status = impl_->CheckShape(keys.size(), out.size(), "floats of room"); !status.ok()) {
    return status;
  }
  std::vector<std::uint32_t> unknown;
  if (keys.empty()) return unknown;
  const Status status = impl_->Guarded([&] {
    TableScratch& scratch = ThreadScratch();
    scratch.plan.Build(keys, impl_->traits.hash);
    scratch.missing.clear();
    ForEachShard(
        impl_->shards, scratch.plan,
        [&](std::size_t, Shard& shard, auto items) {
          shard.Read(items, out.data(), scratch.missing);
        },
        true);
    unknown.reserve(scratch.missing.size());
    for (const BatchItem& item : scratch.missing) unknown.push_back(item.position);
    std::ranges::sort(unknown);
  });
  if (!status.ok()) return status;
  return unknown;
}

Result<RowBatch> SparseTable::Read(std::span<const Key> keys) const {
  RowBatch rows;
  if (keys.empty()) return rows;
  if (keys.size() > kMaxBatchKeys) {
    return impl_->CheckShape(keys.size(), 0, "values");
  }
  const Status status = impl_->Guarded([&] {
    TableScratch& scratch = ThreadScratch();
    scratch.plan.Build(keys, impl_->traits.hash);
    scratch.missing.clear();
    rows.keys.assign(keys.begin(), keys.end());
    rows.values.resize(keys.size() * dim());
    ForEachShard(
        impl_->shards, scratch.plan,
        [&](std::size_t, Shard& shard, auto items) {
          shard.Read(items, rows.values.data(), scratch.missing);
        },
        true);
    RemoveRows(scratch.missing, dim(), rows);
  });
  if (!status.ok()) return status;
  return rows;
}

void SparseTable::Impl::FillUnknown(PullMode mode, std::span<const BatchItem> missing,
                                    float* out) const {
  const std::size_t dim = traits.spec.dim;
  for (const BatchItem& item : missing) {
    const std::span<float> row(out + item.position * dim, dim);
    if (mode == PullMode::kInferInitial) {
      traits.FillInitial(item.key, row);
    } else {
      std::fill(row.begin(), row.end(), 0.0F);
    }
  }
}

Status SparseTable::Impl::CreateMissing(TableScratch& scratch, std::uint64_t step, float* out) {
  const std::size_t dim = traits.spec.dim;
  scratch.missing_keys.clear();
  for (const BatchItem& item : scratch.missing) scratch.missing_keys.push_back(item.key);
  scratch.unique.Build(scratch.missing_keys);
  scratch.rows.resize(scratch.unique.size() * dim);
  scratch.plan.Build(scratch.unique.keys(), traits.hash);
  {
    std::shared_lock<std::shared_mutex> logged;
    std::optional<PinnedSeconds> pinned;
    if (births != nullptr) {
      logged = births->Enter();
      const std::uint32_t seconds = PinnedSeconds::Now();
      pinned.emplace(seconds);
      Status s = births->Append(traits.spec.name, scratch.unique.keys(), step, seconds);
      if (!s.ok()) return s;
    }
    const auto writer = gate.EnterWriter();
    const Moment now = Now(step);
    ForEachShard(shards, scratch.plan, [&](std::size_t, Shard& shard, auto items) {
      shard.ReadOrCreate(items, now, scratch.rows.data());
    });
  }
  for (std::size_t i = 0; i < scratch.missing.size(); ++i) {
    std::memcpy(out + scratch.missing[i].position * dim,
                scratch.rows.data() + scratch.unique.inverse()[i] * dim, dim * sizeof(float));
  }
  return Status::Ok();
}

Status SparseTable::CheckPush(std::span<const Key> keys, std::span<const float> gradients) const {
  if (Status status = impl_->CheckShape(keys.size(), gradients.size(), "gradients"); !status.ok()) {
    return status;
  }
  if (spec().non_finite != NonFinitePolicy::kRaise) return Status::Ok();
  return impl_->CheckFinite(keys, gradients);
}

Result<PushResult> SparseTable::Push(std::span<const Key> keys, std::span<const float> gradients,
                                     std::uint64_t step, bool keys_are_unique) {
  if (Status status = CheckPush(keys, gradients); !status.ok()) return status;
  return Change(keys, gradients, step, keys_are_unique, false);
}

Result<PushResult> SparseTable::Add(std::span<const Key> keys, std::span<const float> deltas,
                                    std::uint64_t step, bool keys_are_unique) {
  if (Status status = CheckPush(keys, deltas); !status.ok()) return status;
  return Change(keys, deltas, step, keys_are_unique, true);
}

std::uint64_t SparseTable::Erase(std::span<const Key> keys) {
  std::uint64_t erased = 0;
  for (; !keys.empty(); keys = keys.subspan(std::min(keys.size(), kMaxBatchKeys))) {
    TableScratch& scratch = ThreadScratch();
    scratch.plan.Build(keys.first(std::min(keys.size(), kMaxBatchKeys)), impl_->traits.hash);
    const auto writer = impl_->gate.EnterWriter();
    ForEachShard(impl_->shards, scratch.plan,
                 [&](std::size_t, Shard& shard, auto items) { erased += shard.Erase(items); });
  }
  return erased;
}

void SparseTable::Clear() {
  const auto writer = impl_->gate.EnterWriter();
  for (auto& shard : impl_->shards) shard->Clear();
}

double SparseTable::learning_rate() const { return impl_->learning_rate; }

Status SparseTable::SetLearningRate(double learning_rate) {
  if (!std::isfinite(learning_rate) || learning_rate < 0) {
    return {Code::kInvalidArgument, impl_->Prefix() +
                                        "learning rate must be finite and >= 0, got " +
                                        std::to_string(learning_rate)};
  }
  impl_->learning_rate = learning_rate;
  return Status::Ok();
}

Status SparseTable::Import(const RowBatch& rows) {
  const std::size_t num_keys = rows.keys.size();
  if (Status status = impl_->CheckShape(num_keys, rows.values.size(), "values"); !status.ok()) {
    return status;
  }
  const auto fits = [num_keys](std::size_t found, std::uint32_t width) {
    return found == 0 || found == num_keys * width;
  };
  if (!fits(rows.state.size(), state_dim()) || !fits(rows.counters.size(), counter_dim())) {
    return {Code::kShapeMismatch,
            impl_->Prefix() + std::to_string(num_keys) + " rows need " +
                std::to_string(num_keys * state_dim()) + " floats of state and " +
                std::to_string(num_keys * counter_dim()) + " counters, or none; got " +
                std::to_string(rows.state.size()) + " and " + std::to_string(rows.counters.size())};
  }
  if (num_keys == 0) return Status::Ok();
  return impl_->Guarded([&] {
    TableScratch& scratch = ThreadScratch();
    scratch.plan.Build(rows.keys, impl_->traits.hash);
    const auto writer = impl_->gate.EnterWriter();
    const Moment now = impl_->NowOfImport(rows);
    const bool is_watched = impl_->changes->is_watched();
    ForEachShard(impl_->shards, scratch.plan, [&](std::size_t number, Shard& shard, auto items) {
      if (is_watched) impl_->changes->Reserve(number, items.size());
      try {
        shard.Import(items, rows, now);
      } catch (...) {  // some rows may have changed
        if (is_watched) impl_->changes->Add(number, items, items.size());
        throw;
      }
      if (is_watched) impl_->changes->Add(number, items, items.size());
    });
  });
}

std::shared_ptr<ChangeCursor> SparseTable::WatchChanges() {
  // Alone: no push that has already checked for watchers is still running.
  const auto alone = impl_->gate.EnterCut();
  return impl_->changes->Watch();
}

std::size_t SparseTable::LongestProbe() const {
  std::size_t longest = 0;
  for (const auto& shard : impl_->shards) longest = std::max(longest, shard->LongestProbe());
  return longest;
}

SparseStats SparseTable::Stats() const {
  SparseStats stats;
  stats.memory_bytes = sizeof(SparseTable) + sizeof(Impl);
  for (const auto& shard : impl_->shards) shard->AddStats(stats);
  stats.memory_bytes += impl_->changes->memory_bytes();
  stats.payload_bytes = stats.rows * (sizeof(Key) + impl_->traits.layout.codec().bytes() +
                                      state_dim() * sizeof(float));
  stats.rows_pulled = impl_->rows_pulled;
  stats.rows_pushed = impl_->rows_pushed;
  stats.rejected_non_finite = impl_->rejected_non_finite;
  stats.not_admitted = impl_->not_admitted;
  stats.row_squares = impl_->pulled_norms.squares();
  stats.rows_sampled = impl_->pulled_norms.count();
  stats.gradient_squares = impl_->gradient_norms.squares();
  stats.gradients_sampled = impl_->gradient_norms.count();
  return stats;
}

}  // namespace sparsefleet
