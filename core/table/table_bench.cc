// Times lookups and updates of one table: table_bench [rows] [dim] [batch] [threads].
// Finally compares keys chosen to collide in Mix64 with random ones.
// Built with -DSPARSEFLEET_BENCH=ON.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "merge/unique.h"
#include "table/sparse_table.h"
#include "testing/chosen_keys.h"

namespace sparsefleet {
namespace {

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double ThreadCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Nanoseconds per row: wall clock, and processor time of this thread.
struct Timing {
  double wall = 0;
  double cpu = 0;
};

// Times `batches` calls on random keys.
template <typename Call>
Timing TimeBatches(std::size_t rows, std::size_t batch, std::size_t batches, std::uint64_t seed,
                   Call call) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<Key>> keys(batches, std::vector<Key>(batch));
  for (auto& some : keys) {
    for (Key& key : some) key = random() % rows;
  }
  const double per_row = 1e9 / static_cast<double>(batches * batch);
  const double start = Seconds();
  const double cpu_start = ThreadCpuSeconds();
  for (const auto& some : keys) call(some);
  return {(Seconds() - start) * per_row, (ThreadCpuSeconds() - cpu_start) * per_row};
}

void Report(const char* what, SparseTable& table, std::size_t rows, std::size_t batch,
            std::size_t threads, bool push) {
  const std::size_t batches = std::max<std::size_t>(2'000'000 / batch, 1);
  std::vector<Timing> ns(threads);
  std::vector<std::jthread> running;
  for (std::size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      std::vector<float> buffer(batch * table.dim(), 1e-3F);
      ns[t] = TimeBatches(rows, batch, batches, t, [&](const std::vector<Key>& keys) {
        if (push) {
          (void)table.Push(keys, buffer, 1);
        } else {
          (void)table.Pull(keys, PullMode::kTrain, 1, buffer);
        }
      });
    });
  }
  running.clear();
  Timing worst;
  for (const Timing& one : ns) {
    worst = {std::max(worst.wall, one.wall), std::max(worst.cpu, one.cpu)};
  }
  std::printf("%-8s %zu thread(s): %.1f ns per row, %.1f of processor time\n", what, threads,
              worst.wall, worst.cpu);
}

// Nanoseconds per key for making `keys` unique, creating their rows and pulling them again.
void ReportFlood(const char* what, const SparseSpec& spec, const std::vector<Key>& keys) {
  auto created = SparseTable::Create(spec);
  if (!created.ok()) return;
  std::vector<float> out(keys.size() * spec.dim);
  UniqueKeys unique;
  const auto time = [&](auto call) {
    const double start = Seconds();
    call();
    return (Seconds() - start) * 1e9 / static_cast<double>(keys.size());
  };
  const auto pull = [&] { (void)created.value()->Pull(keys, PullMode::kTrain, 1, out); };
  const double first = time([&] { unique.Build(keys); });
  const double create = time(pull);
  const double again = time(pull);
  std::printf("%zu %s keys: unique %.1f, create %.1f, pull %.1f ns per key\n", keys.size(), what,
              first, create, again);
}

int Run(int argc, char** argv) {
  const auto argument = [&](int i, std::size_t otherwise) {
    return argc > i ? static_cast<std::size_t>(std::atoll(argv[i])) : otherwise;
  };
  const std::size_t rows = argument(1, 5'000'000);
  const std::size_t batch = argument(3, 2600);
  const std::size_t threads = argument(4, 1);
  SparseSpec spec;
  spec.name = "bench";
  spec.dim = static_cast<std::uint32_t>(argument(2, 10));
  spec.initializer = {InitializerKind::kUniform, -0.1, 0.1};
  auto created = SparseTable::Create(spec);
  if (!created.ok()) return 1;
  SparseTable& table = *created.value();

  std::vector<Key> keys(batch);
  std::vector<float> out(batch * spec.dim);
  const double start = Seconds();
  for (std::size_t at = 0; at < rows; at += batch) {
    for (std::size_t i = 0; i < batch; ++i) keys[i] = std::min(at + i, rows - 1);
    if (!table.Pull(keys, PullMode::kTrain, 0, out).ok()) return 1;
  }
  std::printf("%-8s %.1f ns per row\n", "create", (Seconds() - start) * 1e9 / double(rows));
  for (int repeat = 0; repeat < 3; ++repeat) {
    Report("pull", table, rows, batch, threads, false);
    Report("push", table, rows, batch, threads, true);
  }
  const SparseStats stats = table.Stats();
  std::printf("memory   %.3f x payload\n",
              double(stats.memory_bytes) / double(stats.payload_bytes));
  constexpr std::size_t kFlood = 20'000;
  std::mt19937_64 random(1);
  std::vector<Key> scattered(kFlood);
  for (Key& key : scattered) key = random();
  ReportFlood("random", spec, scattered);
  ReportFlood("chosen", spec, testing::ChosenKeys(kFlood));
  return 0;
}

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::Run(argc, argv); }
