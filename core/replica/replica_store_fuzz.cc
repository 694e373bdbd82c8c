// libFuzzer entry: one input is a sequence of requests to a process that keeps copies of logs. Each
// must be answered or refused, whatever the copies on disk have become by then.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "log/log.h"
#include "log/log_cursor.h"
#include "replica/replica_messages.h"
#include "replica/replica_store.h"
#include "testing/faulty_files.h"
#include "testing/fuzz_seeds.h"

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

using Bytes = std::vector<std::byte>;

Bytes Flat(const GatheredBody& body) {
  Bytes flat;
  for (const iovec& piece : body.pieces) {
    testing::AppendBytes(flat, {static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
  }
  return flat;
}

// The records of a small log.
Bytes Records() {
  const testing::TemporaryDirectory place;
  auto directory = LogDirectory::Open(place.path(), 0);
  if (!directory.ok()) std::abort();
  auto log = Log::Begin(*directory.value(), 1, {});
  if (!log.ok()) std::abort();
  for (std::uint32_t type = 0; type < 2; ++type) {
    std::string text(5, 'x');
    const iovec piece{text.data(), text.size()};
    if (!log.value()->Append(type, {&piece, 1}).ok()) std::abort();
  }
  auto file = MappedFile::Open(directory.value()->SegmentPath(1));
  if (!file.ok()) std::abort();
  const auto bytes = file.value().bytes();
  return {bytes.begin(), bytes.end()};
}

// A copy that is opened, appended to and read.
std::vector<Bytes> Seeds() {
  const ReplicaHead head{0, 1, 5};
  const Bytes file = Records();
  const auto records = std::span(file).subspan(kFileHeadBytes);
  const std::array<Bytes, 4> requests = {Encode(ReplicaOpen{head, true}),
                                         Flat(Gather(ReplicaAppend{head, 1, records})),
                                         Flat(Gather(ReplicaSnapshot{head, 3, 0, true, records})),
                                         Encode(ReplicaRead{head, false, 1, 0, 100})};
  std::vector<Bytes> seeds(1);
  for (const std::size_t type : {0, 1, 3, 1, 2, 3}) {
    const Bytes& body = requests[type];
    Bytes request = {static_cast<std::byte>(type), static_cast<std::byte>(body.size())};
    testing::AppendBytes(request, body);
    testing::AppendBytes(seeds[0], request);
    seeds.push_back(request);
  }
  return seeds;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  testing::WriteFuzzSeeds(*argc, *argv, Seeds());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Fuzzer fuzzer;
  fuzzer.Feed(std::as_bytes(std::span(data, size)));
  return 0;
}
