// Records which rows a shard has removed, for cuts that report changes.
// Not thread-safe: guarded by the shard's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/key_words.h"

namespace sparsefleet {

// The keys whose rows were removed since the last clearing cut and have not come back. Time is
// counted in cuts. Before the first clearing cut there is no baseline to report removals against,
// so none is kept.
class RemovedKeys {
 public:
  explicit RemovedKeys(const KeyHash& hash) : times_(hash) {}

  // The time of a cut: keys removed before it have this time or less, later ones more.
  std::uint32_t Cut(bool clears) {
    is_on_ = is_on_ || clears;
    return now_++;
  }

  // Reserves room for this many more keys, so that Add() does not allocate; throws std::bad_alloc.
  void Reserve(std::size_t more) {
    if (is_on_) times_.Reserve(more);
  }
  void Add(Key key, std::uint32_t hash) {
    if (is_on_) times_.Set(key, hash, now_);
  }

  std::uint32_t TimeOf(Key key, std::uint32_t hash) const {
    return times_.Find(key, hash);
  }  // or 0
  void Forget(Key key, std::uint32_t hash) noexcept { times_.Erase(key, hash); }
  void ForgetUpTo(std::uint32_t time) noexcept { times_.EraseUpTo(time); }

  // Adds the keys removed up to `time`.
  void Read(std::uint32_t time, std::vector<Key>& out) const {
    times_.ForEach([&](Key key, std::uint32_t removed) {
      if (removed <= time) out.push_back(key);
    });
  }

  // For snapshots.
  bool is_on() const { return is_on_; }
  std::uint32_t now() const { return now_; }
  void ReadAll(std::vector<Key>& keys, std::vector<std::uint32_t>& times) const {
    times_.ForEach([&](Key key, std::uint32_t removed) {
      keys.push_back(key);
      times.push_back(removed);
    });
  }
  void Restore(bool is_on, std::uint32_t now) {
    is_on_ = is_on;
    now_ = now;
  }
  void Restore(Key key, std::uint32_t hash, std::uint32_t time) { times_.Set(key, hash, time); }

  std::size_t memory_bytes() const { return times_.memory_bytes(); }
  std::size_t LongestProbe() const { return times_.LongestProbe(); }

 private:
  bool is_on_ = false;
  std::uint32_t now_ = 1;
  KeyWords times_;
};

}  // namespace sparsefleet
