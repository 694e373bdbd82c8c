// Fixed-size records found by 64-bit keys; they are added but never removed. Header only.
// Not thread-safe: guarded by its owner's lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "key/key.h"
#include "key/key_hash.h"
#include "table/batch_plan.h"
#include "table/row_index.h"
#include "table/row_storage.h"

namespace sparsefleet {

// Each record begins with its key.
class KeyedRows {
 public:
  // `hash`: the one used by the plans whose items are passed in.
  KeyedRows(std::uint32_t stride_bytes, const KeyHash& hash)
      : storage_(stride_bytes), hash_(hash) {}

  std::uint32_t size() const { return storage_.size(); }
  std::byte* row(std::uint32_t number) { return storage_.row(number); }
  static Key KeyOf(const std::byte* record) {
    Key key;
    std::memcpy(&key, record, sizeof(key));
    return key;
  }

  // Prefetches index entries. Needs no lock.
  void Prefetch(std::span<const BatchItem> items) const {
    for (const BatchItem& item : items.first(std::min(items.size(), kBlock))) {
      index_.Prefetch(item.hash);
    }
  }

  // Prefetches the first `used_bytes` of a record, which need not begin with a cache line.
  void Fetch(std::uint32_t number, std::size_t used_bytes) const {
    const std::byte* record = storage_.row(number);
    for (std::size_t byte = 0; byte < used_bytes; byte += kLine) {
      __builtin_prefetch(record + byte);
    }
    __builtin_prefetch(record + used_bytes - 1);
  }

  // Calls visit(item, row number or kNoRow) for the items in order, prefetching the first
  // `used_bytes` of the records ahead.
  template <typename Visit>
  void ForEach(std::span<const BatchItem> items, std::size_t used_bytes, Visit visit) const;

  std::uint32_t Find(const BatchItem& item) const {
    return index_.Find(item.hash,
                       [&](std::uint32_t at) { return KeyOf(storage_.row(at)) == item.key; });
  }

  // Adds a record under the item's key; its content except the key is unspecified.
  // REQUIRES: it does not exist. Throws std::bad_alloc or std::length_error; then it still does
  // not.
  std::uint32_t Append(const BatchItem& item) {
    const std::uint32_t at = storage_.size();
    if (at >= index_.capacity()) {
      index_.Rebuild(index_.capacity() * 3 / 2 + 1, at, [&](std::uint32_t other) {
        return SlotHash(hash_(KeyOf(storage_.row(other))));
      });
    }
    storage_.Append();
    std::memcpy(storage_.row(at), &item.key, sizeof(item.key));
    index_.Insert(item.hash, at);
    return at;
  }

  std::size_t memory_bytes() const { return storage_.memory_bytes() + index_.memory_bytes(); }
  std::size_t LongestProbe() const { return index_.LongestProbe(); }

 private:
  static constexpr std::size_t kBlock = 64;  // items looked up together
  static constexpr std::size_t kAhead = 2;   // records prefetched in full before their turn
  static constexpr std::size_t kLine = 64;

  RowStorage storage_;
  RowIndex index_;
  const KeyHash hash_;
};

template <typename Visit>
void KeyedRows::ForEach(std::span<const BatchItem> items, std::size_t used_bytes,
                        Visit visit) const {
  std::uint32_t likely[kBlock];
  for (; !items.empty(); items = items.subspan(std::min(items.size(), kBlock))) {
    const auto block = items.first(std::min(items.size(), kBlock));
    Prefetch(items.subspan(block.size()));
    for (std::size_t i = 0; i < block.size(); ++i) {
      likely[i] = index_.FindLikely(block[i].hash);
      if (likely[i] != kNoRow) Fetch(likely[i], std::min(used_bytes, kLine));
    }
    for (std::size_t i = 0; i < block.size(); ++i) {
      const std::size_t ahead = i + kAhead;
      if (ahead < block.size() && likely[ahead] != kNoRow) Fetch(likely[ahead], used_bytes);
      const bool is_it = likely[i] != kNoRow && KeyOf(storage_.row(likely[i])) == block[i].key;
      visit(block[i], is_it || likely[i] == kNoRow ? likely[i] : Find(block[i]));
    }
  }
}

}  // namespace sparsefleet
