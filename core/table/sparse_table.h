// A growing table of rows under 64-bit keys, each row with its optimizer state. Rows are float32
// for callers; a table may store them in fewer bits (SparseSpec::row_dtype).
//
// Thread-safe: pulls and pushes of different keys run in parallel; one row's update is never torn.
// Growth locks one internal shard at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <vector>

#include "key/key.h"
#include "key/key_hash.h"
#include "status/status.h"
#include "table/change_log.h"
#include "table/table_spec.h"

namespace sparsefleet {

enum class PullMode : std::uint8_t {
  kTrain = 0,     // an unknown key gets a row, if admitted
  kInferZeros,    // an unknown key reads as zeros; nothing is stored
  kInferInitial,  // an unknown key reads as its initial value; nothing is stored
};

struct PushResult {
  std::uint64_t applied = 0;              // rows updated (dense: elements)
  std::uint64_t rejected_non_finite = 0;  // rows skipped: NaN or infinity (dense: pushes)
  std::uint64_t not_admitted = 0;         // rows skipped: not admitted yet
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
  std::uint64_t candidates = 0;     // keys counted for admission that have no row yet
  std::uint64_t memory_bytes = 0;   // total: rows, index, candidates, slack
  std::uint64_t payload_bytes = 0;  // rows * (key + values + state)
  std::uint64_t rows_pulled = 0;
  std::uint64_t rows_pushed = 0;
  std::uint64_t rows_created = 0;
  std::uint64_t rows_evicted = 0;
  std::uint64_t rejected_non_finite = 0;
  std::uint64_t not_admitted = 0;
  // Sums of squared norms over a sample of the rows pulled for training and of the gradients (or
  // differences) pushed, and the sizes of the samples.
  double row_squares = 0;
  std::uint64_t rows_sampled = 0;
  double gradient_squares = 0;
  std::uint64_t gradients_sampled = 0;
};

class BirthLog;
class TableCut;

// A change of a table's rows whose memory is allocated: applying it cannot fail. Not thread-safe.
class PreparedChange {
 public:
  PreparedChange(PreparedChange&&) noexcept;
  ~PreparedChange();
  PushResult Apply();  // once
  // The same in parts, which may run on different threads at the same time: first BeginParts(),
  // which may throw std::bad_alloc, then each part once, then the sum of their results to End().
  static constexpr std::size_t kParts = 8;
  void BeginParts();
  PushResult ApplyPart(std::size_t part);
  void End(const PushResult& total);

 private:
  struct State;
  void Begin();
  explicit PreparedChange(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  friend class SparseTable;
};

class SparseTable : public std::enable_shared_from_this<SparseTable> {
 public:
  // Seconds since a fixed moment; tests pass their own.
  using Clock = std::function<std::uint32_t()>;

  // Fails as spec.Validate() does. An empty clock means the system's. Results do not depend on
  // `hash`, except for the order in which a cut returns rows.
  static Result<std::shared_ptr<SparseTable>> Create(SparseSpec spec, Clock clock = {},
                                                     const KeyHash& hash = KeyHash());
  ~SparseTable();

  const SparseSpec& spec() const;
  std::uint32_t dim() const;
  std::uint32_t state_dim() const;    // floats of optimizer state per row
  std::uint32_t counter_dim() const;  // uint32 counters per row

  // Copies the row of each key into `out`, row i at out[i * dim]. `step` is the caller's step
  // number: it determines admission by probability, and a row created here was first touched at it.
  // A key that occurs more than once counts once toward admission. kShapeMismatch unless out.size()
  // == keys.size() * dim().
  Status Pull(std::span<const Key> keys, PullMode mode, std::uint64_t step, std::span<float> out);

  // out[i] = whether key i has a row. Creates none. REQUIRES: out.size() == keys.size().
  Status Contains(std::span<const Key> keys, std::span<bool> out) const;

  // Copies the rows of keys that have one into `out`, as Pull does. Returns the positions in `keys`
  // of the others, in order; their part of `out` is left unchanged.
  Result<std::vector<std::uint32_t>> PullKnown(std::span<const Key> keys,
                                               std::span<float> out) const;

  // The keys among these that have a row, with their values; no state, no counters.
  Result<RowBatch> Read(std::span<const Key> keys) const;

  // Feeds each key's gradient to the row optimizer; gradients of a repeated key are summed first,
  // in order of occurrence. A missing row is created at its initial value, unless the table has an
  // admission rule: then it is skipped and counted (only training pulls count candidates, so that a
  // step counts once).
  // Touches the row: count += 1, step, seconds, dirty.
  // `keys_are_unique` promises that no key repeats and saves the search.
  // Fails with kShapeMismatch, or kNonFinite under that policy; then nothing is applied.
  // A sum that overflows is skipped and counted under either policy.
  // Out of memory is kTooLarge; then nothing is applied either.
  Result<PushResult> Push(std::span<const Key> keys, std::span<const float> gradients,
                          std::uint64_t step, bool keys_are_unique = false);

  // The checks of Push without its effect, so that a frame of several pushes is all or nothing.
  Status CheckPush(std::span<const Key> keys, std::span<const float> gradients) const;

  // Adds values to rows, bypassing the optimizer (GEO's deltas). Same rules otherwise.
  Result<PushResult> Add(std::span<const Key> keys, std::span<const float> deltas,
                         std::uint64_t step, bool keys_are_unique = false);

  // Allocates all memory that Push or Add may need, without their checks; kTooLarge if there is
  // none. `keys` and `input` must stay valid until the change is applied or dropped. Until then
  // cuts and watches of this table wait, so a thread that prepares changes of several tables does
  // so in the order of their names. REQUIRES: CheckPush() is ok.
  Result<PreparedChange> Prepare(std::span<const Key> keys, std::span<const float> input,
                                 std::uint64_t step, bool keys_are_unique, bool add);
  // Prepare() and Apply().
  Result<PushResult> Change(std::span<const Key> keys, std::span<const float> input,
                            std::uint64_t step, bool keys_are_unique, bool add);

  // Removes the rows selected by the eviction rules as of `step`; returns how many. Halves the
  // admission counts of keys without a row, rounding down, and forgets those at 0, so that rare
  // keys do not accumulate. This and the calls below may throw std::bad_alloc while a cut is open,
  // which saves changed rows; this one may also throw it while it rehashes the candidates.
  std::uint64_t Shrink(std::uint64_t step);
  // The same in parts: `part` is called repeatedly with a function that removes some rows and
  // returns their keys, and must call it once; an error ends the shrinking. Candidates are kept.
  using RemoveSome = std::function<std::vector<Key>()>;
  Status ShrinkInParts(std::uint64_t step,
                       const std::function<Status(const RemoveSome& remove)>& part);
  void HalveCandidates();

  // Removes the rows of these keys; returns how many existed.
  std::uint64_t Erase(std::span<const Key> keys);
  void Clear();

  double learning_rate() const;
  Status SetLearningRate(double learning_rate);  // finite and >= 0

  // Returns rows as of this moment: no push is split, and later pushes do not show. `only_dirty`
  // selects rows touched since the last clearing cut (all rows, if the table does not track it);
  // `clear_dirty` makes this a clearing cut: see TableCut::Commit().
  TableCut OpenCut(bool only_dirty = false, bool clear_dirty = false);
  // kInvalidArgument if `only_dirty` is requested of a table that does not track it.
  Status CheckCut(bool only_dirty) const;

  // Sets rows to these values, state and counters, creating or overwriting them; admission does not
  // apply. `state` or `counters` may be empty: initial state; count 0, last touched at this second
  // and at the highest step of all calls and counters so far. Before the first of those the step is
  // 0, which Shrink() treats as the lowest step of all calls: a new row, not an ancient one.
  // Imported rows are dirty. kShapeMismatch if lengths do not fit; then nothing is done.
  Status Import(const RowBatch& rows);

  // Returns a cursor over the keys of all rows that pushes and imports change from now on, for as
  // long as someone holds it. The number of cursors does not affect a push. A key is added after
  // its row has changed, so a row read after its key was taken shows the change. Rows that are
  // removed, or created by a pull, do not count.
  std::shared_ptr<ChangeCursor> WatchChanges();

  // Reports keys without a row to `log` from now on; null stops it. Not thread-safe: call before
  // the first pull.
  void SetBirthLog(BirthLog* births);

  // For snapshots: saves and restores everything except rows, as a cut with `for_snapshot` sees it.
  // A new table is restored in this order: state, rows, words.
  struct Extra {
    std::uint32_t highest_step = 0;
    std::uint32_t lowest_step = 0xffffffff;
    bool keeps_removed = false;
    std::uint32_t removed_now = 1;
  };
  void Restore(const Extra& extra);
  std::size_t record_bytes() const;
  // Rows as returned by TableCut::NextRecords(), which count only after IndexRestored() of all
  // parts. Both are thread-safe; calls for records of different ShardOfRecord() hardly wait for
  // each other.
  Status RestoreRecords(std::span<const std::byte> records);
  Status IndexRestored(std::size_t part);  // < kRestoredParts
  static constexpr std::size_t kRestoredParts = 64;
  std::size_t ShardOfRecord(std::span<const std::byte> records) const;  // of the first
  // Counts of keys waiting for admission, or the times at which keys were removed.
  Status RestoreWords(std::span<const Key> keys, std::span<const std::uint32_t> words,
                      bool are_candidates);
  // Records removed keys from now on, for cuts of dirty rows.
  void KeepRemoved();

  SparseStats Stats() const;
  // The longest probe for finding a key in any shard: rows, candidates and removed keys. Scans all
  // of them: for tests and diagnosis.
  std::size_t LongestProbe() const;

 private:
  struct Impl;
  explicit SparseTable(std::unique_ptr<Impl> impl);
  // OpenCut() in two steps, for cuts through several tables: first allocate, then, with all writers
  // stopped, TableCut::Begin().
  TableCut PrepareCut(bool only_dirty, bool clear_dirty, bool for_snapshot = false);
  std::unique_lock<std::shared_mutex> StopWriters();

  std::unique_ptr<Impl> impl_;
  friend class PreparedChange;
  friend class TableCut;
  friend class TableSet;
};

// An open cut through a table. Costs memory only for rows that change before they are returned,
// which closing (destruction) frees. Not thread-safe; keeps the table alive.
class TableCut {
 public:
  TableCut(TableCut&&) noexcept;
  TableCut& operator=(TableCut&&) noexcept;
  ~TableCut();

  // Replaces `out` with up to `max_rows` more rows; false at the end (out is then empty).
  bool Next(std::size_t max_rows, RowBatch& out);
  // The same, as records that RestoreRecords() takes.
  bool NextRecords(std::size_t max_rows, std::vector<std::byte>& out);
  // For a cut for a snapshot, as of its moment: see SparseTable::Restore().
  SparseTable::Extra extra() const;
  // Calls visit(keys, words, are_candidates) for all words, in chunks. REQUIRES: no rows were read.
  void ForEachWords(const std::function<void(std::span<const Key>, std::span<const std::uint32_t>,
                                             bool are_candidates)>& visit) const;
  bool at_end() const;  // whether Next() has returned false

  // For a cut of dirty rows: keys removed between the last clearing cut and this one, and absent
  // then. Empty before the first clearing cut was opened, and for other cuts. Allocates; later
  // calls return the same keys.
  std::vector<Key> Removed();

  // If the cut was opened to clear and is at its end, clears the dirty bits of the returned rows
  // that have not changed since, and forgets the removed keys; otherwise does nothing. An abandoned
  // cut thus leaves all its rows dirty, and removed keys that another open cut has yet to read stay
  // for the next. Other open cuts keep the rows that were dirty at their moment. A row that
  // replaced a removed one meanwhile stays dirty, to be safe.
  void Commit();

 private:
  struct State;
  explicit TableCut(std::unique_ptr<State> state);
  template <typename Read, typename Count>
  bool Walk(std::size_t max_rows, Read read, Count count);
  void Begin();  // fixes the moment of the cut
  std::unique_ptr<State> state_;
  friend class SparseTable;
  friend class TableSet;
};

}  // namespace sparsefleet
