// Which rows a shard has lost, for cuts that show what changed.
// Not thread-safe: the shard's lock guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table/key_words.h"

namespace sparsefleet {

// The keys whose rows were removed since the last cut that cleared, and have not come back. Time
// is counted in cuts. Before the first cut that clears there is nothing that a removal could be
// a difference to: none is kept.
class RemovedKeys {
 public:
  // The moment of a cut: keys removed so far have this time or less, later ones more.
  std::uint32_t Cut(bool clears) {
    is_on_ = is_on_ || clears;
    return now_++;
  }

  // Room for so many more keys; throws std::bad_alloc. Then Add() takes no memory.
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

  std::size_t memory_bytes() const { return times_.memory_bytes(); }

 private:
  bool is_on_ = false;
  std::uint32_t now_ = 1;
  KeyWords times_;
};

}  // namespace sparsefleet
