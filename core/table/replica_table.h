// A worker's own copy of the rows it has touched of a table on servers (GEO).
//
// Of each row there are two sets of values side by side: *train*, which is trained here by plain
// SGD, and *old*, what the servers had when this worker last looked, with its own changes sent
// since. One lookup finds both.
//
// Thread-safe: calls for different keys run in parallel; one row's update is never torn.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "optimizer/row_optimizer.h"
#include "status/status.h"
#include "table/key.h"
#include "table/keyed_rows.h"
#include "table/sparse_table.h"
#include "table/table_spec.h"

namespace sparsefleet {

// Which rows a ReplicaWalk goes through.
enum class ReplicaPart : std::uint8_t {
  kStepped,  // those stepped since the walk before
  kUnsent,   // all whose train differs from old
};

class ReplicaTable {
 public:
  // kInvalidArgument unless the spec is valid and its optimizer plain SGD.
  static Result<std::shared_ptr<ReplicaTable>> Create(const SparseSpec& spec);

  std::uint32_t dim() const { return spec_.dim; }
  std::uint64_t size() const;
  std::size_t memory_bytes() const;
  Status SetLearningRate(double learning_rate);  // finite and >= 0

  // Copies train of the keys that have a row into `out`, row i at out[i * dim]. The places in
  // `keys` of the others, in order; their part of `out` is left as it was.
  Result<std::vector<std::uint32_t>> Pull(std::span<const Key> keys, std::span<float> out) const;

  // Rows as the servers have them become train and old of keys that have no row yet; of the
  // others, which another thread may have trained already, nothing changes.
  Status Insert(std::span<const Key> keys, std::span<const float> rows);

  // One step of SGD on train. kNonFinite under that policy: then nothing is applied; under the
  // other, rows with NaN or infinity are skipped and counted. kNotFound for a key without a row;
  // rows before it are stepped.
  Result<PushResult> Step(std::span<const Key> keys, std::span<const float> gradients);

  // Rows as the servers have them now: what others have changed comes into train, and old is what
  // is served. Keys without a row here are passed over. `exactly`, where nobody trains, sets train
  // too, so that no rounding is left to send.
  Status TakeOver(std::span<const Key> keys, std::span<const float> served, bool exactly);

 private:
  friend class ReplicaWalk;

  static constexpr std::size_t kNumParts = 16;

  struct alignas(64) Part {
    explicit Part(std::uint32_t stride) : rows(stride) {}
    mutable std::shared_mutex mutex;
    KeyedRows rows;
    std::vector<std::uint32_t> stepped;  // row numbers, each once: those marked so
  };

  explicit ReplicaTable(const SparseSpec& spec);
  Status CheckShape(std::size_t num_keys, std::size_t num_floats, const char* what) const;
  Status CheckFinite(std::span<const Key> keys, std::span<const float> gradients) const;
  Status StepPart(Part& part, std::span<const BatchItem> items, const float* gradients,
                  PushResult& result) const;
  template <typename Visit>
  Status ForEachPart(std::span<const Key> keys, Visit visit) const;

  // A record: key (8) | whether stepped (4) | unused (4) | train | old
  static constexpr std::size_t kMarkAt = 8;
  static constexpr std::size_t kTrainAt = 16;
  static bool IsMarked(const std::byte* record) { return record[kMarkAt] != std::byte{0}; }
  static void Mark(std::byte* record, bool is_stepped) { record[kMarkAt] = std::byte{is_stepped}; }
  float* train(std::byte* record) const { return reinterpret_cast<float*>(record + kTrainAt); }
  float* old(std::byte* record) const { return train(record) + spec_.dim; }
  std::size_t train_end() const { return kTrainAt + spec_.dim * sizeof(float); }
  std::size_t old_end() const { return train_end() + spec_.dim * sizeof(float); }

  const SparseSpec spec_;
  const RowOptimizer optimizer_;
  std::atomic<double> learning_rate_;
  std::array<std::unique_ptr<Part>, kNumParts> parts_;
};

// Takes what is to be sent of rows, a share of (train - old) each, which counts as sent.
// Not thread-safe; keeps the table alive. Given up halfway, rows it has not come to are left for a
// walk through the unsent ones.
class ReplicaWalk {
 public:
  // Of the unsent rows the whole difference is sent, and train becomes what the servers then have
  // unless others change it: nobody may train meanwhile.
  // REQUIRES: share >= 1; 1 for unsent rows.
  ReplicaWalk(std::shared_ptr<ReplicaTable> table, ReplicaPart part, float share)
      : table_(std::move(table)), part_(part), share_(share) {}

  // The next rows, as many as there is room for, and at least one unless it is the end: 0.
  // kInvalidArgument unless deltas.size() == keys.size() * dim and there is room for one.
  Result<std::size_t> Next(std::span<Key> keys, std::span<float> deltas);

 private:
  void Enter(ReplicaTable::Part& part);
  void Take(std::byte* record, float* delta) const;

  const std::shared_ptr<ReplicaTable> table_;
  const ReplicaPart part_;
  const float share_;
  std::size_t part_number_ = 0;
  bool is_inside_ = false;              // of that part
  std::vector<std::uint32_t> stepped_;  // of that part
  std::uint32_t at_ = 0;                // next of stepped_, or next row
};

}  // namespace sparsefleet
