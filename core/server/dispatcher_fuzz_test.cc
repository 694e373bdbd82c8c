// Hundreds of thousands of damaged frames: nothing breaks, no other table changes, other clients
// are served.
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "testing/check.h"
#include "testing/frame_corpus.h"
#include "testing/fuzz_target.h"
#include "testing/test_server.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

constexpr int kFrames = 240'000;
constexpr int kFramesPerTarget = 20'000;
constexpr int kFramesPerClient = 64;
constexpr int kStreams = 3'000;

const std::string kSentinel =
    "a-table-no-frame-names";  // damage cannot turn another name into this one
const std::vector<Key> kSentinelKeys = {1, 2, 3};

void FillSentinel(TableSet& tables) {
  SparseSpec spec = CorpusSparse(kSentinel, 8);
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.learning_rate = 1.0;
  spec.initializer = {};
  RequireOk(tables.Define(spec));
  const std::vector<float> gradients(kSentinelKeys.size() * 8, -3.0f);
  RequireOk(RequireOk(tables.Sparse(kSentinel))->Push(kSentinelKeys, gradients, 1));
}

void CheckSentinel(TableSet& tables) {
  std::vector<float> values(kSentinelKeys.size() * 8);
  const auto table = RequireOk(tables.Sparse(kSentinel));
  RequireOk(table->Pull(kSentinelKeys, PullMode::kInferZeros, 0, values));
  Expect(values == std::vector<float>(values.size(), 3.0f), "the sentinel table changed");
  ExpectEqual(table->Stats().rows, kSentinelKeys.size());
}

// A valid client's requests after all that still give exact results.
void CheckAnswers(FuzzTarget& target) {
  target.Rejoin();
  SparseSpec spec;
  spec.name = "a-table-of-a-sound-client";
  spec.dim = 2;
  spec.optimizer.learning_rate = 1.0;
  target.Feed(FrameOf(MessageType::kDefineSparse, Encode(spec), 1));
  const std::vector<float> gradients = {1.0f, -1.0f};
  const std::vector<Key> keys = {5};
  PushRequest push;
  push.sections.push_back({spec.name, false, false, false, 2, 1, keys, gradients});
  target.Feed(FrameOf(MessageType::kPush, Encode(push), 2));
  Expect(!target.sink().last.error, "a valid push is applied");
  PullRequest pull;
  pull.sections.push_back({spec.name, false, 2, 1, 0, keys});
  target.Feed(FrameOf(MessageType::kPull, Encode(pull), 0));
  Require(!target.sink().last.error && target.sink().last.body.bytes().size() == 8, "a valid pull");
  float row[2];
  std::memcpy(row, target.sink().last.body.bytes().data(), sizeof(row));
  Expect(row[0] == -1.0f && row[1] == 1.0f, "the row of a valid push");
}

const Test kFrameFuzz("240,000 damaged frames leave the dispatcher intact", [] {
  FrameMutator mutator(20240607);
  std::uint64_t answered = 0;
  std::uint64_t refused = 0;
  for (int first = 0; first < kFrames; first += kFramesPerTarget) {
    FuzzTarget target;
    FillSentinel(target.tables());
    for (int i = 0; i < kFramesPerTarget; ++i) {
      const Bytes frame = mutator.Next();
      target.Feed(frame);
      if (i % 32 == 0) target.Feed(frame);  // a retry
      if (i % 16 == 0) target.AnswerCommand();
      if (i % kFramesPerClient == 0) {
        target.ExpireAll();
        target.Rejoin();
      }
    }
    target.ExpireAll();
    const TallySink& sink = target.sink();
    ExpectEqual(sink.replies + sink.abandoned, target.handled());
    CheckSentinel(target.tables());
    CheckAnswers(target);
    answered += sink.replies - sink.errors;
    refused += sink.errors;
  }
  // Otherwise the damage would not reach the code under test.
  Expect(answered > kFrames / 10, "too few frames got through: " + std::to_string(answered));
  Expect(refused > kFrames / 10, "too few frames were refused: " + std::to_string(refused));
  std::printf("       %llu frames accepted, %llu rejected\n",
              static_cast<unsigned long long>(answered), static_cast<unsigned long long>(refused));
});

// Otherwise the fuzz target, whose seeds these are, would mostly see refusals.
const Test kCorpus("the frames of the corpus are accepted", [] {
  FuzzTarget target;
  std::uint64_t sequence = 0;
  for (const CorpusFrame& frame : CorpusFrames()) {
    const std::uint64_t errors = target.sink().errors;
    target.Feed(FrameOf(frame.type, frame.body, ++sequence));
    if (target.sink().errors == errors) continue;
    // Nothing listens for a lane; one round is given up, and the clock withdraws a waiting call.
    const std::string why = DecodeError(target.sink().last.body.bytes()).message();
    const bool is_expected = frame.type == MessageType::kLane ||
                             frame.type == MessageType::kAdvanceClock ||
                             why.ends_with("not finite");
    Expect(is_expected, std::string(MessageName(frame.type)) + ": " + why);
  }
});

// Pushes one to a counter row and pulls it back until stopped; every answer must be right.
void StaySound(const TestServer& server, const std::atomic<bool>& stop) {
  // An id that damage does not produce: a hello with it is from this client.
  auto client = server.Join(0x5afe'0c11'e470'0d1d, "healthy");
  SparseSpec spec = CorpusSparse(kSentinel, 1);
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.learning_rate = 1.0;
  spec.initializer = {};
  std::uint64_t sequence = 1;
  RequireOk(client->Call(MessageType::kDefineSparse, Encode(spec), sequence++).status);
  const std::vector<Key> keys = {5};
  const std::vector<float> gradients = {-1.0f};
  PushRequest push;
  push.sections.push_back({kSentinel, false, false, false, 1, 1, keys, gradients});
  PullRequest pull;
  pull.sections.push_back({kSentinel, false, 1, 1, 0, keys});
  float wanted = 0;
  do {
    RequireOk(client->Call(MessageType::kPush, Encode(push), sequence++).status);
    const auto reply = client->Call(MessageType::kPull, Encode(pull));
    RequireOk(reply.status);
    float found = 0;
    std::memcpy(&found, reply.body.data(), sizeof(found));
    wanted += 1;
    if (!ExpectEqual(found, wanted)) return;
  } while (!stop);
}

const Test kStreamFuzz("damaged streams against a live server disturb no other client", [] {
  ServerOptions options;
  options.max_frame_bytes = FuzzTarget::kMaxFrameBytes;
  options.max_dense_bytes = 1 << 20;
  TestServer server(options);
  for (const auto& spec : CorpusSparseTables()) RequireOk(server.server->tables().Define(spec));
  for (const auto& spec : CorpusDenseTables()) RequireOk(server.server->tables().Define(spec));
  std::atomic<bool> stop{false};
  bool sound = false;
  {
    std::jthread healthy([&] {
      try {
        StaySound(server, stop);
        sound = true;
      } catch (const RequirementFailed&) {
      }
    });
    FrameMutator mutator(7);
    for (int i = 0; i < kStreams; ++i) {
      auto client = server.Connect();
      if (i % 16 != 0) RequireOk(client->Hello(100 + static_cast<std::uint64_t>(i), "odd").status);
      for (int frames = i % 5; frames >= 0; --frames) client->SendBytes(mutator.Next());
    }
    stop = true;
  }
  Expect(sound, "the healthy client was disturbed");
  auto after = server.Join(2, "after");
  RequireOk(after->Call(MessageType::kStats, {}).status);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
