// Growth allocates under its shard's lock, so an operator new that blocks keeps one shard growing
// for as long as the test needs.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <semaphore>
#include <thread>
#include <vector>

#include "table/batch_plan.h"
#include "table/sparse_table.h"
#include "testing/check.h"

namespace {

constexpr std::size_t kGrowthBytes = 4096;
constexpr std::chrono::seconds kDeadline(30);

std::binary_semaphore growing(0);
std::binary_semaphore may_go_on(0);
std::atomic<bool> finished_in_time = false;
thread_local bool stops_at_growth = false;

// Tables allocate small blocks aligned, and large ones not by operator new.
void* Allocate(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
  if (stops_at_growth && size >= kGrowthBytes) {
    stops_at_growth = false;
    growing.release();
    finished_in_time = may_go_on.try_acquire_for(kDeadline);
  }
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*size*/) noexcept { std::free(memory); }

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::Require;
using testing::RequireOk;
using testing::Test;

const KeyHash kHash;

std::vector<Key> KeysWhere(Key& next, std::size_t count, bool in_shard_0) {
  std::vector<Key> keys;
  for (; keys.size() < count; ++next) {
    if ((ShardOf(kHash(next)) == 0) == in_shard_0) keys.push_back(next);
  }
  return keys;
}

const Test kGrowthLocksOne("while a shard grows, rows of the others are read and created", [] {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = 4;
  auto table = RequireOk(SparseTable::Create(spec, {}, kHash));
  constexpr std::size_t kCount = 512;  // few enough for small blocks
  Key next = 0;
  const auto first = KeysWhere(next, kCount, true);
  const auto second = KeysWhere(next, kCount, true);
  const auto others = KeysWhere(next, kCount, false);
  const auto newborn = KeysWhere(next, kCount, false);
  std::vector<float> out(kCount * spec.dim);
  RequireOk(table->Pull(others, PullMode::kTrain, 0, out));

  std::atomic<bool> same_shard_read = false;
  std::jthread pusher([&] {
    const std::vector<float> gradients(kCount * spec.dim, 1.0F);
    RequireOk(table->Push(first, gradients, 0, true).status());
    stops_at_growth = true;  // the thread's buffers are large enough by now
    RequireOk(table->Push(second, gradients, 0, true).status());
    stops_at_growth = false;
  });
  Require(growing.try_acquire_for(kDeadline), "the shard does not grow");
  std::jthread same_shard([&] {
    std::vector<float> rows(kCount * spec.dim);
    RequireOk(table->Pull(first, PullMode::kInferZeros, 0, rows));
    same_shard_read = true;
  });
  RequireOk(table->Pull(others, PullMode::kTrain, 0, out));
  RequireOk(table->Pull(newborn, PullMode::kTrain, 0, out));
  Expect(!same_shard_read, "the growing shard was not locked");
  may_go_on.release();
  same_shard.join();
  pusher.join();
  Expect(finished_in_time, "growth blocked the other shards");
  ExpectEqual(table->Stats().rows, 4 * kCount);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
