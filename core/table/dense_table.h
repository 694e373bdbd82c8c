// A flat float32 array with optimizer state, updated in stripes.
// Thread-safe: a stripe is read and written as a whole; stripes are independent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

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

// The part of a dense table held by server `index` of `num_servers`: nearly equal ranges on as many
// servers as can have `min_block_size` elements each, but at least one; the others hold nothing. If
// that is not all servers, the table's name determines the first of them, so that small tables are
// spread over the servers.
// Format: clients and servers must agree on it; do not change.
// REQUIRES: index < num_servers, min_block_size > 0.
DenseRange DenseRangeOf(std::string_view table, std::uint64_t size, std::uint64_t min_block_size,
                        std::uint32_t index, std::uint32_t num_servers);

class DenseTable {
 public:
  // All zeros. Fails as spec.Validate() does, or with kTooLarge if out of memory.
  static Result<std::shared_ptr<DenseTable>> Create(DenseSpec spec);
  // A part of the table that `spec` describes. It may be empty: a server past the last range has
  // the table too. REQUIRES: range within spec.size.
  static Result<std::shared_ptr<DenseTable>> Create(DenseSpec spec, DenseRange range);
  ~DenseTable();

  const DenseSpec& spec() const;  // of the whole table
  const DenseRange& range() const;
  std::uint64_t size() const;  // of the range; offsets below count from its begin
  // Floats of state per element. Where the optimizer counts steps (adam, adamax) the last is the
  // count: stored once per stripe but read out for each element, so that state can be redistributed
  // to other ranges.
  std::uint32_t state_dim() const;

  // kShapeMismatch unless offset + the span's length fits in size().
  Status Read(std::uint64_t offset, std::span<float> out) const;
  Status Write(std::uint64_t offset, std::span<const float> values);  // keeps the state

  // One optimizer step of the whole array. Fails with kShapeMismatch, or kNonFinite under that
  // policy; then nothing is applied.
  Result<PushResult> Push(DenseParts gradient);
  Result<PushResult> Add(DenseParts delta);  // bypasses the optimizer
  Result<PushResult> Push(std::span<const float> gradient) { return Push({&gradient, 1}); }
  Result<PushResult> Add(std::span<const float> delta) { return Add({&delta, 1}); }

  // The checks of Push without its effect.
  Status CheckPush(DenseParts gradient) const;
  // Push or Add without the checks. REQUIRES: CheckPush() is ok.
  Result<PushResult> Change(DenseParts input, bool add);
  // The same in two steps: the first allocates all memory, so the second cannot fail. `input` must
  // stay valid until then.
  Result<std::function<PushResult()>> Prepare(DenseParts input, bool add);

  // State as state_dim() consecutive arrays of size() floats. If step counts within a stripe
  // differ, the largest wins.
  Status ReadState(std::span<float> out) const;
  Status WriteState(std::span<const float> state);

  // Values with their state: no push comes between the two within a stripe. `state` is state_dim()
  // arrays of values.size() floats. Writing part of a stripe never lowers its step count.
  Status ReadWithState(std::uint64_t offset, std::span<float> values, std::span<float> state) const;
  Status WriteWithState(std::uint64_t offset, std::span<const float> values,
                        std::span<const float> state);

  // The values themselves, valid while the table lives. Access bypasses the locks, so an element
  // may be from before or after a push in progress: for threads that share parameters and accept
  // that (Hogwild).
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
