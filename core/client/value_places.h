// Places the values of a reply directly into the caller's memory.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "transport/bf16.h"

namespace sparsefleet {

// Not thread-safe. Must not move while a reply is read.
class ValuePlaces {
 public:
  // The next values of a reply go to `out`. 16-bit ones arrive in its second half.
  void Add(std::vector<std::span<std::byte>>& reply, std::span<float> out, bool bf16) {
    auto place = std::as_writable_bytes(out);
    if (bf16) {
      place = place.last(out.size() * sizeof(Bf16));
      narrow_.push_back(out);
    }
    reply.push_back(place);
    const std::size_t over = place.size() % 8;
    if (over != 0) reply.push_back(std::span(padding_).first(8 - over));
  }

  // Call once the replies have arrived.
  void Widen() const {
    for (const auto& out : narrow_) {
      const auto place = std::as_bytes(out).last(out.size() * sizeof(Bf16));
      BestBf16().widen(out.data(), place.data(), out.size());
    }
  }

 private:
  std::vector<std::span<float>> narrow_;
  std::array<std::byte, 8> padding_;  // read and discarded
};

}  // namespace sparsefleet
