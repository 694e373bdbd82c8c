// The internals of a sparse table, for the files that implement it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "merge/unique.h"
#include "sync/mutex.h"
#include "table/batch_plan.h"
#include "table/birth_log.h"
#include "table/cut_gate.h"
#include "table/norm_sample.h"
#include "table/shard.h"
#include "table/sparse_table.h"

namespace sparsefleet {

inline constexpr std::uint32_t kLastStepWord = 0xffffffff;

static_assert(SparseTable::kRestoredParts == kNumShards);

using Shards = std::array<std::unique_ptr<Shard>, kNumShards>;

// Buffers of one call, kept by the thread for its next.
struct TableScratch {
  BatchPlan plan;
  UniqueKeys unique;
  std::vector<BatchItem> missing;
  std::vector<Key> missing_keys;
  std::vector<float> rows;
  std::vector<float> row;
  std::vector<BatchItem> changed;
};

// Calls visit(shard number, shard, its items) for the shards of the batch, in a cycle that starts
// at the shard of the batch's first key, so that threads do not queue up behind one another from
// shard 0 on. Prefetches the index entries of the following shards meanwhile and, with
// `prefetch_rows`, their rows: a small batch has so few items per shard that the visit itself
// cannot hide the misses.
template <typename Visit>
void ForEachShard(const Shards& shards, const BatchPlan& plan, Visit visit,
                  bool prefetch_rows = false) {
  constexpr std::size_t kFewItems = 8;     // per shard
  constexpr std::size_t kShardsAhead = 8;  // enough to hide a miss
  const std::size_t start = plan.first_shard();
  std::size_t ahead = 0;    // shards whose entries are on their way
  std::size_t fetched = 0;  // their items not visited yet
  std::size_t located = 0;  // shards whose rows are on their way
  for (std::size_t i = 0; i < kNumShards; ++i) {
    for (; ahead < kNumShards && (ahead <= i || fetched < kPrefetchItems); ++ahead) {
      const std::size_t number = (start + ahead) % kNumShards;
      shards[number]->Prefetch(plan.shard(number));
      fetched += plan.shard(number).size();
    }
    for (; prefetch_rows && located < std::min(ahead, i + kShardsAhead); ++located) {
      const std::size_t number = (start + located) % kNumShards;
      const auto items = plan.shard(number);
      if (!items.empty() && items.size() <= kFewItems) shards[number]->PrefetchRows(items);
    }
    const std::size_t number = (start + i) % kNumShards;
    const auto items = plan.shard(number);
    if (!items.empty()) visit(number, *shards[number], items);
    fetched -= items.size();
  }
}

struct SparseTable::Impl {
  Impl(SparseSpec table_spec, Clock table_clock, const KeyHash& hash)
      : traits(std::move(table_spec), hash),
        clock(std::move(table_clock)),
        learning_rate(traits.spec.optimizer.learning_rate),
        changes(std::make_shared<ChangeLog>(hash)) {
    for (auto& shard : shards) shard = std::make_unique<Shard>(traits);
  }

  std::string Prefix() const { return "table '" + traits.spec.name + "': "; }

  std::uint32_t Seconds() const { return traits.spec.keeps_seconds() ? clock() : 0; }

  // The moment of a call at this step, which the table records as seen.
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

  // The moment for rows imported without counters; counters that exist are recorded as seen.
  Moment NowOfImport(const RowBatch& rows);

  // Runs `work`, turning running out of memory into a status.
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
  Status CreateMissing(TableScratch& scratch, std::uint64_t step, float* out);

  const TableTraits traits;
  const Clock clock;
  std::atomic<double> learning_rate;
  CutGate gate;
  BirthLog* births = nullptr;
  Shards shards;
  std::atomic<std::uint64_t> rows_pulled = 0;
  std::atomic<std::uint64_t> rows_pushed = 0;
  std::atomic<std::uint64_t> rejected_non_finite = 0;
  std::atomic<std::uint64_t> not_admitted = 0;
  NormSample pulled_norms;
  NormSample gradient_norms;
  std::atomic<std::uint32_t> highest_step = 0;
  std::atomic<std::uint32_t> lowest_step = kLastStepWord;
  const std::shared_ptr<ChangeLog> changes;  // used while it is watched, by writers in the gate
};

}  // namespace sparsefleet
