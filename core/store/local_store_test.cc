#include "store/local_store.h"

#include <string>
#include <thread>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

constexpr double kTimeout = 20.0;
const std::vector<Key> kKeys = {3, 5};

SparseSpec Spec(std::uint32_t dim) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = dim;
  spec.optimizer.learning_rate = 1.0;
  return spec;
}

void PushOnes(LocalStore& store) {
  const std::vector<float> gradients(kKeys.size(), 1.0f);
  const PushSection section{"ads", kKeys, gradients};
  RequireOk(store.Push({&section, 1}, 1, kTimeout));
}

std::vector<float> PullAll(LocalStore& store) {
  std::vector<float> values(kKeys.size());
  const PullSection section{"ads", kKeys, values};
  RequireOk(store.Pull({&section, 1}, PullMode::kInferZeros, 1, kTimeout));
  return values;
}

const Test kRoundTrip("rows pushed are pulled back", [] {
  LocalStore store;
  ExpectEqual(store.num_servers(), 1u);
  RequireOk(store.Define(Spec(1), kTimeout));
  PushOnes(store);
  Expect(PullAll(store) == std::vector<float>{-1, -1}, "values");
  ExpectEqual(RequireOk(store.Version("ads", kTimeout)), 1u);
  const auto info = RequireOk(store.Info("ads", kTimeout));
  ExpectEqual(info.size, 2u);
  ExpectEqual(info.dim, 1u);
  ExpectCode(store.Info("nope", kTimeout).status(), Code::kUnknownTable);
  ExpectEqual(RequireOk(store.Erase("ads", kKeys, kTimeout)), 2u);
});

const Test kDense("a dense table is written, pushed and pulled as a whole", [] {
  LocalStore store;
  DenseSpec spec;
  spec.name = "net";
  spec.size = 3;
  spec.optimizer.learning_rate = 1.0;
  RequireOk(store.Define(spec, kTimeout));
  RequireOk(store.WriteDense("net", std::vector<float>{1, 2, 3}, kTimeout));
  ExpectCode(store.WriteDense("net", std::vector<float>{1}, kTimeout), Code::kShapeMismatch);
  const std::vector<float> gradient(3, 1.0f);
  const PushSection push{"net", {}, gradient, true};
  RequireOk(store.Push({&push, 1}, 1, kTimeout));
  std::vector<float> values(2);
  const PullSection pull{"net", {}, values, true, 1};
  RequireOk(store.Pull({&pull, 1}, PullMode::kTrain, 1, kTimeout));
  Expect(values == std::vector<float>{1, 2}, "elements starting at the offset");
  auto stats = RequireOk(store.Stats(kTimeout));
  ExpectEqual(stats[0]["table.net.elements"], 3.0);
  ExpectEqual(stats[0]["table.net.version"], 1.0);
  ExpectEqual(stats[0]["table.net.learning_rate"], 1.0);
});

const Test kBarrier("a barrier blocks threads until the last one arrives", [] {
  LocalStore store;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { ExpectCode(store.Barrier("b", 3, kTimeout), Code::kOk); });
  }
});

const Test kBarrierDeadline("a barrier that stays incomplete ends at its deadline", [] {
  LocalStore store;
  const Status status = store.Barrier("b", 2, 0.05);
  ExpectCode(status, Code::kDeadlineExceeded);
  Expect(status.message().find("1 of 2 arrived within 0.0") != std::string::npos, status.message());
});

const Test kVersions("a wait for a version ends with the push that reaches it", [] {
  LocalStore store;
  RequireOk(store.Define(Spec(1), kTimeout));
  std::jthread waiter([&] { ExpectCode(store.WaitVersion("ads", 2, kTimeout), Code::kOk); });
  PushOnes(store);
  PushOnes(store);
  waiter.join();
  ExpectCode(store.WaitVersion("ads", 3, 0.01), Code::kDeadlineExceeded);
  ExpectCode(store.WaitVersion("nope", 1, 0.01), Code::kUnknownTable);
});

const Test kNotes("a note is awaited, read and deleted", [] {
  LocalStore store;
  std::jthread waiter([&] {
    const auto note = store.GetNote("k", true, kTimeout);
    Expect(note.ok() && note.value() == "v", "the note arrived");
  });
  RequireOk(store.PutNote("k", "v", kTimeout));
  waiter.join();
  RequireOk(store.DeleteNote("k", kTimeout));
  ExpectCode(store.GetNote("k", false, kTimeout).status(), Code::kNotFound);
});

const Test kCutUntracked("dirty rows of a table that does not track them are refused", [] {
  LocalStore store;
  RequireOk(store.Define(Spec(1), kTimeout));
  const Status refused = store.OpenCut("ads", true, false, kTimeout).status();
  ExpectCode(refused, Code::kInvalidArgument);
  Expect(refused.message().find("'ads'") != std::string::npos, "names the table");
  Expect(refused.message().find("track_dirty") != std::string::npos, "names the option");
});

const Test kCutClears("a clearing cut read to its end leaves no dirty rows", [] {
  LocalStore store;
  SparseSpec spec = Spec(1);
  spec.track_dirty = true;
  RequireOk(store.Define(spec, kTimeout));
  PushOnes(store);
  const auto count = [&](bool to_the_end) {
    auto cut = RequireOk(store.OpenCut("ads", true, true, kTimeout));
    RowBatch rows;
    Expect(RequireOk(cut->Next(10, rows)) == !rows.keys.empty());
    const std::size_t found = rows.keys.size();
    if (to_the_end) Expect(!RequireOk(cut->Next(10, rows)), "the end");
    return found;
  };
  ExpectEqual(count(false), 2u);
  ExpectEqual(count(true), 2u);
  ExpectEqual(count(true), 0u);
});

const Test kCut("a cut returns every row; import restores them", [] {
  LocalStore store;
  RequireOk(store.Define(Spec(1), kTimeout));
  PushOnes(store);
  auto cut = RequireOk(store.OpenCut("ads", false, false, kTimeout));
  RowBatch rows;
  Expect(RequireOk(cut->Next(10, rows)));
  ExpectEqual(rows.keys.size(), 2u);
  RowBatch end;
  Expect(!RequireOk(cut->Next(10, end)), "the end");
  RequireOk(store.Erase("ads", kKeys, kTimeout));
  RequireOk(store.Import("ads", rows, kTimeout));
  Expect(PullAll(store) == std::vector<float>{-1, -1}, "imported");
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
