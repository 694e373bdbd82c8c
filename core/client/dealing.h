// Keys dealt to the servers that own them, and rows put in that order and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "table/key.h"

namespace sparsefleet {

// Keeps its buffers from batch to batch. Not thread-safe.
class KeyDeal {
 public:
  // REQUIRES: keys.size() < 2^31.
  void Build(std::span<const Key> keys, std::uint32_t num_servers);

  // A server's keys, in the order of the batch.
  std::span<const Key> KeysOf(std::uint32_t server) const {
    return std::span(keys_).subspan(begin_[server], SizeOf(server));
  }
  // The first of them, counted over all servers' keys.
  std::size_t BeginOf(std::uint32_t server) const { return begin_[server]; }
  std::size_t SizeOf(std::uint32_t server) const { return begin_[server + 1] - begin_[server]; }
  // places()[j] is where the j-th key, server by server, stood in the batch.
  std::span<const std::uint32_t> places() const { return places_; }

 private:
  std::vector<std::uint32_t> owners_;
  std::vector<std::size_t> begin_;  // by server, and the end
  std::vector<std::size_t> next_;
  std::vector<Key> keys_;
  std::vector<std::uint32_t> places_;
};

// Row j of `dealt` = row places[j] of `batch`. REQUIRES: sizes of places.size() * dim.
void DealRows(std::span<const float> batch, std::span<const std::uint32_t> places, std::size_t dim,
              std::span<float> dealt);
// The way back: row places[j] of `batch` = row j of `dealt`.
void UndealRows(std::span<const float> dealt, std::span<const std::uint32_t> places,
                std::size_t dim, std::span<float> batch);

}  // namespace sparsefleet
