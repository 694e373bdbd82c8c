// libFuzzer entry: one input is a sequence of requests to a process that keeps copies of logs. Each
// must be answered or refused, whatever the copies on disk have become by then.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "replica/replica_store.h"
#include "testing/faulty_files.h"

namespace {

using namespace sparsefleet;

constexpr std::array kTypes = {MessageType::kReplicaOpen, MessageType::kReplicaAppend,
                               MessageType::kReplicaSnapshot, MessageType::kReplicaRead};
constexpr int kInputsPerStore = 500;  // bounds the files that inputs may make

class Fuzzer {
 public:
  // Each request is a byte for its type, a byte for the size of its body, and the body.
  void Feed(std::span<const std::byte> input) {
    if (inputs_++ % kInputsPerStore == 0) {
      store_ = nullptr;
      place_ = std::make_unique<testing::TemporaryDirectory>();
      store_ = std::make_unique<ReplicaStore>(
          ReplicaStoreOptions{.directory = place_->path(), .sync = false, .end_of_snapshot = 7});
    }
    while (input.size() >= 2) {
      const auto type = kTypes[std::to_integer<std::size_t>(input[0]) % kTypes.size()];
      const std::size_t size = std::min(std::to_integer<std::size_t>(input[1]), input.size() - 2);
      // Memory of exactly its size, so that a sanitizer sees a read beyond it.
      const auto body = std::make_unique_for_overwrite<std::byte[]>(size);
      std::copy_n(input.begin() + 2, size, body.get());
      input = input.subspan(2 + size);
      (void)store_->Handle(type, {body.get(), size});
    }
    StatMap stats;
    store_->AddStats(stats);
  }

 private:
  std::unique_ptr<testing::TemporaryDirectory> place_;
  std::unique_ptr<ReplicaStore> store_;
  int inputs_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Fuzzer fuzzer;
  fuzzer.Feed(std::as_bytes(std::span(data, size)));
  return 0;
}
