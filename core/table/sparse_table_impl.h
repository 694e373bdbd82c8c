// What a sparse table is made of, for the files that implement it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "table/batch_plan.h"
#include "table/cut_gate.h"
#include "table/shard.h"
#include "table/sparse_table.h"

namespace sparsefleet {

inline constexpr std::uint32_t kLastStepWord = 0xffffffff;

using Shards = std::array<std::unique_ptr<Shard>, kNumShards>;

struct TableScratch;  // buffers of one call

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
  void CreateMissing(TableScratch& scratch, std::uint64_t step, float* out);
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

}  // namespace sparsefleet
