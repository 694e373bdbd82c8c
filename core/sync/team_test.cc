#include "sync/team.h"

#include <atomic>
#include <thread>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const Test kOnce("every part has run once when Run() returns", [] {
  for (const unsigned threads : {1u, 2u, 5u}) {
    Team team(threads);
    for (std::size_t count = 0; count < 300; ++count) {
      std::vector<int> calls(count);
      team.Run(count, [&](std::size_t i) { ++calls[i]; });
      Expect(calls == std::vector<int>(count, 1));
    }
  }
});

// Neither part ends unless another thread takes the other one.
const Test kTogether("parts run at the same time", [] {
  Team team(2);
  std::atomic<int> arrived{0};
  team.Run(2, [&](std::size_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  Expect(arrived == 2);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
