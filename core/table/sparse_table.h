// A growing table of float32 rows under 64-bit keys, each row with its optimizer state.
//
// Thread-safe: pulls and pushes of different keys run in parallel; one row's
// update is never torn. Growth locks one internal shard at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "status/status.h"
#include "table/change_set.h"
#include "table/key.h"
#include "table/table_spec.h"

namespace sparsefleet {

enum class PullMode : std::uint8_t {
  kTrain = 0,     // an unknown key gets a row, if admission lets it in
  kInferZeros,    // an unknown key reads as zeros; nothing is stored
  kInferInitial,  // an unknown key reads as its initial value; nothing is stored
};

struct PushResult {
  std::uint64_t applied = 0;              // rows updated (dense: elements)
  std::uint64_t rejected_non_finite = 0;  // rows skipped: NaN or infinity (dense: pushes)
  std::uint64_t not_admitted = 0;         // rows skipped: no row yet by the admission rule
  PushResult& operator+=(const PushResult& other);
  bool operator==(const PushResult&) const = default;
};

// Rows as columns. N = keys.size(); values N x dim, state N x state_dim, counters N x counter_dim.
// Counters are uint32 in the order count, step, seconds; only those the table keeps.
struct RowBatch {
  std::vector<Key> keys;
  std::vector<float> values;
  std::vector<float> state;
  std::vector<std::uint32_t> counters;
  void clear();
};

struct SparseStats {
  std::uint64_t rows = 0;
  std::uint64_t candidates = 0;     // keys counted by admission that have no row yet
  std::uint64_t memory_bytes = 0;   // all that the table holds: rows, index, candidates, slack
  std::uint64_t payload_bytes = 0;  // rows * (key + values + state)
  std::uint64_t rows_pulled = 0;
  std::uint64_t rows_pushed = 0;
  std::uint64_t rows_created = 0;
  std::uint64_t rows_evicted = 0;
  std::uint64_t rejected_non_finite = 0;
  std::uint64_t not_admitted = 0;
};

class TableCut;

class SparseTable : public std::enable_shared_from_this<SparseTable> {
 public:
  // Seconds since some fixed moment; tests hand in their own.
  using Clock = std::function<std::uint32_t()>;

  // kInvalidArgument where spec.Validate() says so. An empty clock means the system's.
  static Result<std::shared_ptr<SparseTable>> Create(SparseSpec spec, Clock clock = {});
  ~SparseTable();

  const SparseSpec& spec() const;
  std::uint32_t dim() const;
  std::uint32_t state_dim() const;    // floats of optimizer state a row
  std::uint32_t counter_dim() const;  // uint32 counters a row

  // Copies the row of each key into `out`, row i at out[i * dim]. `step` is the caller's
  // step number; it feeds admission by probability and is the first touch of a row born here.
  // A key that occurs more than once counts once towards admission.
  // Returns kShapeMismatch unless out.size() == keys.size() * dim().
  Status Pull(std::span<const Key> keys, PullMode mode, std::uint64_t step, std::span<float> out);

  // out[i] = whether key i has a row. Creates none. REQUIRES: out.size() == keys.size().
  Status Contains(std::span<const Key> keys, std::span<bool> out) const;

  // Copies the rows of keys that have one into `out`, as Pull does. The places in `keys` of the
  // others, in order; their part of `out` is left as it was.
  Result<std::vector<std::uint32_t>> PullKnown(std::span<const Key> keys,
                                               std::span<float> out) const;

  // The keys among these that have a row, with their values; no state, no counters.
  Result<RowBatch> Read(std::span<const Key> keys) const;

  // Feeds each key's gradient to the row optimizer; gradients of a key that occurs more
  // than once are summed first, in order of occurrence. A row not there is born at its initial
  // value, unless the table has an admission rule: then it is skipped and counted
  // (candidates are counted by training pulls alone, so a step counts once).
  // Touches the row: count += 1, step, seconds, dirty.
  // `keys_are_unique` promises that no key repeats and saves the search.
  // Fails with kShapeMismatch, or kNonFinite under that policy; then nothing is applied.
  // A sum that overflows is skipped and counted under either policy.
  // Out of memory is kTooLarge; rows updated before that stay updated.
  Result<PushResult> Push(std::span<const Key> keys, std::span<const float> gradients,
                          std::uint64_t step, bool keys_are_unique = false);

  // The checks of Push without its effect, so that a frame of several pushes is all or nothing.
  Status CheckPush(std::span<const Key> keys, std::span<const float> gradients) const;

  // Adds values to rows as they are, past the optimizer (GEO's deltas). Same rules otherwise.
  Result<PushResult> Add(std::span<const Key> keys, std::span<const float> deltas,
                         std::uint64_t step, bool keys_are_unique = false);

  // Push, or Add, without their checks. REQUIRES: CheckPush() is ok.
  Result<PushResult> Change(std::span<const Key> keys, std::span<const float> input,
                            std::uint64_t step, bool keys_are_unique, bool add);

  // Removes the rows that the eviction rules name as of `step`; returns how many went.
  // Halves what admission has counted for keys without a row, rounding down, and forgets those
  // at 0: keys seen now and then do not pile up.
  // Here and below, std::bad_alloc may come out while a cut is open: it keeps changed rows;
  // here it may also for want of room to sort the candidates anew.
  std::uint64_t Shrink(std::uint64_t step);

  // Removes these keys' rows; returns how many were there.
  std::uint64_t Erase(std::span<const Key> keys);
  void Clear();

  double learning_rate() const;
  Status SetLearningRate(double learning_rate);  // finite and >= 0

  // Rows as of this moment: no push is split by it, later ones do not show in it.
  // `only_dirty` keeps rows touched since the last cut that cleared (all rows, where the table
  // does not track it); `clear_dirty` makes this cut such a one: see TableCut::Commit().
  TableCut OpenCut(bool only_dirty = false, bool clear_dirty = false);
  // kInvalidArgument where `only_dirty` is asked of a table that does not track it.
  Status CheckCut(bool only_dirty) const;

  // Sets rows to these values, state and counters, creating or overwriting; admission is not
  // asked. `state` or `counters` may be empty: initial state; count 0, last touched at this second
  // and at the highest step of all calls and counters so far. Before the first of those the step
  // is 0, which Shrink() takes for the lowest step of all calls: a new row, not an ancient one.
  // Imported rows count as dirty. kShapeMismatch where lengths do not fit; then nothing is done.
  Status Import(const RowBatch& rows);

  // A set that gets the keys of all rows that pushes and imports change from now on, for as long
  // as somebody holds it. A key is added after its row has changed: a row read later than its key
  // was taken shows the change. Rows that are removed, or born by a pull, do not count.
  std::shared_ptr<ChangeSet> WatchChanges();

  SparseStats Stats() const;

 private:
  struct Impl;
  explicit SparseTable(std::unique_ptr<Impl> impl);
  // OpenCut() step by step, for a moment of several tables: what takes memory, then, with the
  // writers of all stopped, TableCut::Begin().
  TableCut PrepareCut(bool only_dirty, bool clear_dirty);
  std::unique_lock<std::shared_mutex> StopWriters();

  std::unique_ptr<Impl> impl_;
  friend class TableCut;
  friend class TableSet;
};

// An open cut through a table. Costs memory only for rows that change before they are
// handed out. Closing (destruction) frees that. Not thread-safe; keeps the table alive.
class TableCut {
 public:
  TableCut(TableCut&&) noexcept;
  TableCut& operator=(TableCut&&) noexcept;
  ~TableCut();

  // Replaces `out` by up to `max_rows` further rows; false at the end (out is then empty).
  bool Next(std::size_t max_rows, RowBatch& out);
  bool at_end() const;  // whether Next() has said so

  // Of a cut of dirty rows: keys whose rows were removed between the last cut that cleared and
  // this one's moment, and were not there then. None before the first that clears was opened. Of
  // another cut: none. Takes memory for the keys; the same ones again at the next call.
  std::vector<Key> Removed();

  // Clears the dirty bits of the rows handed out that have not changed since the cut's moment, and
  // forgets the removed keys, if the cut was opened to clear and is at its end; else does nothing.
  // So a cut given up halfway leaves all its rows dirty, and keys that another open cut has still
  // to read as removed stay so for the next. Other open cuts keep the rows that were dirty at their
  // moment. A row that took the place of a removed one meanwhile stays dirty, to be safe.
  void Commit();

 private:
  struct State;
  explicit TableCut(std::unique_ptr<State> state);
  void Begin();  // its moment is now
  std::unique_ptr<State> state_;
  friend class SparseTable;
  friend class TableSet;
};

}  // namespace sparsefleet
