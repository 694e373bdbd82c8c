// A flat float32 array with optimizer state, updated in stripes.
// Thread-safe: a stripe is read and written whole; stripes move independently.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "merge/dense_parts.h"
#include "status/status.h"
#include "table/sparse_table.h"
#include "table/table_spec.h"

namespace sparsefleet {

// Elements [begin, end) of a whole dense table.
struct DenseRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t size() const { return end - begin; }
  bool operator==(const DenseRange&) const = default;
};

// What server `index` of `num_servers` holds of a dense table: nearly equal ranges over as many
// servers as get `min_block_size` elements each, at least one; the others hold nothing.
// Format: clients and servers must agree on it; do not change.
// REQUIRES: index < num_servers, min_block_size > 0.
DenseRange DenseRangeOf(std::uint64_t size, std::uint64_t min_block_size, std::uint32_t index,
                        std::uint32_t num_servers);

class DenseTable {
 public:
  // All zeros. kInvalidArgument where spec.Validate() says so; kTooLarge without the memory.
  static Result<std::shared_ptr<DenseTable>> Create(DenseSpec spec);
  // A part of the table that `spec` describes. It may be empty: a server beyond the last range
  // has the table all the same. REQUIRES: range within spec.size.
  static Result<std::shared_ptr<DenseTable>> Create(DenseSpec spec, DenseRange range);
  ~DenseTable();

  const DenseSpec& spec() const;  // of the whole table
  const DenseRange& range() const;
  std::uint64_t size() const;  // of the range; all positions below count from its begin
  // Floats of state an element. Where the optimizer counts steps (adam, adamax) the last is
  // the count: kept once a stripe, read out for each element, so that a state can be dealt anew to
  // other ranges.
  std::uint32_t state_dim() const;

  // kShapeMismatch unless offset + the span's length fits in size().
  Status Read(std::uint64_t offset, std::span<float> out) const;
  Status Write(std::uint64_t offset, std::span<const float> values);  // state stays

  // One optimizer step of the whole array; kShapeMismatch, or kNonFinite under that policy, else.
  // Then nothing is applied.
  Result<PushResult> Push(DenseParts gradient);
  Result<PushResult> Add(DenseParts delta);  // past the optimizer
  Result<PushResult> Push(std::span<const float> gradient) { return Push({&gradient, 1}); }
  Result<PushResult> Add(std::span<const float> delta) { return Add({&delta, 1}); }

  // The checks of Push without its effect.
  Status CheckPush(DenseParts gradient) const;
  // Push, or Add, without their checks. REQUIRES: CheckPush() is ok.
  Result<PushResult> Change(DenseParts input, bool add);

  // State as state_dim() arrays of size() floats, one after another. Of step counts that differ
  // within a stripe the largest is taken.
  Status ReadState(std::span<float> out) const;
  Status WriteState(std::span<const float> state);

  // Values with the state that belongs to them: no push comes between the two within a
  // stripe. `state` is state_dim() arrays of values.size() floats. Writing a part of a stripe
  // never lowers its step count.
  Status ReadWithState(std::uint64_t offset, std::span<float> values, std::span<float> state) const;
  Status WriteWithState(std::uint64_t offset, std::span<const float> values,
                        std::span<const float> state);

  // The values themselves, for as long as the table lives. Read or written past the locks, an
  // element may be of either side of a push under way: for threads that share parameters and
  // accept that (Hogwild).
  std::span<float> LiveValues();

  double learning_rate() const;
  Status SetLearningRate(double learning_rate);

  std::uint64_t memory_bytes() const;

 private:
  struct Impl;
  explicit DenseTable(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsefleet
