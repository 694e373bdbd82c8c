#include "table/large_blocks.h"

#ifdef __linux__
#include <sys/resource.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::Test;

constexpr std::size_t kBlock = 64 << 10;

const Test kDistinct("blocks are aligned and do not overlap", [] {
  std::vector<LargeBlock> blocks;
  for (std::size_t i = 0; i < 200; ++i) {
    blocks.push_back(MakeLargeBlock(1000 * i + 1));
    ExpectEqual(reinterpret_cast<std::uintptr_t>(blocks.back().get()) % 64, 0U);
    std::memset(blocks.back().get(), static_cast<int>(i), 1000 * i + 1);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Expect(blocks[i][0] == static_cast<std::byte>(i), "the content of a block changed");
    Expect(blocks[i][1000 * i] == static_cast<std::byte>(i), "the content of a block changed");
  }
});

const Test kReused("freed space is used again", [] {
  const LargeBlock keeps_the_region = MakeLargeBlock(kBlock);
  const std::size_t mapped = LargeBlocksInUse().mapped;
  for (int round = 0; round < 2000; ++round) MakeLargeBlock(10 * kBlock);
  ExpectEqual(LargeBlocksInUse().mapped, mapped);
});

const Test kAllFreed("nothing stays mapped once everything is freed, in any order", [] {
  const LargeBlockStats before = LargeBlocksInUse();
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    std::vector<LargeBlock> blocks;
    for (int i = 0; i < 300; ++i) blocks.push_back(MakeLargeBlock(random() % (40 * kBlock)));
    std::shuffle(blocks.begin(), blocks.end(), random);
    blocks.resize(random() % blocks.size());
    for (int i = 0; i < 50; ++i) blocks.push_back(MakeLargeBlock(kBlock + random() % kBlock));
    std::shuffle(blocks.begin(), blocks.end(), random);
  }
  ExpectEqual(LargeBlocksInUse().used, before.used);
  ExpectEqual(LargeBlocksInUse().mapped, before.mapped);
});

const Test kHuge("a block larger than a region gets its own", [] {
  const LargeBlock huge = MakeLargeBlock(100U << 20);
  huge[0] = std::byte{1};
  huge[(100U << 20) - 1] = std::byte{2};
  Expect(huge[0] == std::byte{1}, "the content of a block changed");
});

#ifdef __linux__
const Test kNearLimit("near a limit of the address space, regions are smaller", [] {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  Expect(getrlimit(RLIMIT_AS, &before) == 0, "getrlimit");
  rlimit tight = before;
  tight.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + (16U << 20);
  Expect(setrlimit(RLIMIT_AS, &tight) == 0, "setrlimit");
  const LargeBlock block = MakeLargeBlock(kBlock);
  block[0] = std::byte{1};
  Expect(setrlimit(RLIMIT_AS, &before) == 0, "setrlimit");
});
#endif

const Test kThreads("threads may allocate and free at the same time", [] {
  const LargeBlockStats before = LargeBlocksInUse();
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([thread] {
      std::mt19937 random(thread);
      std::vector<LargeBlock> blocks(50);
      for (int i = 0; i < 2000; ++i) {
        LargeBlock& block = blocks[random() % blocks.size()];
        if (block) {
          Expect(block[100] == static_cast<std::byte>(thread), "the content of a block changed");
        }
        block = MakeLargeBlock(kBlock + random() % kBlock);
        block[100] = static_cast<std::byte>(thread);
      }
    });
  }
  threads.clear();
  ExpectEqual(LargeBlocksInUse().used, before.used);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
