// libFuzzer entry: one input is a sequence of frames that a client sends to the dispatcher.
//   cmake -DSPARSEFLEET_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++
//   -DSPARSEFLEET_SANITIZE=address,undefined
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "testing/frame_corpus.h"
#include "testing/fuzz_seeds.h"
#include "testing/fuzz_target.h"

namespace {

using namespace sparsefleet;
using namespace sparsefleet::testing;

constexpr int kInputsPerTarget = 2'000;  // bounds the tables that inputs may define
constexpr std::size_t kPickBytes = 3;

class Fuzzer {
 public:
  // Each frame is a byte that picks its type, two for the size of its body, and the body; past the
  // types, the "body" is a whole frame.
  void Feed(std::span<const std::byte> input) {
    if (inputs_++ % kInputsPerTarget == 0) target_ = std::make_unique<FuzzTarget>();
    while (input.size() >= kPickBytes) {
      const auto pick = std::to_integer<std::size_t>(input[0]);
      const std::size_t said =
          std::to_integer<std::size_t>(input[1]) | std::to_integer<std::size_t>(input[2]) << 8;
      const std::size_t size = std::min(said, input.size() - kPickBytes);
      const auto body = input.subspan(kPickBytes, size);
      input = input.subspan(kPickBytes + size);
      if (pick < corpus_.size()) {
        target_->Feed(FrameOf(corpus_[pick].type, {body.begin(), body.end()}, ++sequence_));
      } else {
        target_->Feed(body);
      }
      if (pick % 2 == 0) target_->AnswerCommand();
    }
    target_->ExpireAll();
    target_->Rejoin();
  }

  // Each frame of the corpus alone, each with the next one, and all of them.
  std::vector<Bytes> Seeds() const {
    std::vector<Bytes> seeds;
    Bytes all;
    Bytes before;
    for (std::size_t i = 0; i < corpus_.size(); ++i) {
      const Body& body = corpus_[i].body;
      Bytes frame = {static_cast<std::byte>(i), static_cast<std::byte>(body.size()),
                     static_cast<std::byte>(body.size() >> 8)};
      AppendBytes(frame, body);
      AppendBytes(all, frame);
      AppendBytes(before, frame);
      seeds.push_back(frame);
      seeds.push_back(std::exchange(before, frame));
    }
    seeds.push_back(all);
    return seeds;
  }

 private:
  const std::vector<CorpusFrame> corpus_ = CorpusFrames();
  std::unique_ptr<FuzzTarget> target_;
  int inputs_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  WriteFuzzSeeds(*argc, *argv, Fuzzer().Seeds());
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Fuzzer fuzzer;
  fuzzer.Feed(std::as_bytes(std::span(data, size)));
  return 0;
}
