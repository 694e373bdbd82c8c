// A worker's copy of the rows it has used from a table on servers (GEO).
//
// Each row has two sets of values side by side: *train*, which is trained here by plain SGD, and
// *old*, what the servers had when this worker last looked, plus the changes it has sent since. One
// lookup finds both.
//
// Thread-safe: calls for different keys run in parallel; one row's update is never torn.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "key/key.h"
#include "key/key_hash.h"
#include "optimizer/row_optimizer.h"
#include "status/status.h"
#include "sync/mutex.h"
#include "table/keyed_rows.h"
#include "table/sparse_table.h"
#include "table/table_spec.h"

namespace sparsefleet {

// Which rows a ReplicaWalk visits.
enum class ReplicaPart : std::uint8_t {
  kStepped,  // those stepped since the previous walk
  kUnsent,   // all rows whose train differs from old
};

class ReplicaTable {
 public:
  // kInvalidArgument unless the spec is valid and its optimizer plain SGD.
  static Result<std::shared_ptr<ReplicaTable>> Create(const SparseSpec& spec,
                                                      const KeyHash& hash = KeyHash());

  std::uint32_t dim() const { return spec_.dim; }
  std::uint64_t size() const;
  std::size_t memory_bytes() const;
  std::size_t LongestProbe() const;              // see SparseTable
  Status SetLearningRate(double learning_rate);  // finite and >= 0

  // Copies train of the keys that have a row into `out`, row i at out[i * dim]. Returns the
  // positions in `keys` of the others, in order; their part of `out` is left unchanged.
  Result<std::vector<std::uint32_t>> Pull(std::span<const Key> keys, std::span<float> out) const;

  // Sets train and old to the servers' rows for keys without a row; rows that exist, which another
  // thread may have trained, do not change.
  Status Insert(std::span<const Key> keys, std::span<const float> rows);

  // One step of SGD on train. Under the raise policy, non-finite gradients are kNonFinite and
  // nothing is applied; otherwise their rows are skipped and counted. kNotFound for a key without a
  // row; rows before it are stepped.
  Result<PushResult> Step(std::span<const Key> keys, std::span<const float> gradients);

  // Takes over the servers' current rows: others' changes are added to train, and old becomes the
  // served row. Keys without a row are skipped. `exactly`, which is allowed only while no thread
  // trains, sets train too, so that no rounding error is left to send.
  Status TakeOver(std::span<const Key> keys, std::span<const float> served, bool exactly);

 private:
  friend class ReplicaWalk;

  static constexpr std::size_t kNumParts = 16;

  struct alignas(64) Part {
    Part(std::uint32_t stride, const KeyHash& hash) : rows(stride, hash) {}
    // Needs no lock.
    void Prefetch(std::span<const BatchItem> items) const NO_THREAD_SAFETY_ANALYSIS {
      rows.Prefetch(items);
    }

    mutable SharedMutex mutex;
    KeyedRows rows GUARDED_BY(mutex);
    // Row numbers marked as stepped, each once.
    std::vector<std::uint32_t> stepped GUARDED_BY(mutex);
  };

  ReplicaTable(const SparseSpec& spec, const KeyHash& hash);
  Status CheckShape(std::size_t num_keys, std::size_t num_floats, const char* what) const;
  Status CheckFinite(std::span<const Key> keys, std::span<const float> gradients) const;
  Status StepPart(Part& part, std::span<const BatchItem> items, const float* gradients,
                  PushResult& result) const;
  template <typename Visit>
  Status ForEachPart(std::span<const Key> keys, Visit visit) const;

  // Record: key (8) | stepped (4) | unused (4) | train | old
  static constexpr std::size_t kMarkAt = 8;
  static constexpr std::size_t kTrainAt = 16;
  static bool IsMarked(const std::byte* record) { return record[kMarkAt] != std::byte{0}; }
  static void Mark(std::byte* record, bool is_stepped) { record[kMarkAt] = std::byte{is_stepped}; }
  float* train(std::byte* record) const { return reinterpret_cast<float*>(record + kTrainAt); }
  float* old(std::byte* record) const { return train(record) + spec_.dim; }
  std::size_t train_end() const { return kTrainAt + spec_.dim * sizeof(float); }
  std::size_t old_end() const { return train_end() + spec_.dim * sizeof(float); }

  const SparseSpec spec_;
  const KeyHash hash_;
  const RowOptimizer optimizer_;
  std::atomic<double> learning_rate_;
  std::array<std::unique_ptr<Part>, kNumParts> parts_;
};

// Takes the unsent differences of rows, a share of (train - old) each, which then count as sent.
// Not thread-safe; keeps the table alive. If abandoned halfway, the remaining rows are left for a
// walk through the unsent ones.
class ReplicaWalk {
 public:
  // For unsent rows the whole difference is sent, and train becomes what the servers will have
  // unless others change it: nobody may train meanwhile. REQUIRES: share >= 1; 1 for unsent rows.
  ReplicaWalk(std::shared_ptr<ReplicaTable> table, ReplicaPart part, float share)
      : table_(std::move(table)), part_(part), share_(share) {}

  // Writes the next rows that fit, at least one unless at the end; returns how many.
  // kInvalidArgument unless deltas.size() == keys.size() * dim and there is room for one.
  Result<std::size_t> Next(std::span<Key> keys, std::span<float> deltas);

 private:
  void Enter(ReplicaTable::Part& part) REQUIRES(part.mutex);
  void Take(std::byte* record, float* delta) const;

  const std::shared_ptr<ReplicaTable> table_;
  const ReplicaPart part_;
  const float share_;
  std::size_t part_number_ = 0;
  bool is_inside_ = false;              // stepped_ belongs to that part
  std::vector<std::uint32_t> stepped_;  // of that part
  std::uint32_t at_ = 0;                // next of stepped_, or next row
};

}  // namespace sparsefleet
