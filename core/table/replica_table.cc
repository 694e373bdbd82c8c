#include "table/replica_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxBatchKeys = 0x7fffffff;
constexpr std::size_t kMaxKeptItems = 1 << 20;

BatchPlan& ThreadPlan() {
  thread_local BatchPlan plan;
  if (plan.capacity() > kMaxKeptItems) plan = BatchPlan();
  return plan;
}

// The items of part `number` of `num_parts`: neighbouring shards of the plan.
std::span<const BatchItem> ItemsOf(const BatchPlan& plan, std::size_t number,
                                   std::size_t num_parts) {
  const std::size_t count = kNumShards / num_parts;
  const auto first = plan.shard(number * count);
  const auto last = plan.shard(number * count + count - 1);
  return {first.data(), last.data() + last.size()};
}

constexpr std::uint32_t kAhead = 2;  // rows prefetched before their turn

}  // namespace

Result<std::shared_ptr<ReplicaTable>> ReplicaTable::Create(const SparseSpec& spec,
                                                           const KeyHash& hash) {
  if (Status status = spec.Validate(); !status.ok()) return status;
  const OptimizerSpec& optimizer = spec.optimizer;
  if (optimizer.kind != OptimizerKind::kSgd || optimizer.l1 != 0 || optimizer.l2 != 0) {
    return Status(Code::kInvalidArgument,
                  "table '" + spec.name + "': a replica trains by SGD without weight decay only");
  }
  return std::shared_ptr<ReplicaTable>(new ReplicaTable(spec, hash));
}

ReplicaTable::ReplicaTable(const SparseSpec& spec, const KeyHash& hash)
    : spec_(spec),
      hash_(hash),
      optimizer_(spec.optimizer),
      learning_rate_(spec.optimizer.learning_rate) {
  const auto stride = static_cast<std::uint32_t>(old_end());
  for (auto& part : parts_) part = std::make_unique<Part>(stride, hash);
}

std::uint64_t ReplicaTable::size() const {
  std::uint64_t size = 0;
  for (const auto& part : parts_) {
    const ReaderLock lock(part->mutex);
    size += part->rows.size();
  }
  return size;
}

std::size_t ReplicaTable::memory_bytes() const {
  std::size_t bytes = sizeof(*this);
  for (const auto& part : parts_) {
    const ReaderLock lock(part->mutex);
    bytes += sizeof(Part) + part->rows.memory_bytes() +
             part->stepped.capacity() * sizeof(part->stepped[0]);
  }
  return bytes;
}

std::size_t ReplicaTable::LongestProbe() const {
  std::size_t longest = 0;
  for (const auto& part : parts_) {
    const ReaderLock lock(part->mutex);
    longest = std::max(longest, part->rows.LongestProbe());
  }
  return longest;
}

Status ReplicaTable::SetLearningRate(double learning_rate) {
  if (!std::isfinite(learning_rate) || learning_rate < 0) {
    return {Code::kInvalidArgument, "table '" + spec_.name +
                                        "': learning rate must be finite and " + ">= 0, got " +
                                        std::to_string(learning_rate)};
  }
  learning_rate_ = learning_rate;
  return Status::Ok();
}

Status ReplicaTable::CheckShape(std::size_t num_keys, std::size_t num_floats,
                                const char* what) const {
  if (num_keys <= kMaxBatchKeys && num_floats == num_keys * spec_.dim) return Status::Ok();
  return {Code::kShapeMismatch,
          "table '" + spec_.name + "': " + std::to_string(num_keys) + " keys of width " +
              std::to_string(spec_.dim) + " and " + std::to_string(num_floats) + " " + what +
              ", expected one row per key and at most " + std::to_string(kMaxBatchKeys)};
}

Status ReplicaTable::CheckFinite(std::span<const Key> keys,
                                 std::span<const float> gradients) const {
  if (optimizer_.kernels().all_finite(gradients.data(), gradients.size())) return Status::Ok();
  const auto bad = std::ranges::find_if_not(gradients, [](float x) { return std::isfinite(x); });
  const auto at = static_cast<std::size_t>(bad - gradients.begin());
  return {Code::kNonFinite, "table '" + spec_.name + "': gradient of key " +
                                std::to_string(keys[at / spec_.dim]) + " (row " +
                                std::to_string(at / spec_.dim) + ", column " +
                                std::to_string(at % spec_.dim) + ") is " + std::to_string(*bad) +
                                "; nothing was applied"};
}

// Calls visit(part, its items) until one fails. Threads start at their first key's part, so that
// they do not queue up behind one another.
template <typename Visit>
Status ReplicaTable::ForEachPart(std::span<const Key> keys, Visit visit) const {
  if (keys.empty()) return Status::Ok();
  try {
    BatchPlan& plan = ThreadPlan();
    plan.Build(keys, hash_);
    const std::size_t start = plan.first_shard() * kNumParts / kNumShards;
    parts_[start]->Prefetch(ItemsOf(plan, start, kNumParts));
    for (std::size_t i = 0; i < kNumParts; ++i) {
      const std::size_t number = (start + i) % kNumParts;
      const std::size_t next = (number + 1) % kNumParts;
      parts_[next]->Prefetch(ItemsOf(plan, next, kNumParts));
      const auto items = ItemsOf(plan, number, kNumParts);
      if (items.empty()) continue;
      if (Status status = visit(*parts_[number], items); !status.ok()) return status;
    }
    return Status::Ok();
  } catch (const std::bad_alloc&) {
    return {Code::kTooLarge, "table '" + spec_.name + "': out of memory"};
  } catch (const std::length_error& error) {
    return {Code::kTooLarge, "table '" + spec_.name + "': " + error.what()};
  }
}

Result<std::vector<std::uint32_t>> ReplicaTable::Pull(std::span<const Key> keys,
                                                      std::span<float> out) const {
  if (Status s = CheckShape(keys.size(), out.size(), "floats of room"); !s.ok()) return s;
  std::vector<std::uint32_t> unknown;
  const std::size_t dim = spec_.dim;
  const Status status = ForEachPart(keys, [&](Part& part, auto items) {
    const ReaderLock lock(part.mutex);
    part.rows.ForEach(items, train_end(), [&](const BatchItem& item, std::uint32_t row) {
      part.mutex.AssertReaderHeld();
      if (row == kNoRow) {
        unknown.push_back(item.position);
        return;
      }
      std::memcpy(out.data() + item.position * dim, train(part.rows.row(row)), dim * sizeof(float));
    });
    return Status::Ok();
  });
  if (!status.ok()) return status;
  std::ranges::sort(unknown);
  return unknown;
}

Status ReplicaTable::Insert(std::span<const Key> keys, std::span<const float> rows) {
  if (Status s = CheckShape(keys.size(), rows.size(), "values"); !s.ok()) return s;
  const std::size_t dim = spec_.dim;
  return ForEachPart(keys, [&](Part& part, auto items) {
    const WriterLock lock(part.mutex);
    for (const BatchItem& item : items) {
      if (part.rows.Find(item) != kNoRow) continue;
      std::byte* record = part.rows.row(part.rows.Append(item));
      Mark(record, false);
      std::memcpy(train(record), rows.data() + item.position * dim, dim * sizeof(float));
      std::memcpy(old(record), rows.data() + item.position * dim, dim * sizeof(float));
    }
    return Status::Ok();
  });
}

Result<PushResult> ReplicaTable::Step(std::span<const Key> keys, std::span<const float> gradients) {
  if (Status s = CheckShape(keys.size(), gradients.size(), "gradients"); !s.ok()) return s;
  if (spec_.non_finite == NonFinitePolicy::kRaise) {
    if (Status s = CheckFinite(keys, gradients); !s.ok()) return s;
  }
  PushResult result;
  const Status status = ForEachPart(keys, [&](Part& part, auto items) {
    return StepPart(part, items, gradients.data(), result);
  });
  if (!status.ok()) return status;
  return result;
}

Status ReplicaTable::StepPart(Part& part, std::span<const BatchItem> items, const float* gradients,
                              PushResult& result) const {
  const std::size_t dim = spec_.dim;
  const double learning_rate = learning_rate_;
  const bool may_skip = spec_.non_finite != NonFinitePolicy::kRaise;
  const BatchItem* unknown = nullptr;
  const WriterLock lock(part.mutex);
  if (const std::size_t most = part.stepped.size() + items.size(); most > part.stepped.capacity()) {
    part.stepped.reserve(std::max(most, 2 * part.stepped.capacity()));
  }
  part.rows.ForEach(items, train_end(), [&](const BatchItem& item, std::uint32_t row) {
    part.mutex.AssertHeld();
    const float* gradient = gradients + item.position * dim;
    if (may_skip && !optimizer_.kernels().all_finite(gradient, dim)) {
      ++result.rejected_non_finite;
      return;
    }
    if (row == kNoRow || unknown != nullptr) {
      unknown = unknown != nullptr ? unknown : &item;
      return;
    }
    std::byte* record = part.rows.row(row);
    optimizer_.Update(train(record), nullptr, gradient, dim, learning_rate, nullptr);
    if (!IsMarked(record)) {
      Mark(record, true);
      part.stepped.push_back(row);
    }
    ++result.applied;
  });
  if (unknown == nullptr) return Status::Ok();
  return {Code::kNotFound, "table '" + spec_.name + "': got a gradient for key " +
                               std::to_string(unknown->key) +
                               ", whose row was never pulled for training"};
}

Status ReplicaTable::TakeOver(std::span<const Key> keys, std::span<const float> served,
                              bool exactly) {
  if (Status s = CheckShape(keys.size(), served.size(), "values"); !s.ok()) return s;
  const std::size_t dim = spec_.dim;
  const auto follow = optimizer_.kernels().follow;
  return ForEachPart(keys, [&](Part& part, auto items) {
    const WriterLock lock(part.mutex);
    part.rows.ForEach(items, old_end(), [&](const BatchItem& item, std::uint32_t row) {
      part.mutex.AssertHeld();
      if (row == kNoRow) return;
      std::byte* record = part.rows.row(row);
      const float* now = served.data() + item.position * dim;
      if (exactly) {
        std::memcpy(train(record), now, dim * sizeof(float));
        std::memcpy(old(record), now, dim * sizeof(float));
      } else {
        follow(train(record), old(record), now, dim);
      }
    });
    return Status::Ok();
  });
}

void ReplicaWalk::Enter(ReplicaTable::Part& part) {
  at_ = 0;
  is_inside_ = true;
  stepped_ = std::exchange(part.stepped, {});
}

void ReplicaWalk::Take(std::byte* record, float* delta) const {
  const std::size_t dim = table_->dim();
  float* train = table_->train(record);
  float* old = table_->old(record);
  table_->optimizer_.kernels().take_share(delta, old, train, dim, share_);
  // Servers add the delta to what they have, so old becomes exactly that sum, bit for bit.
  if (part_ == ReplicaPart::kUnsent) std::memcpy(train, old, dim * sizeof(float));
}

Result<std::size_t> ReplicaWalk::Next(std::span<Key> keys, std::span<float> deltas) {
  const std::size_t dim = table_->dim();
  if (keys.empty() || deltas.size() != keys.size() * dim) {
    return Status(Code::kInvalidArgument, "got room for " + std::to_string(keys.size()) +
                                              " keys and " + std::to_string(deltas.size()) +
                                              " differences, expected some rows of width " +
                                              std::to_string(dim));
  }
  std::size_t count = 0;
  for (; part_number_ < table_->parts_.size(); ++part_number_, is_inside_ = false) {
    ReplicaTable::Part& part = *table_->parts_[part_number_];
    const WriterLock lock(part.mutex);
    if (!is_inside_) Enter(part);
    const bool is_all = part_ == ReplicaPart::kUnsent;
    const std::size_t end = is_all ? part.rows.size() : stepped_.size();
    for (; at_ < end; ++at_) {
      if (count == keys.size()) return count;
      if (!is_all && at_ + kAhead < end) {
        part.rows.Fetch(stepped_[at_ + kAhead], table_->old_end());
      }
      std::byte* record = part.rows.row(is_all ? at_ : stepped_[at_]);
      table_->Mark(record, false);
      if (is_all &&
          std::memcmp(table_->train(record), table_->old(record), dim * sizeof(float)) == 0) {
        continue;
      }
      keys[count] = KeyedRows::KeyOf(record);
      Take(record, deltas.data() + count * dim);
      ++count;
    }
  }
  return count;
}

}  // namespace sparsefleet
