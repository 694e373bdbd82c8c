#include "sync/team.h"

#ifdef __linux__
#include <pthread.h>
#endif

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

// Sanitizers abort if a thread cannot be created.
#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
const Test kRefused("a team without the threads it asked for does the work all the same", [] {
  pthread_attr_t usual;
  pthread_attr_t refused;
  Require(pthread_getattr_default_np(&usual) == 0, "no default attributes");
  Require(pthread_attr_init(&refused) == 0, "no attributes");
  Require(pthread_attr_setstacksize(&refused, std::size_t{1} << 46) == 0, "no stack of 64 TiB");
  Require(pthread_setattr_default_np(&refused) == 0, "attributes are not taken");
  {
    Team team(4);
    std::vector<int> calls(100);
    team.Run(calls.size(), [&](std::size_t i) { ++calls[i]; });
    Expect(calls == std::vector<int>(100, 1));
  }
  Require(pthread_setattr_default_np(&usual) == 0, "attributes are not taken back");
});
#endif

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
