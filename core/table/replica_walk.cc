// What is to be sent of a replica's rows.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "table/replica_table.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kAhead = 2;  // rows fetched before their turn

}  // namespace

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
  // Servers add the delta to what they have, so old is what that comes to, to the bit.
  if (part_ == ReplicaPart::kUnsent) std::memcpy(train, old, dim * sizeof(float));
}

Result<std::size_t> ReplicaWalk::Next(std::span<Key> keys, std::span<float> deltas) {
  const std::size_t dim = table_->dim();
  if (keys.empty() || deltas.size() != keys.size() * dim) {
    return Status(Code::kInvalidArgument, "room for " + std::to_string(keys.size()) + " keys and " +
                                              std::to_string(deltas.size()) +
                                              " differences, wanted some rows of width " +
                                              std::to_string(dim));
  }
  std::size_t count = 0;
  for (; part_number_ < table_->parts_.size(); ++part_number_, is_inside_ = false) {
    ReplicaTable::Part& part = *table_->parts_[part_number_];
    const std::unique_lock lock(part.mutex);
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
