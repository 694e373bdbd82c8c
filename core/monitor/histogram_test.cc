#include "monitor/histogram.h"

#include <limits>
#include <thread>
#include <vector>

#include "monitor/span_ring.h"
#include "table/norm_sample.h"
#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const Test kBuckets("a bucket counts what is at most its bound", [] {
  DurationHistogram histogram;
  std::map<std::string, double> stats;
  histogram.AddTo(stats, "pull");
  Expect(stats.empty());
  for (const double seconds : {50e-6, 51e-6, 0.3, 99.0}) histogram.Observe(seconds);
  histogram.AddTo(stats, "pull");
  ExpectEqual(stats.size(), DurationHistogram::kBounds.size() + 2);
  ExpectEqual(stats["pull.le.5e-05"], 1.0);
  ExpectEqual(stats["pull.le.0.0001"], 2.0);
  ExpectEqual(stats["pull.le.0.5"], 3.0);
  ExpectEqual(stats["pull.le.10"], 3.0);
  ExpectEqual(stats["pull.le.inf"], 4.0);
  Expect(stats["pull.sum"] > 99.3 && stats["pull.sum"] < 99.31);
});

const Test kThreads("no observation of several threads is lost", [] {
  DurationHistogram histogram;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 10000; ++n) histogram.Observe(0.25);
      });
    }
  }
  std::map<std::string, double> stats;
  histogram.AddTo(stats, "push");
  ExpectEqual(stats["push.le.0.2"], 0.0);
  ExpectEqual(stats["push.le.inf"], 40000.0);
  ExpectEqual(stats["push.sum"], 10000.0);
});

const Test kSpans("spans are kept while the ring is on, up to its capacity", [] {
  SpanRing ring;
  Expect(!ring.is_on());
  ring.Begin(2);
  Expect(ring.is_on());
  for (std::uint32_t type = 0; type < 3; ++type) ring.Record(type, std::chrono::milliseconds(5));
  const auto spans = ring.Take();
  Expect(!ring.is_on());
  ExpectEqual(spans.size(), 2u);
  ExpectEqual(spans[1].type, 1u);
  ExpectEqual(spans[1].duration_ns, 5000000);
  Expect(spans[0].begin_ns > 1000000000000000000);
  Expect(ring.Take().empty());
});

const Test kNorms("one of 32 rows is looked at, whatever the size of batches", [] {
  NormSample sample;
  const std::vector<float> row = {3.0F, 4.0F};
  for (int n = 0; n < 320; ++n) sample.Look(row.data(), 1, 2);
  ExpectEqual(sample.count(), 10u);
  ExpectEqual(sample.squares(), 250.0);
  const std::vector<float> bad(64, std::numeric_limits<float>::infinity());
  sample.Look(bad.data(), 32, 2);
  ExpectEqual(sample.count(), 10u);
});

}  // namespace

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
