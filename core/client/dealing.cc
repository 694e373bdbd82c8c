#include "client/dealing.h"

#include <cstring>

namespace sparsefleet {

void KeyDeal::Build(std::span<const Key> keys, std::uint32_t num_servers) {
  owners_.resize(keys.size());
  keys_.resize(keys.size());
  places_.resize(keys.size());
  begin_.assign(num_servers + 1, 0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    owners_[i] = OwnerOf(keys[i], num_servers);
    ++begin_[owners_[i] + 1];
  }
  for (std::uint32_t server = 0; server < num_servers; ++server) {
    begin_[server + 1] += begin_[server];
  }
  next_.assign(begin_.begin(), begin_.end() - 1);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t at = next_[owners_[i]]++;
    keys_[at] = keys[i];
    places_[at] = static_cast<std::uint32_t>(i);
  }
}

void DealRows(std::span<const float> batch, std::span<const std::uint32_t> places, std::size_t dim,
              std::span<float> dealt) {
  for (std::size_t j = 0; j < places.size(); ++j) {
    std::memcpy(dealt.data() + j * dim, batch.data() + places[j] * dim, dim * sizeof(float));
  }
}

void UndealRows(std::span<const float> dealt, std::span<const std::uint32_t> places,
                std::size_t dim, std::span<float> batch) {
  for (std::size_t j = 0; j < places.size(); ++j) {
    std::memcpy(batch.data() + places[j] * dim, dealt.data() + j * dim, dim * sizeof(float));
  }
}

}  // namespace sparsefleet
