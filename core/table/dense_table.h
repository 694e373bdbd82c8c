// A flat float32 array with optimizer state, updated in stripes.
// Thread-safe: a stripe is read and written whole; stripes move independently.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "status/status.h"
#include "table/sparse_table.h"
#include "table/table_spec.h"

namespace sparsefleet {

class DenseTable {
 public:
  static Result<std::shared_ptr<DenseTable>> Create(DenseSpec spec);  // zeros
  ~DenseTable();

  const DenseSpec& spec() const;
  std::uint64_t size() const;
  std::uint32_t state_dim() const;  // floats of state an element (adam's step count, one a stripe, is among them)

  // kShapeMismatch unless offset + the span's length fits in size().
  Status Read(std::uint64_t offset, std::span<float> out) const;
  Status Write(std::uint64_t offset, std::span<const float> values);  // state stays

  Status CheckPush(std::span<const float> gradient) const;
  Result<PushResult> Push(std::span<const float> gradient);  // one optimizer step; whole array
  Result<PushResult> Add(std::span<const float> delta);      // past the optimizer

  // State as state_dim() arrays of size() floats, one after another.
  Status ReadState(std::span<float> out) const;
  Status WriteState(std::span<const float> state);

  double learning_rate() const;
  Status SetLearningRate(double learning_rate);

  std::uint64_t memory_bytes() const;

 private:
  struct Impl;
  explicit DenseTable(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsefleet
