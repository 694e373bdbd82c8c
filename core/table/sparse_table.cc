#include "table/sparse_table.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

#include "merge/unique.h"
#include "table/batch_plan.h"
#include "table/cut_gate.h"
#include "table/shard.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxBatchKeys = 0x7fffffff;
constexpr std::uint32_t kLastStepWord = 0xffffffff;
constexpr std::size_t kMaxKeptFloats = 4 << 20;  // a thread gives larger buffers back
constexpr std::size_t kMaxKeptItems = 1 << 20;

// Buffers of one call, kept by the thread for its next.
struct Scratch {
  BatchPlan plan;
  UniqueKeys unique;
  std::vector<BatchItem> missing;
  std::vector<Key> missing_keys;
  std::vector<float> rows;
  std::vector<float> row;
  std::vector<Key> changed;
};

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  if (scratch.rows.capacity() > kMaxKeptFloats || scratch.plan.capacity() > kMaxKeptItems) {
    scratch = Scratch();
  }
  return scratch;
}

std::uint32_t SystemSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

using Shards = std::array<std::unique_ptr<Shard>, kNumShards>;

// Calls visit(shard, its items) for the shards of the batch, in a cycle that starts where the
// batch's first key lives, so that threads do not queue up behind one another from shard 0
// on. Index entries of the shards to come are fetched meanwhile.
template <typename Visit>
void ForEachShard(const Shards& shards, const BatchPlan& plan, Key first_key, Visit visit) {
  const std::size_t start = ShardOf(first_key);
  std::size_t ahead = 0;    // shards whose entries are on their way
  std::size_t fetched = 0;  // their items not visited yet
  for (std::size_t i = 0; i < kNumShards; ++i) {
    for (; ahead < kNumShards && (ahead <= i || fetched < kPrefetchItems); ++ahead) {
      const std::size_t number = (start + ahead) % kNumShards;
      shards[number]->Prefetch(plan.shard(number));
      fetched += plan.shard(number).size();
    }
    const std::size_t number = (start + i) % kNumShards;
    const auto items = plan.shard(number);
    if (!items.empty()) visit(*shards[number], items);
    fetched -= items.size();
  }
}

// Takes the rows at the positions of `gone` out, keeping the order of the others.
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

struct SparseTable::Impl {
  Impl(SparseSpec table_spec, Clock table_clock)
      : traits(std::move(table_spec)),
        clock(std::move(table_clock)),
        learning_rate(traits.spec.optimizer.learning_rate) {
    for (auto& shard : shards) shard = std::make_unique<Shard>(traits);
  }

  std::string Prefix() const { return "table '" + traits.spec.name + "': "; }

  std::uint32_t Seconds() const { return traits.spec.keeps_seconds() ? clock() : 0; }

  // The moment of a call at this step, which the table has then seen.
  Moment Now(std::uint64_t step) {
    const auto word = static_cast<std::uint32_t>(std::min<std::uint64_t>(step, kLastStepWord));
    SeeStep(word);
    return {step, word, Seconds(), lowest_step};
  }

  void SeeStep(std::uint32_t word) {
    std::uint32_t seen = highest_step.load(std::memory_order_relaxed);
    while (word > seen && !highest_step.compare_exchange_weak(seen, word)) {
    }
    seen = lowest_step.load(std::memory_order_relaxed);
    while (word < seen && !lowest_step.compare_exchange_weak(seen, word)) {
    }
  }

  // The moment of rows that come without counters; their counters are seen where they have them.
  Moment NowOfImport(const RowBatch& rows);

  // Runs `work`, with memory that runs out as a status.
  template <typename Work>
  Status Guarded(Work work) const {
    try {
      work();
      return Status::Ok();
    } catch (const std::bad_alloc&) {
      return {Code::kTooLarge, Prefix() + "out of memory"};
    } catch (const std::length_error& error) {
      return {Code::kTooLarge, Prefix() + error.what()};
    }
  }

  Status CheckShape(std::size_t num_keys, std::size_t num_floats, std::string_view what) const;
  Status CheckFinite(std::span<const Key> keys, std::span<const float> gradients) const;
  void FillUnknown(PullMode mode, std::span<const BatchItem> missing, float* out) const;
  void CreateMissing(Scratch& scratch, std::uint64_t step, float* out);
  Result<PushResult> Change(std::span<const Key> keys, std::span<const float> input,
                            std::uint64_t step, bool keys_are_unique, bool add);

  // REQUIRES: a writer is in the gate.
  bool IsWatched() const { return num_watchers.load(std::memory_order_relaxed) > 0; }
  void TellWatchers(std::span<const Key> keys);

  const TableTraits traits;
  const Clock clock;
  std::atomic<double> learning_rate;
  CutGate gate;
  Shards shards;
  std::atomic<std::uint64_t> rows_pulled = 0;
  std::atomic<std::uint64_t> rows_pushed = 0;
  std::atomic<std::uint64_t> rejected_non_finite = 0;
  std::atomic<std::uint64_t> not_admitted = 0;
  std::atomic<std::uint32_t> highest_step = 0;
  std::atomic<std::uint32_t> lowest_step = kLastStepWord;
  std::atomic<std::size_t> num_watchers = 0;
  std::mutex watchers_mutex;
  std::vector<std::weak_ptr<ChangeSet>> watchers;
};

void SparseTable::Impl::TellWatchers(std::span<const Key> keys) {
  const std::lock_guard lock(watchers_mutex);
  std::erase_if(watchers, [&](const std::weak_ptr<ChangeSet>& watcher) {
    const auto set = watcher.lock();
    if (set != nullptr) set->Add(keys);
    return set == nullptr;
  });
  num_watchers = watchers.size();
}

Moment SparseTable::Impl::NowOfImport(const RowBatch& rows) {
  const std::size_t width = traits.layout.counter_dim();
  const std::size_t column = traits.layout.step_column();
  if (column < width) {
    for (std::size_t at = column; at < rows.counters.size(); at += width) {
      // 0 may stand for a row that was imported before the first step.
      if (rows.counters[at] != 0) SeeStep(rows.counters[at]);
    }
  }
  return {highest_step, highest_step, Seconds(), lowest_step};
}

Status SparseTable::Impl::CheckShape(std::size_t num_keys, std::size_t num_floats,
                                     std::string_view what) const {
  if (num_keys > kMaxBatchKeys) {
    return {Code::kTooLarge, Prefix() + std::to_string(num_keys) + " keys in one batch, at most " +
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

Result<std::shared_ptr<SparseTable>> SparseTable::Create(SparseSpec spec, Clock clock) {
  if (Status status = spec.Validate(); !status.ok()) return status;
  if (!clock) clock = SystemSeconds;
  auto impl = std::make_unique<Impl>(std::move(spec), std::move(clock));
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
  return impl_->Guarded([&] {
    Scratch& scratch = ThreadScratch();
    scratch.plan.Build(keys);
    scratch.missing.clear();
    ForEachShard(impl_->shards, scratch.plan, keys[0],
                 [&](Shard& shard, auto items) { shard.Read(items, out.data(), scratch.missing); });
    if (!scratch.missing.empty()) {
      if (mode == PullMode::kTrain) {
        impl_->CreateMissing(scratch, step, out.data());
      } else {
        impl_->FillUnknown(mode, scratch.missing, out.data());
      }
    }
    if (mode == PullMode::kTrain) {
      impl_->SeeStep(static_cast<std::uint32_t>(std::min<std::uint64_t>(step, kLastStepWord)));
    }
    impl_->rows_pulled.fetch_add(keys.size(), std::memory_order_relaxed);
  });
}

Status SparseTable::Contains(std::span<const Key> keys, std::span<bool> out) const {
  if (keys.size() > kMaxBatchKeys || out.size() != keys.size()) {
    return {Code::kShapeMismatch, impl_->Prefix() + std::to_string(keys.size()) +
                                      " keys and room for " + std::to_string(out.size()) +
                                      " answers, wanted as many, at most " +
                                      std::to_string(kMaxBatchKeys)};
  }
  if (keys.empty()) return Status::Ok();
  return impl_->Guarded([&] {
    Scratch& scratch = ThreadScratch();
    scratch.plan.Build(keys);
    ForEachShard(impl_->shards, scratch.plan, keys[0],
                 [&](Shard& shard, auto items) { shard.Find(items, out.data()); });
  });
}

Result<RowBatch> SparseTable::Read(std::span<const Key> keys) const {
  RowBatch rows;
  if (keys.empty()) return rows;
  if (keys.size() > kMaxBatchKeys) {
    return impl_->CheckShape(keys.size(), 0, "values");
  }
  const Status status = impl_->Guarded([&] {
    Scratch& scratch = ThreadScratch();
    scratch.plan.Build(keys);
    scratch.missing.clear();
    rows.keys.assign(keys.begin(), keys.end());
    rows.values.resize(keys.size() * dim());
    ForEachShard(impl_->shards, scratch.plan, keys[0], [&](Shard& shard, auto items) {
      shard.Read(items, rows.values.data(), scratch.missing);
    });
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
      traits.initializer.Fill(item.key, row);
    } else {
      std::fill(row.begin(), row.end(), 0.0F);
    }
  }
}

void SparseTable::Impl::CreateMissing(Scratch& scratch, std::uint64_t step, float* out) {
  const std::size_t dim = traits.spec.dim;
  scratch.missing_keys.clear();
  for (const BatchItem& item : scratch.missing) scratch.missing_keys.push_back(item.key);
  scratch.unique.Build(scratch.missing_keys);
  scratch.rows.resize(scratch.unique.size() * dim);
  scratch.plan.Build(scratch.unique.keys());
  {
    const auto writer = gate.EnterWriter();
    const Moment now = Now(step);
    ForEachShard(shards, scratch.plan, scratch.missing_keys[0], [&](Shard& shard, auto items) {
      shard.ReadOrCreate(items, now, scratch.rows.data());
    });
  }
  for (std::size_t i = 0; i < scratch.missing.size(); ++i) {
    std::memcpy(out + scratch.missing[i].position * dim,
                scratch.rows.data() + scratch.unique.inverse()[i] * dim, dim * sizeof(float));
  }
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
  return impl_->Change(keys, gradients, step, keys_are_unique, false);
}

Result<PushResult> SparseTable::Add(std::span<const Key> keys, std::span<const float> deltas,
                                    std::uint64_t step, bool keys_are_unique) {
  if (Status status = CheckPush(keys, deltas); !status.ok()) return status;
  return impl_->Change(keys, deltas, step, keys_are_unique, true);
}

Result<PushResult> SparseTable::Impl::Change(std::span<const Key> keys,
                                             std::span<const float> input, std::uint64_t step,
                                             bool keys_are_unique, bool add) {
  PushResult result;
  if (keys.empty()) return result;
  const Status status = Guarded([&] {
    Scratch& scratch = ThreadScratch();
    scratch.row.resize(traits.spec.dim);
    if (!keys_are_unique && keys.size() > 1) {
      scratch.unique.Build(keys);
      if (scratch.unique.has_repeats()) {
        scratch.rows.resize(scratch.unique.size() * traits.spec.dim);
        SumRows(input, scratch.unique.inverse(), traits.spec.dim, scratch.rows);
        keys = scratch.unique.keys();
        input = scratch.rows;
      }
    }
    scratch.plan.Build(keys);
    const auto writer = gate.EnterWriter();
    const bool is_watched = IsWatched();
    scratch.changed.clear();
    const Shard::Change change{input.data(),       add,
                               learning_rate,      Now(step),
                               scratch.row.data(), is_watched ? &scratch.changed : nullptr};
    ForEachShard(shards, scratch.plan, keys[0],
                 [&](Shard& shard, auto items) { shard.Apply(items, change, result); });
    if (is_watched) TellWatchers(scratch.changed);
  });
  rows_pushed.fetch_add(result.applied, std::memory_order_relaxed);
  rejected_non_finite.fetch_add(result.rejected_non_finite, std::memory_order_relaxed);
  not_admitted.fetch_add(result.not_admitted, std::memory_order_relaxed);
  if (!status.ok()) return status;
  return result;
}

std::uint64_t SparseTable::Shrink(std::uint64_t step) {
  const Moment now = impl_->Now(step);
  std::uint64_t evicted = 0;
  for (auto& shard : impl_->shards) evicted += shard->Shrink(now);
  return evicted;
}

std::uint64_t SparseTable::Erase(std::span<const Key> keys) {
  std::uint64_t erased = 0;
  for (; !keys.empty(); keys = keys.subspan(std::min(keys.size(), kMaxBatchKeys))) {
    Scratch& scratch = ThreadScratch();
    scratch.plan.Build(keys.first(std::min(keys.size(), kMaxBatchKeys)));
    const auto writer = impl_->gate.EnterWriter();
    ForEachShard(impl_->shards, scratch.plan, keys[0],
                 [&](Shard& shard, auto items) { erased += shard.Erase(items); });
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
    Scratch& scratch = ThreadScratch();
    scratch.plan.Build(rows.keys);
    const auto writer = impl_->gate.EnterWriter();
    const Moment now = impl_->NowOfImport(rows);
    ForEachShard(impl_->shards, scratch.plan, rows.keys[0],
                 [&](Shard& shard, auto items) { shard.Import(items, rows, now); });
    if (impl_->IsWatched()) impl_->TellWatchers(rows.keys);
  });
}

std::shared_ptr<ChangeSet> SparseTable::WatchChanges() {
  auto set = std::make_shared<ChangeSet>();
  // Alone: no push that has looked for watchers already is still under way.
  const auto alone = impl_->gate.EnterCut();
  const std::lock_guard lock(impl_->watchers_mutex);
  impl_->watchers.push_back(set);
  impl_->num_watchers = impl_->watchers.size();
  return set;
}

SparseStats SparseTable::Stats() const {
  SparseStats stats;
  stats.memory_bytes = sizeof(SparseTable) + sizeof(Impl);
  for (const auto& shard : impl_->shards) shard->AddStats(stats);
  stats.payload_bytes = stats.rows * (sizeof(Key) + (dim() + state_dim()) * sizeof(float));
  stats.rows_pulled = impl_->rows_pulled;
  stats.rows_pushed = impl_->rows_pushed;
  stats.rejected_non_finite = impl_->rejected_non_finite;
  stats.not_admitted = impl_->not_admitted;
  return stats;
}

struct TableCut::State {
  ~State() { Close(kNumShards); }

  // Closes the parts before `end`.
  void Close(std::size_t end) {
    for (; first_open < end; ++first_open) {
      table->impl_->shards[first_open]->CloseCut(parts[first_open]);
    }
  }

  std::shared_ptr<SparseTable> table;
  bool clear_dirty = false;
  bool at_end = false;
  std::size_t shard = 0;       // those before it have been handed out
  std::size_t first_open = 0;  // those before it are closed
  std::array<ShardCut, kNumShards> parts;
};

Status SparseTable::CheckCut(bool only_dirty) const {
  if (!only_dirty || spec().track_dirty) return Status::Ok();
  return {Code::kInvalidArgument,
          impl_->Prefix() + "only_dirty needs a table with track_dirty; this one has it off"};
}

TableCut SparseTable::OpenCut(bool only_dirty, bool clear_dirty) {
  const bool tracks = spec().track_dirty;
  const CutMode mode{only_dirty && tracks, clear_dirty && tracks};
  auto state = std::make_unique<TableCut::State>();
  state->table = shared_from_this();
  state->clear_dirty = mode.clear_dirty;
  const auto alone = impl_->gate.EnterCut();
  for (std::size_t i = 0; i < kNumShards; ++i) {
    impl_->shards[i]->OpenCut(state->parts[i], mode);
  }
  return TableCut(std::move(state));
}

TableCut::TableCut(std::unique_ptr<State> state) : state_(std::move(state)) {}
TableCut::TableCut(TableCut&&) noexcept = default;
TableCut& TableCut::operator=(TableCut&&) noexcept = default;
TableCut::~TableCut() = default;

bool TableCut::Next(std::size_t max_rows, RowBatch& out) {
  out.clear();
  max_rows = std::max<std::size_t>(max_rows, 1);
  auto& shards = state_->table->impl_->shards;
  while (state_->shard < kNumShards && out.keys.size() < max_rows) {
    Shard& shard = *shards[state_->shard];
    ShardCut& part = state_->parts[state_->shard];
    shard.ReadCut(part, max_rows - out.keys.size(), out);
    if (!part.done()) continue;
    ++state_->shard;
    // A clearing cut must go on watching which of its rows change.
    if (!state_->clear_dirty) state_->Close(state_->shard);
  }
  state_->at_end = out.keys.empty();
  return !state_->at_end;
}

bool TableCut::at_end() const { return state_->at_end; }

void TableCut::Commit() {
  if (!state_->at_end) return;
  for (; state_->first_open < kNumShards; state_->Close(state_->first_open + 1)) {
    state_->table->impl_->shards[state_->first_open]->ClearDirty(state_->parts[state_->first_open]);
  }
}

}  // namespace sparsefleet
