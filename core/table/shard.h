// One of a table's internal shards: rows, their index, and the lock over both.
// Thread-safe: every function takes the lock itself.
//
// Functions that change rows may throw std::bad_alloc or std::length_error; rows handled
// before that stay changed, the row at hand is untouched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <span>
#include <vector>

#include "optimizer/row_optimizer.h"
#include "table/batch_plan.h"
#include "table/initializer.h"
#include "table/key_words.h"
#include "table/removed_keys.h"
#include "table/row_index.h"
#include "table/row_layout.h"
#include "table/row_storage.h"
#include "table/shard_cut.h"
#include "table/sparse_table.h"

namespace sparsefleet {

// What the shards of a table share; constant after construction.
struct TableTraits {
  explicit TableTraits(SparseSpec table_spec);
  SparseSpec spec;
  RowOptimizer optimizer;
  RowLayout layout;
  Initializer initializer;
};

// The caller's step and the clock's second, as rows keep them.
struct Moment {
  std::uint64_t step = 0;
  std::uint32_t step_word = 0;  // step, at most 2^32 - 1
  std::uint32_t seconds = 0;
  std::uint32_t lowest_step_word = 0;  // of all that the table has seen
};

// Items whose memory is fetched together: enough to hide a miss, few enough to stay in the cache.
inline constexpr std::size_t kPrefetchItems = 64;

class alignas(64) Shard {
 public:
  explicit Shard(const TableTraits& traits) : traits_(traits), storage_(traits.layout.stride()) {}

  // Brings the index entries of the first kPrefetchItems items into the cache, without the lock.
  // The functions below are quicker if this came some time before them.
  void Prefetch(std::span<const BatchItem> items) const;

  // Copies the rows there are to `out`, by position; adds the other items to `missing`.
  void Read(std::span<const BatchItem> items, float* out, std::vector<BatchItem>& missing) const;

  // out[position] = whether the item has a row.
  void Find(std::span<const BatchItem> items, bool* out) const;

  // Copies rows to `out`, by position. A key without one gets it if admission says so, else zeros.
  void ReadOrCreate(std::span<const BatchItem> items, const Moment& now, float* out);

  // Feeds rows of `input`, by position, to the optimizer, or adds them as they are.
  struct Change {
    const float* input;
    bool add;
    double learning_rate;
    Moment now;
    float* scratch;             // dim floats
    std::vector<Key>* changed;  // gets the keys of the rows that changed; or null
  };
  void Apply(std::span<const BatchItem> items, const Change& change, PushResult& result);

  // Sets rows from row `position` of the batch, whose shape has been checked. Without counters
  // they are untouched since `now`.
  void Import(std::span<const BatchItem> items, const RowBatch& rows, const Moment& now);

  std::uint64_t Erase(std::span<const BatchItem> items);
  std::uint64_t Shrink(const Moment& now);
  void Clear();

  // Takes the memory a cut needs, so that opening it is quick.
  void PrepareCut(ShardCut& cut, CutMode mode) const;
  void OpenCut(ShardCut& cut);
  void CloseCut(ShardCut& cut);
  // Moves on through the cut, adding up to `max_rows` rows to `out`.
  void ReadCut(ShardCut& cut, std::size_t max_rows, RowBatch& out) const;
  // The keys that were removed at the moment of a cut of dirty rows; none for another, or again.
  std::vector<Key> TakeRemoved(ShardCut& cut) const;
  // Clears the dirty bits of the rows the cut handed out that have not changed since, and forgets
  // the keys removed at its moment, unless another open cut has still to read them.
  void ClearDirty(const ShardCut& cut) noexcept;

  void AddStats(SparseStats& stats) const;

 private:
  std::uint32_t FindExact(const BatchItem& item) const;
  // Row numbers that are likely the items', with their memory on its way to the cache.
  void Locate(std::span<const BatchItem> items, std::uint32_t* rows) const;
  // The item's row, given what Locate() said of it; kNoRow if there is none.
  std::uint32_t Confirm(const BatchItem& item, std::uint32_t likely) const;

  // Appends a row under the item's key, its content but for the key not set yet.
  std::uint32_t NewRow(const BatchItem& item);
  void RebuildIndex(std::uint64_t capacity);
  std::uint32_t Create(const BatchItem& item, const Moment& now);
  bool Admits(const BatchItem& item, const Moment& now);
  void Remove(std::uint32_t row);
  bool IsEvicted(const std::byte* row, const Moment& now) const;

  // Must precede every change of a row's content: open cuts keep what they still owe.
  void BeforeWrite(std::uint32_t row) {
    if (!cuts_.empty()) SaveForCuts(row);
  }
  void SaveForCuts(std::uint32_t row);
  // Whether the cut holds this row, which has not changed since.
  bool IsPartOf(const ShardCut& cut, std::uint32_t row) const;

  const TableTraits& traits_;
  mutable std::shared_mutex mutex_;
  RowStorage storage_;
  RowIndex index_;
  KeyWords candidates_;
  RemovedKeys removed_;
  std::vector<ShardCut*> cuts_;  // owned by the cut, which takes itself off the list
  std::uint64_t rows_created_ = 0;
  std::uint64_t rows_evicted_ = 0;
};

}  // namespace sparsefleet
