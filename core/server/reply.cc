#include "server/reply.h"

#include <algorithm>
#include <array>

#include "transport/bf16.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kReadAtOnce = 4096;  // floats on their way to 16 bits, within the cache

}  // namespace

void DenseRead::WriteTo(std::byte* out) const {
  const std::size_t values = static_cast<std::size_t>(count);
  const std::size_t used = values * (bf16 ? sizeof(Bf16) : sizeof(float));
  std::memset(out + used, 0, bytes() - used);
  if (!bf16) {
    (void)table->Read(offset, {reinterpret_cast<float*>(out), values});
    return;
  }
  std::array<float, kReadAtOnce> floats;
  for (std::size_t done = 0; done < values; done += kReadAtOnce) {
    const std::size_t taken = std::min(kReadAtOnce, values - done);
    (void)table->Read(offset + done, std::span(floats).first(taken));
    BestBf16().narrow(reinterpret_cast<Bf16*>(out) + done, floats.data(), taken);
  }
}

}  // namespace sparsefleet
