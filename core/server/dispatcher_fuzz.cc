// libFuzzer entry: one input is one frame for the dispatcher.
//   cmake -DSPARSEFLEET_FUZZ=ON -DCMAKE_CXX_COMPILER=clang++
//   -DSPARSEFLEET_SANITIZE=address,undefined
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "testing/frame_corpus.h"
#include "testing/fuzz_target.h"

namespace {

using namespace sparsefleet;
using namespace sparsefleet::testing;

constexpr int kInputsPerTarget = 2'000;  // bounds the tables that inputs may define

class Fuzzer {
 public:
  // The first byte picks a message type and the rest is its body; past the types, the rest is a
  // whole frame.
  void Feed(std::span<const std::byte> input) {
    if (inputs_++ % kInputsPerTarget == 0) target_ = std::make_unique<FuzzTarget>();
    if (input.empty()) return;
    const auto pick = std::to_integer<std::size_t>(input[0]);
    input = input.subspan(1);
    if (pick < corpus_.size()) {
      target_->Feed(FrameOf(corpus_[pick].type, {input.begin(), input.end()}, ++sequence_));
    } else {
      target_->Feed(input);
    }
    if (pick % 2 == 0) target_->AnswerCommand();
    target_->ExpireAll();
    target_->Rejoin();
  }

 private:
  const std::vector<CorpusFrame> corpus_ = CorpusFrames();
  std::unique_ptr<FuzzTarget> target_;
  int inputs_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Fuzzer fuzzer;
  fuzzer.Feed(std::as_bytes(std::span(data, size)));
  return 0;
}
