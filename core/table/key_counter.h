// How often keys without a row were asked for: admission by count.
// Not thread-safe: the shard's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/key.h"

namespace sparsefleet {

// Open addressing with linear probing; a count of 0 marks a free place, since every key is legal.
class KeyCounter {
 public:
  // Counts the key once more and returns its count. Throws std::bad_alloc, then nothing changed.
  std::uint32_t Increment(Key key, std::uint32_t hash);
  bool Erase(Key key, std::uint32_t hash) noexcept;
  void Clear() noexcept;

  std::size_t size() const { return size_; }
  std::size_t memory_bytes() const {
    return keys_.capacity() * sizeof(Key) + counts_.capacity() * sizeof(std::uint32_t);
  }

 private:
  std::size_t Home(std::uint32_t hash) const {
    return ScaleTo(hash, static_cast<std::uint32_t>(keys_.size()));
  }
  std::size_t Next(std::size_t place) const { return place + 1 == keys_.size() ? 0 : place + 1; }
  std::size_t Locate(Key key, std::uint32_t hash) const;  // its place, or the free one for it
  void Grow();

  std::vector<Key> keys_;
  std::vector<std::uint32_t> counts_;
  std::size_t size_ = 0;
};

}  // namespace sparsefleet
