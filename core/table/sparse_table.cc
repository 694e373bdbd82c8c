#include "table/sparse_table.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
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
constexpr std::size_t kMaxKeptFloats = 4 << 20;  // a thread gives larger buffers back

// Buffers of one call, kept by the thread for its next.
struct Scratch {
  BatchPlan plan;
  UniqueKeys unique;
  std::vector<BatchItem> missing;
  std::vector<Key> missing_keys;
  std::vector<float> rows;
  std::vector<float> row;
};

Scratch& ThreadScratch() {
  thread_local Scratch scratch;
  if (scratch.rows.capacity() > kMaxKeptFloats) scratch = Scratch();
  return scratch;
}

std::uint32_t SystemSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

// Visits the shards in a cycle that starts where the batch's first key lives, so that
// threads do not queue up behind one another from shard 0 on.
template <typename Visit>
void ForEachShard(const BatchPlan& plan, Key first_key, Visit visit) {
  const std::size_t start = ShardOf(first_key);
  for (std::size_t i = 0; i < kNumShards; ++i) {
    const std::size_t number = (start + i) % kNumShards;
    const auto items = plan.shard(number);
    if (!items.empty()) visit(number, items);
  }
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

  Moment Now(std::uint64_t step) const {
    const std::uint64_t last = 0xffffffff;
    return {step, static_cast<std::uint32_t>(std::min(step, last)),
            traits.spec.keeps_seconds() ? clock() : 0};
  }

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

  const TableTraits traits;
  const Clock clock;
  std::atomic<double> learning_rate;
  CutGate gate;
  std::array<std::unique_ptr<Shard>, kNumShards> shards;
  std::atomic<std::uint64_t> rows_pulled = 0;
  std::atomic<std::uint64_t> rows_pushed = 0;
  std::atomic<std::uint64_t> rejected_non_finite = 0;
  std::atomic<std::uint64_t> not_admitted = 0;
};

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
    ForEachShard(scratch.plan, keys[0], [&](std::size_t number, auto items) {
      impl_->shards[number]->Read(items, out.data(), scratch.missing);
    });
    if (!scratch.missing.empty()) {
      if (mode == PullMode::kTrain) {
        impl_->CreateMissing(scratch, step, out.data());
      } else {
        impl_->FillUnknown(mode, scratch.missing, out.data());
      }
    }
    impl_->rows_pulled.fetch_add(keys.size(), std::memory_order_relaxed);
  });
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
    ForEachShard(scratch.plan, scratch.missing_keys[0], [&](std::size_t number, auto items) {
      shards[number]->ReadOrCreate(items, now, scratch.rows.data());
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
    const Shard::Change change{input.data(), add, learning_rate, Now(step), scratch.row.data()};
    ForEachShard(scratch.plan, keys[0], [&](std::size_t number, auto items) {
      shards[number]->Apply(items, change, result);
    });
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
    ForEachShard(scratch.plan, keys[0], [&](std::size_t number, auto items) {
      erased += impl_->shards[number]->Erase(items);
    });
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
    ForEachShard(scratch.plan, rows.keys[0], [&](std::size_t number, auto items) {
      impl_->shards[number]->Import(items, rows);
    });
  });
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
  ~State() {
    for (; shard < kNumShards; ++shard) table->impl_->shards[shard]->CloseCut(parts[shard]);
  }

  std::shared_ptr<SparseTable> table;
  bool clear_dirty = false;
  std::size_t shard = 0;  // those before it are closed
  std::array<ShardCut, kNumShards> parts;
};

TableCut SparseTable::OpenCut(bool only_dirty, bool clear_dirty) {
  auto state = std::make_unique<TableCut::State>();
  state->table = shared_from_this();
  state->clear_dirty = clear_dirty;
  const auto alone = impl_->gate.EnterCut();
  for (std::size_t i = 0; i < kNumShards; ++i) {
    impl_->shards[i]->OpenCut(state->parts[i], only_dirty);
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
    shard.ReadCut(part, max_rows - out.keys.size(), state_->clear_dirty, out);
    if (!part.done()) continue;
    shard.CloseCut(part);
    ++state_->shard;
  }
  return !out.keys.empty();
}

}  // namespace sparsefleet
