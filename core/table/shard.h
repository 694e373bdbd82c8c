// One of a table's internal shards: rows, their index, and the lock for both.
// Thread-safe: every function takes the lock itself.
//
// Functions that change rows may throw std::bad_alloc or std::length_error; rows handled before
// that stay changed, the current row is untouched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "key/key_hash.h"
#include "optimizer/row_optimizer.h"
#include "sync/mutex.h"
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

// Shared by the shards of a table; constant after construction.
struct TableTraits {
  TableTraits(SparseSpec table_spec, const KeyHash& key_hash);
  SparseSpec spec;
  KeyHash hash;
  RowOptimizer optimizer;
  RowLayout layout;
  Initializer initializer;
  // The initial values of the key's row, as the table stores them.
  void FillInitial(Key key, std::span<float> row) const;
};

// The caller's step and the current time in seconds, as rows store them.
struct Moment {
  std::uint64_t step = 0;
  std::uint32_t step_word = 0;  // step, at most 2^32 - 1
  std::uint32_t seconds = 0;
  std::uint32_t lowest_step_word = 0;  // the lowest the table has seen
};

// Items prefetched together: enough to hide a miss, few enough to stay in the cache.
inline constexpr std::size_t kPrefetchItems = 64;

class alignas(64) Shard {
 public:
  explicit Shard(const TableTraits& traits)
      : traits_(traits),
        storage_(traits.layout.stride()),
        decoded_(traits.layout.is_plain() ? 0 : traits.layout.dim()),
        candidates_(traits.hash),
        removed_(traits.hash) {}

  // Prefetches the index entries of the first kPrefetchItems items, without the lock. Calling this
  // some time before the functions below makes them faster.
  void Prefetch(std::span<const BatchItem> items) const NO_THREAD_SAFETY_ANALYSIS;
  // Prefetches the likely rows of the items, up to kPrefetchItems of them, unless the rows are
  // probably in the processor's caches. Worth its lock only for a few items, because the functions
  // below prefetch the rows of a block themselves.
  void PrefetchRows(std::span<const BatchItem> items) const;

  // Copies existing rows to `out`, by position; adds the other items to `missing`.
  void Read(std::span<const BatchItem> items, float* out, std::vector<BatchItem>& missing) const;

  // out[position] = whether the item has a row.
  void Find(std::span<const BatchItem> items, bool* out) const;

  // Copies rows to `out`, by position. A key without a row gets one if admitted, otherwise zeros.
  void ReadOrCreate(std::span<const BatchItem> items, const Moment& now, float* out);

  // Feeds rows of `input`, by position, to the optimizer, or adds them directly.
  struct Change {
    const float* input;
    bool add;
    double learning_rate;
    Moment now;
    float* scratch;                   // dim floats
    std::vector<BatchItem>* changed;  // gets the items whose rows changed; or null
  };
  // `reserved`: the result of Reserve() for these items, which is released.
  void Apply(std::span<const BatchItem> items, const Change& change, std::uint32_t reserved,
             PushResult& result);

  // Allocates the memory that Apply() of these items may need: for new rows, if `creates`, and for
  // the copies that open cuts keep of changing rows. Returns how many rows it has reserved, which
  // the caller releases with Apply() or Unreserve(). Throws; then nothing is reserved.
  std::uint32_t Reserve(std::span<const BatchItem> items, bool creates);
  void Unreserve(std::uint32_t rows) noexcept;

  // Sets rows from row `position` of the batch, whose shape has been checked. Without counters they
  // are untouched since `now`.
  void Import(std::span<const BatchItem> items, const RowBatch& rows, const Moment& now);

  std::uint64_t Erase(std::span<const BatchItem> items);
  std::uint64_t Shrink(const Moment& now);
  // Shrink() in steps: examines some rows before `next` (kNoRow: from the end), lowers it, and adds
  // the removed keys to `erased`. At 0 all rows have been examined.
  void ShrinkPart(const Moment& now, std::uint32_t& next, std::vector<Key>& erased);
  void HalveCandidates();
  void Clear();

  // Allocates what a cut needs, so that opening it is quick.
  void PrepareCut(ShardCut& cut, CutMode mode) const;
  void OpenCut(ShardCut& cut);
  void CloseCut(ShardCut& cut);
  // Continues the cut, adding up to `max_rows` rows to `out`.
  void ReadCut(ShardCut& cut, std::size_t max_rows, RowBatch& out) const;
  // The same, as records of RowLayout::stride() bytes, including their dirty bits.
  void ReadCutRecords(ShardCut& cut, std::size_t max_rows, std::vector<std::byte>& out) const;
  // Adds rows from such records, one per `position`. REQUIRES: the keys have no rows, and the next
  // other call that concerns rows is IndexRecords().
  void ImportRecords(std::span<const BatchItem> items, const std::byte* records);
  // Builds the index of imported records, at once in the size that they need.
  void IndexRecords();
  void RestoreWords(std::span<const BatchItem> items, const std::uint32_t* words,
                    bool are_candidates);
  void RestoreRemovals(bool is_on, std::uint32_t now);
  void KeepRemoved();
  // The removed keys as of a cut of dirty rows; empty for other cuts and on later calls.
  std::vector<Key> TakeRemoved(ShardCut& cut) const;
  // Clears the dirty bits of the rows that the cut has returned and that have not changed since,
  // and forgets the keys removed before it, unless another open cut has yet to read them.
  void ClearDirty(const ShardCut& cut) noexcept;

  void AddStats(SparseStats& stats) const;
  std::size_t LongestProbe() const;  // see SparseTable

 private:
  std::uint32_t SlotHashOf(Key key) const { return SlotHash(traits_.hash(key)); }
  bool IsLarge() const NO_THREAD_SAFETY_ANALYSIS { return index_.is_large(); }
  std::uint32_t FindExact(const BatchItem& item) const REQUIRES_SHARED(mutex_);
  // Prefetches the likely rows of the items and returns their numbers.
  void Locate(std::span<const BatchItem> items, std::uint32_t* rows) const REQUIRES_SHARED(mutex_);
  // The item's row, given the result of Locate(); kNoRow if there is none.
  std::uint32_t Confirm(const BatchItem& item, std::uint32_t likely) const REQUIRES_SHARED(mutex_);

  // Appends a row under the item's key; its content except the key is not set yet.
  std::uint32_t NewRow(const BatchItem& item, bool is_reserved = false) REQUIRES(mutex_);
  void RebuildIndex(std::uint64_t capacity) REQUIRES(mutex_);
  std::uint32_t Create(const BatchItem& item, const Moment& now, bool is_reserved = false)
      REQUIRES(mutex_);
  bool Admits(const BatchItem& item, const Moment& now) REQUIRES(mutex_);
  void Remove(std::uint32_t row) REQUIRES(mutex_);
  bool IsEvicted(std::byte* row, const Moment& now) REQUIRES(mutex_);
  // The values of a row, in place or decoded to `decoded_`.
  float* Values(std::byte* record) REQUIRES(mutex_);

  // Call before every change of a row's content: open cuts save rows they have yet to return.
  void BeforeWrite(std::uint32_t row) REQUIRES(mutex_) {
    if (!cuts_.empty()) SaveForCuts(row);
  }
  void SaveForCuts(std::uint32_t row) REQUIRES(mutex_);
  // Whether the cut still holds this row unchanged.
  template <typename Take>
  void WalkCut(ShardCut& cut, std::size_t max_rows, Take take) const;
  bool IsPartOf(const ShardCut& cut, std::uint32_t row) const REQUIRES_SHARED(mutex_);

  const TableTraits& traits_;
  mutable SharedMutex mutex_;
  RowStorage storage_ GUARDED_BY(mutex_);
  std::vector<float> decoded_ GUARDED_BY(mutex_);  // one row; empty if rows need no decoding
  RowIndex index_ GUARDED_BY(mutex_);
  KeyWords candidates_ GUARDED_BY(mutex_);
  RemovedKeys removed_ GUARDED_BY(mutex_);
  std::vector<ShardCut*> cuts_ GUARDED_BY(mutex_);  // owned by the cuts, which remove themselves
  std::uint32_t reserved_ GUARDED_BY(mutex_) = 0;
  std::uint64_t rows_created_ GUARDED_BY(mutex_) = 0;
  std::uint64_t rows_evicted_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sparsefleet
