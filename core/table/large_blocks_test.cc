#include "table/large_blocks.h"

#ifdef __linux__
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
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

// ASan's own allocator does not survive such a fork (GCC 12 leaves its locks as they are).
#if !defined(__SANITIZE_ADDRESS__)
const Test kForked("a child may allocate, whatever other threads did at the fork", [] {
  std::atomic<bool> is_over = false;
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      while (!is_over) MakeLargeBlock(kBlock);
    });
  }
  int stuck = 0;
  for (int round = 0; round < 200 && stuck == 0; ++round) {
    const pid_t child = fork();
    Expect(child >= 0, "fork");
    if (child == 0) {
      MakeLargeBlock(kBlock);
      _exit(0);
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        continue;
      }
      ++stuck;
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
  }
  is_over = true;
  ExpectEqual(stuck, 0);
});
#endif

// Sanitizers need mappings of their own.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
const Test kTooManyMappings("a region that the system cannot unmap is kept as free space", [] {
  constexpr std::size_t kSize = 128U << 20;  // of whole regions
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto map = [&](void* at, int protection, int more) {
    return mmap(at, page, protection, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
  };
  LargeBlock block = MakeLargeBlock(kSize);
  std::byte* const begin = block.get();
  const LargeBlockStats before = LargeBlocksInUse();
  // The kernel joins it with such neighbors; to unmap the middle then takes one mapping more.
  for (std::byte* beside : {begin - page, begin + kSize}) {
    if (map(beside, PROT_READ | PROT_WRITE, MAP_NORESERVE | MAP_FIXED_NOREPLACE) == beside) {
      (void)madvise(beside, page, MADV_HUGEPAGE);
    }
  }
  std::vector<void*> fillers;
  fillers.reserve(1U << 20);
  while (fillers.size() < fillers.capacity()) {
    void* const filler = map(nullptr, fillers.size() % 2 == 0 ? PROT_READ : PROT_NONE, 0);
    if (filler == MAP_FAILED) break;
    fillers.push_back(filler);
  }
  block.reset();
  const bool is_mapped = madvise(begin, page, MADV_NORMAL) == 0;
  const LargeBlockStats after = LargeBlocksInUse();
  for (void* filler : fillers) munmap(filler, page);
  ExpectEqual(before.used - after.used, kSize);
  ExpectEqual(before.mapped - after.mapped, is_mapped ? 0 : kSize);
  block = MakeLargeBlock(kSize);
  Expect(block.get() == begin || !is_mapped, "what stayed mapped is used again");
});
#endif
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
