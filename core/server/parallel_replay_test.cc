// A log replayed on several threads: the same bits as when its requests were applied, one by one.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "client/client.h"
#include "table/pinned_seconds.h"
#include "table/table_set.h"
#include "testing/check.h"
#include "testing/durable_process.h"
#include "testing/faulty_files.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout = 60;
constexpr std::uint32_t kDim = 5;
constexpr std::uint64_t kDense = 20'000;
constexpr std::uint64_t kSteps = 12;

// A sparse and a dense table per optimizer. Row types, admission, eviction and what is tracked
// take turns among them.
std::vector<SparseSpec> SparseSpecs() {
  std::vector<SparseSpec> specs;
  for (int kind = 0; kind <= static_cast<int>(kLastOptimizer); ++kind) {
    SparseSpec spec;
    spec.name = "rows-" + std::to_string(kind);
    spec.dim = kDim;
    spec.seed = 7;
    spec.optimizer.kind = static_cast<OptimizerKind>(kind);
    spec.optimizer.learning_rate = 0.05;
    spec.initializer = {InitializerKind::kUniform, -0.1, 0.1};
    spec.row_dtype = static_cast<RowDtype>(kind % 3);
    if (kind % 4 == 1) spec.admission = {AdmissionKind::kCount, 2, 1.0};
    if (kind % 4 == 2) spec.admission = {AdmissionKind::kProbability, 1, 0.4};
    if (kind % 5 == 0) spec.eviction.untouched_steps = 4;
    if (kind % 5 == 1) spec.eviction.min_count = 2;
    spec.track_step = kind % 2 == 0;
    spec.track_seconds = kind % 3 == 0;
    spec.track_dirty = kind % 2 == 1;
    if (spec.Validate().ok()) specs.push_back(spec);
  }
  return specs;
}

std::vector<DenseSpec> DenseSpecs() {
  std::vector<DenseSpec> specs;
  for (int kind = 0; kind <= static_cast<int>(kLastOptimizer); ++kind) {
    DenseSpec spec;
    spec.name = "dense-" + std::to_string(kind);
    spec.size = kDense;
    spec.optimizer.kind = static_cast<OptimizerKind>(kind);
    spec.optimizer.learning_rate = 0.05;
    spec.non_finite = NonFinitePolicy::kRejectRow;
    if (spec.Validate().ok()) specs.push_back(spec);
  }
  return specs;
}

// The gradients of one step: about 400 keys per table, some of them repeated, some not finite.
struct StepGradients {
  StepGradients(std::uint64_t step, const std::vector<SparseSpec>& sparse,
                const std::vector<DenseSpec>& dense) {
    std::mt19937 random(static_cast<unsigned>(step));
    std::uniform_real_distribution<float> draw(-1, 1);
    for (int i = 0; i < 400; ++i) keys.push_back(random() % 3000);
    keys[1] = keys[0];
    rows.resize(keys.size() * kDim);
    for (float& value : rows) value = draw(random);
    rows[17 * kDim] = INFINITY;
    values.resize(kDense);
    for (float& value : values) value = draw(random);
    for (const SparseSpec& spec : sparse) {
      sections.push_back({spec.name, keys, rows, false, false, step % 4 == 3});
    }
    for (const DenseSpec& spec : dense) {
      sections.push_back({spec.name, {}, values, true, false, false});
    }
  }
  std::vector<Key> keys;
  std::vector<float> rows;
  std::vector<float> values;
  std::vector<PushSection> sections;
};

// Everything that a table holds, as bytes. NaN is equal to itself here.
using Content = std::map<std::string, std::vector<std::byte>>;

template <typename T>
void Put(std::vector<std::byte>& out, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void PutRows(std::vector<std::byte>& out, const RowBatch& batch) {
  const std::size_t count = batch.keys.size();
  const auto row = [&](const auto& column, std::size_t i) {
    const std::size_t width = column.size() / count;
    return std::span(column).subspan(i * width, width);
  };
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = i;
  std::ranges::sort(order, {}, [&](std::size_t i) { return batch.keys[i]; });
  for (const std::size_t i : order) {
    Put<Key>(out, row(batch.keys, i));
    Put<float>(out, row(batch.values, i));
    Put<float>(out, row(batch.state, i));
    Put<std::uint32_t>(out, row(batch.counters, i));
  }
}

void ExpectSame(const Content& found, const Content& wanted) {
  ExpectEqual(found.size(), wanted.size());
  for (const auto& [name, bytes] : wanted) {
    Expect(!bytes.empty(), name + " is empty");
    Expect(found.at(name) == bytes, name + " differs");
  }
}

const Test kTeam("pushes applied on several threads give the bits and results of one", [] {
  const auto sparse = SparseSpecs();
  const auto dense = DenseSpecs();
  Team team(4);
  TableSet alone;
  TableSet together;
  together.SetTeam(&team);
  std::vector<std::shared_ptr<ChangeCursor>> watches;
  for (TableSet* tables : {&alone, &together}) {
    for (const SparseSpec& spec : sparse) RequireOk(tables->Define(spec));
    for (const DenseSpec& spec : dense) RequireOk(tables->Define(spec));
    watches.push_back(RequireOk(tables->Sparse(sparse[0].name))->WatchChanges());
  }
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const StepGradients gradients(step, sparse, dense);
    const PinnedSeconds pinned(static_cast<std::uint32_t>(step));  // for tables that record it
    std::vector<PushResult> results;
    for (TableSet* tables : {&alone, &together}) {
      std::vector<float> rows(gradients.keys.size() * kDim);
      for (const SparseSpec& spec : sparse) {
        const PullSection pulled{spec.name, gradients.keys, rows};
        RequireOk(tables->Pull({&pulled, 1}, PullMode::kTrain, step));
      }
      results.push_back(RequireOk(tables->Push(gradients.sections, step)));
      if (step % 5 != 0) continue;
      for (const SparseSpec& spec : sparse) RequireOk(tables->Sparse(spec.name))->Shrink(step);
    }
    Expect(results[0] == results[1], "the results differ");
    Expect(results[0].not_admitted > 0 && results[0].rejected_non_finite > 0);
  }
  std::vector<Content> contents(2);
  for (int i = 0; i < 2; ++i) {
    TableSet& tables = i == 0 ? alone : together;
    for (const SparseSpec& spec : sparse) {
      TableCut cut = RequireOk(tables.Sparse(spec.name))->OpenCut();
      RowBatch batch;
      cut.Next(1 << 20, batch);
      PutRows(contents[i][spec.name], batch);
    }
    for (const DenseSpec& spec : dense) {
      const DenseCut cut = RequireOk(tables.ReadDensePart(spec.name));
      Put<float>(contents[i][spec.name], cut.values);
      Put<float>(contents[i][spec.name], cut.state);
    }
    auto changed = watches[i]->Take(true, 0, 1 << 20);
    std::ranges::sort(changed);
    Put<Key>(contents[i]["changed"], changed);
  }
  ExpectSame(contents[1], contents[0]);
});

std::unique_ptr<Client> ConnectTo(const DurableProcess& server) {
  ClientOptions options;
  options.endpoints = {server.endpoint()};
  options.security = TestSecurity(TransportKind::kAuto);
  options.name = "worker-0";
  options.failover_wait_s = 60;
  return RequireOk(Client::Connect(std::move(options)));
}

Content Read(Client& client) {
  Content content;
  for (const SparseSpec& spec : SparseSpecs()) {
    auto cut = RequireOk(client.OpenCut(spec.name, false, false, kTimeout));
    RowBatch all;
    RowBatch part;
    while (RequireOk(cut->Next(1000, part))) {
      all.keys.insert(all.keys.end(), part.keys.begin(), part.keys.end());
      all.values.insert(all.values.end(), part.values.begin(), part.values.end());
      all.state.insert(all.state.end(), part.state.begin(), part.state.end());
      all.counters.insert(all.counters.end(), part.counters.begin(), part.counters.end());
    }
    PutRows(content[spec.name], all);
  }
  for (const DenseSpec& spec : DenseSpecs()) {
    std::vector<float> values(kDense);
    const PullSection pulled{spec.name, {}, values, true};
    RequireOk(client.Pull({&pulled, 1}, PullMode::kTrain, 1, kTimeout));
    Put<float>(content[spec.name], values);
  }
  return content;
}

// With snapshots, rows are restored and pushes replayed on top of them.
const Test kReplay("a killed server recovers the bits of every table, on several threads", [] {
  for (const std::uint64_t snapshot_bytes : {1ull << 30, 1ull}) {
    const TemporaryDirectory place;
    DurableProcess server(place.path(), Durability::kProcess, snapshot_bytes);
    auto client = ConnectTo(server);
    const auto sparse = SparseSpecs();
    const auto dense = DenseSpecs();
    for (const SparseSpec& spec : sparse) RequireOk(client->Define(spec, kTimeout));
    for (const DenseSpec& spec : dense) RequireOk(client->Define(spec, kTimeout));
    const RoundMember member{"g", 0, 1};
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      const StepGradients gradients(step, sparse, dense);
      std::vector<float> rows(gradients.keys.size() * kDim);
      for (const SparseSpec& spec : sparse) {
        const PullSection pulled{spec.name, gradients.keys, rows};
        RequireOk(client->Pull({&pulled, 1}, PullMode::kTrain, step, kTimeout));
      }
      auto result = step % 4 == 0
                        ? client->PushRound(member, step, gradients.sections, step, kTimeout)
                        : client->Push(gradients.sections, step, kTimeout);
      Require(result.ok(), result.status().message());
      if (step % 5 == 0) {
        for (const SparseSpec& spec : sparse) {
          RequireOk(client->Shrink(spec.name, step, kTimeout).status());
        }
      }
      if (step != 7 && step != kSteps) continue;
      const Content before = Read(*client);
      // At any moment of its recovery, and several times in a row.
      for (int delay_us = 500; delay_us < 60'000; delay_us *= 2) {
        server.KillWhileItStarts(std::chrono::microseconds(delay_us));
      }
      server.Restart();
      ExpectSame(Read(*client), before);
    }
  }
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) {
  sparsefleet::testing::ServeIfAsked(argc, argv);
  return sparsefleet::testing::RunTests(argc, argv);
}
